"""The pure rules: properties, every branch, every limit at its edge."""
