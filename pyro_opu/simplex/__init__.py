"""Distributions of class probabilities that are no single Dirichlet."""

from __future__ import annotations

from pyro_opu.simplex.atoms import Atoms
from pyro_opu.simplex.base import (
    Answer,
    SimplexDistribution,
    as_answer,
    is_answer,
    stratified_draws,
)
from pyro_opu.simplex.generalized_dirichlet import GeneralizedDirichlet
from pyro_opu.simplex.logistic_normal import LogisticNormal
from pyro_opu.simplex.mixture import DirichletMixture

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
