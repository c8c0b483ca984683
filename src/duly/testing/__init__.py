"""What tests need in place of the real world: a clock that stands still. Never used by a server."""
