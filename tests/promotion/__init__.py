"""A primary PostgreSQL is taken away under load, and its standby promoted."""
