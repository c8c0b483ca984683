"""Real processes, really broken, under load; then the checker. `make chaos` runs it."""
