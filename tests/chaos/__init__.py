"""Real processes, really killed, under load; then the checker. Run it with `make chaos`."""
