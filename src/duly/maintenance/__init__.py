"""Housekeeping of an installation: one service per file, and the role that runs them in turn."""
