"""The stage and the race of the interleavings, which the scenarios also need."""

from tests.interleaving.conftest import race, stage

__all__ = ["race", "stage"]
