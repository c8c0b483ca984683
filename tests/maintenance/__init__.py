"""Housekeeping, service by service, and the role that gives them their turns."""
