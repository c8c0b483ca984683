"""Every SQL statement of the server, and the database it runs on. No decision is taken here."""
