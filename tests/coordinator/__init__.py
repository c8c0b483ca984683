"""Tests of ownership: several nodes on one database, with clocks that the test moves."""
