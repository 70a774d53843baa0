"""The training engine of `distill` and of the rivals."""
