"""duly: a durable, multi-tenant, distributed task scheduler on PostgreSQL."""

__version__ = "0.1.0.dev0"
