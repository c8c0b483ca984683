"""Webhooks: the handler of the executor in production, from the lease to the verdict."""
