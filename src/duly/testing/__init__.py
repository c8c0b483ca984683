"""What tests need in place of the real world: clocks to hold or to move, a whole duly in this
process, and a worker without a process of its own. Never used by a server."""
