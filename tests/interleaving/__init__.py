"""Pairs of store calls on one task, in every order of their statements, on two real sessions."""
