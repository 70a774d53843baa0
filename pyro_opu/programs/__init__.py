"""A Pyro model under many draws: its runs, rows, latents, cost, and all draws at once."""
