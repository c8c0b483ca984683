"""duly inside of other frameworks, as their users run them."""
