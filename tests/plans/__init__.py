"""The plans of the hot statements: they must not depend on what the statistics happen to say."""
