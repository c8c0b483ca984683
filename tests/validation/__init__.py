"""Tests of how payloads are held against schemas."""
