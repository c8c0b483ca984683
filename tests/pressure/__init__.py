"""The scheduler under pressure, on a real PostgreSQL: slower at worst, never stuck."""
