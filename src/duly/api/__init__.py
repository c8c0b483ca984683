"""The front door: HTTP in, store calls, HTTP out. No SQL and no scheduling decision lives here."""
