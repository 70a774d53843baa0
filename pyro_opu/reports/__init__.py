"""Comparisons of a student with its teacher, printed as tables."""
