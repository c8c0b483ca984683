"""Tests of the checker, on hand-made histories."""
