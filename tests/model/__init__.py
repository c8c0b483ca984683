"""Small exhaustive searches of the protocols, each with broken variants that must fail."""
