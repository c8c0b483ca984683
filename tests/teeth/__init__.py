"""Deliberate bugs, for guard scenarios and seeds of the simulator to notice; and the report."""
