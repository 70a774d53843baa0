"""What a student answers with: distributions of class probabilities, or of a real y."""

from __future__ import annotations

from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, SimplexDistribution, as_answer
from pyro_opu.distributions.dirichlet_mixture import DirichletMixture
from pyro_opu.distributions.empirical import Atoms, Empirical
from pyro_opu.distributions.logistic_normal import LogisticNormal
from pyro_opu.distributions.normal import (
    PredictiveNormal,
    PredictiveNormalMixture,
    RealAnswer,
)

__all__ = [
    "Answer",
    "Atoms",
    "DirichletMixture",
    "Empirical",
    "LogisticNormal",
    "PredictiveDirichlet",
    "PredictiveNormal",
    "PredictiveNormalMixture",
    "RealAnswer",
    "SimplexDistribution",
    "as_answer",
]
