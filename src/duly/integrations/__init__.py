"""duly inside of web frameworks. Each module needs its framework, which is an extra of its own."""
