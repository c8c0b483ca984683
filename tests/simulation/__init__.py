"""The seeded cluster: real statements on a real PostgreSQL, under virtual time, with faults."""
