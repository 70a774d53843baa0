"""What a student answers with: distributions of class probabilities, or of a real y."""

from __future__ import annotations

from pyro_opu.distributions.base import Answer
from pyro_opu.distributions.bridge import laplace_bridge, probit_predictive
from pyro_opu.distributions.counts import PredictiveCount, PredictiveTrials
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, SimplexDistribution, as_answer
from pyro_opu.distributions.dirichlet_mixture import DirichletMixture
from pyro_opu.distributions.divergence import estimated
from pyro_opu.distributions.empirical import Atoms, Empirical
from pyro_opu.distributions.implicit import Implicit
from pyro_opu.distributions.logistic_normal import LogisticNormal
from pyro_opu.distributions.normal import PredictiveNormal, PredictiveNormalMixture, RealAnswer
from pyro_opu.distributions.normal_sticks import NormalSticks

__all__ = [
    "DirichletMixture",
    "Implicit",
    "NormalSticks",
    "PredictiveCount",
    "PredictiveDirichlet",
    "PredictiveNormal",
    "PredictiveTrials",
]


def __dir__() -> list[str]:
    return sorted(__all__)
