"""Programs that measure duly. Nothing here is a test: a slow machine fails nothing."""
