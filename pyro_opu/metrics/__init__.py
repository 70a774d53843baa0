"""Measures of uncertainty, distances, scores and coverage."""
