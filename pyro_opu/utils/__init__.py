"""Files, tables, warnings and chunks, independent of Bayesian models."""
