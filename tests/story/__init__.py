"""End to end, with real processes: each test is a sentence about duly."""
