"""Properties are checked on the same examples in every run, so that a failure can be repeated."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
