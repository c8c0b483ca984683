"""Execution: lease tickets, run handlers and webhooks, heartbeat, settle; leases of workers."""
