"""Tests of the ready queue: one conformance suite, and what is special about each carrier."""
