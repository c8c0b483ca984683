"""The applications in examples/ do what they say."""
