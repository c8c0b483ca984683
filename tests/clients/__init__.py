"""Clients in other languages, against a real duly."""
