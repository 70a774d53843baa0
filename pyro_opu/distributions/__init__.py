"""Distributions of class probabilities that are no single Dirichlet."""

from __future__ import annotations

from pyro_opu.distributions.base import (
    Answer,
    SimplexDistribution,
    as_answer,
    is_answer,
    stratified_draws,
)
from pyro_opu.distributions.dirichlet_mixture import DirichletMixture
from pyro_opu.distributions.empirical import Atoms
from pyro_opu.distributions.generalized_dirichlet import GeneralizedDirichlet
from pyro_opu.distributions.logistic_normal import LogisticNormal

__all__ = [
    "Answer",
    "Atoms",
    "DirichletMixture",
    "GeneralizedDirichlet",
    "LogisticNormal",
    "SimplexDistribution",
    "as_answer",
    "is_answer",
    "stratified_draws",
]
