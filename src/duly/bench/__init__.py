"""`duly bench`: scenarios that measure duly, what they depend on, and how figures are drawn.

Only the command line imports it, and only when it is called. Nothing here is a test: a slow machine
fails nothing.
"""
