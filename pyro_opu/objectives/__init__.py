"""Objectives: losses that fit a student to its teacher, one file each, all called the same way."""

from __future__ import annotations

from typing import Literal

from pyro_opu.checks import one_of
from pyro_opu.objectives.base import Adversarial, Objective
from pyro_opu.objectives.critic import MetaCritic
from pyro_opu.objectives.cross_entropy import CrossEntropy
from pyro_opu.objectives.energy import EnergyDistance
from pyro_opu.objectives.ensemble_distribution import EnsembleDistribution
from pyro_opu.objectives.likelihood import DirichletLikelihood
from pyro_opu.objectives.moments import MomentMatching
from pyro_opu.objectives.normal import NormalMoments
from pyro_opu.objectives.proxy import ProxyDirichlet
from pyro_opu.objectives.wasserstein import WassersteinELBO

__all__ = [
    "Adversarial",
    "CrossEntropy",
    "DirichletLikelihood",
    "EnergyDistance",
    "MetaCritic",
    "MomentMatching",
    "Objective",
    "WassersteinELBO",
]

ClassLossName = Literal[
    "wasserstein", "moments", "energy", "likelihood", "cross_entropy", "endd", "proxy"
]
#: Objectives of class probabilities by name, as in ``distill(loss=name)``.
LOSSES: dict[ClassLossName, type[Objective]] = {
    "wasserstein": WassersteinELBO,
    "moments": MomentMatching,
    "energy": EnergyDistance,
    "likelihood": DirichletLikelihood,
    "cross_entropy": CrossEntropy,
    "endd": EnsembleDistribution,
    "proxy": ProxyDirichlet,
}


def as_objective(loss: str | Objective) -> Objective:
    """Return an objective of class probabilities, by name or as it is.

    ``loss`` is "wasserstein", "moments", "energy", "likelihood", "cross_entropy", "endd", "proxy",
    or an :class:`~pyro_opu.Objective`.
    """
    if isinstance(loss, Objective):
        return loss
    return LOSSES[one_of("loss", loss, LOSSES, "Or pass an Objective.")]()


def __dir__() -> list[str]:
    return sorted(__all__)
