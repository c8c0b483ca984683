"""The store: every SQL statement of the server, and its database connections. No decisions here."""
