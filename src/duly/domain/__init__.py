"""Pure rules: no clock, no randomness, no input or output, nothing of ours imported."""
