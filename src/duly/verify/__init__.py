"""Checker: the invariants of docs/ARCHITECTURE.md, judged from rows and logs. Pure."""
