"""Tests of what duly gives to the tests of others."""
