"""The papers' Bayesian classifiers as Pyro models; they import ``pyro_opu``, never the reverse."""
