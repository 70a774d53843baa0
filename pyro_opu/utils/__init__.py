"""Files, tables, warnings and chunks, which know nothing of Bayesian models."""
