"""Ownership of slots and singleton roles: who dispatches what, for speed and fairness only."""
