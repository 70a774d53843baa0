"""Ways to answer as ``Predictive`` does, from exact to one pass, each in the place of the last."""
