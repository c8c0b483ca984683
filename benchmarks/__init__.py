"""Comparisons beside `duly bench`: carriers of the ready queue, other schedulers, large screens."""
