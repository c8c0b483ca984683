"""The ready queue: one contract, and its carriers. No gate, no fairness, no truth."""
