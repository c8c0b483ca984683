"""The ready queue: the lease queue, the carrier contract, and carriers. A cache without gates."""
