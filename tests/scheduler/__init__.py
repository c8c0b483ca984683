"""Tests of the scheduler: its memory, and all of it together on a real PostgreSQL."""
