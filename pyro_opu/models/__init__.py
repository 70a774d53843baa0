"""The papers' Bayesian classifiers as Pyro models; they import ``pyro_opu``, never the reverse.

"Li (2022)" in their docstrings is Li's lecture notes on Bayesian neural networks (2022).
"""
