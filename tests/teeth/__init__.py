"""The report on deliberate bugs: which suite notices each, and how soon."""
