"""Tests of the papers' data sets."""
