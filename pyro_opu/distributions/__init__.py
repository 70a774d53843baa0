"""What a student answers with: distributions of class probabilities, or of a real y."""

from __future__ import annotations

from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.bridge import laplace_bridge as laplace_bridge
from pyro_opu.distributions.bridge import probit_predictive as probit_predictive
from pyro_opu.distributions.counts import PredictiveCount, PredictiveTrials
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, SimplexDistribution, as_answer
from pyro_opu.distributions.dirichlet_mixture import DirichletMixture
from pyro_opu.distributions.empirical import Atoms, Empirical
from pyro_opu.distributions.implicit import Implicit
from pyro_opu.distributions.logistic_normal import LogisticNormal
from pyro_opu.distributions.normal import (
    PredictiveNormal,
    PredictiveNormalMixture,
    RealAnswer,
)
from pyro_opu.distributions.normal_sticks import NormalSticks
from pyro_opu.distributions.several import SeveralAnswer

__all__ = [
    "Answer",
    "Atoms",
    "DirichletMixture",
    "Empirical",
    "Implicit",
    "LogisticNormal",
    "NormalSticks",
    "PredictiveCount",
    "PredictiveDirichlet",
    "PredictiveNormal",
    "PredictiveNormalMixture",
    "PredictiveTrials",
    "RealAnswer",
    "SeveralAnswer",
    "SimplexDistribution",
    "as_answer",
]
