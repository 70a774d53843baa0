"""Guides: networks that give a distribution of class probabilities for x in one forward pass."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.checks import one_of
from pyro_opu.guides.base import TrunkGuide
from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.guides.families import (
    LogisticNormalGuide,
    MixtureGuide,
    PointGuide,
    SingleHeadGuide,
)

__all__ = [
    "GUIDES",
    "LogisticNormalGuide",
    "MixtureGuide",
    "PointGuide",
    "PredictiveGuide",
    "SingleHeadGuide",
    "TrunkGuide",
    "named_guide",
]

#: Name -> family, as in ``distill(guide=name)`` and in saved files.
GUIDES: dict[str, type[PredictiveGuide] | type[TrunkGuide]] = {
    "dirichlet": PredictiveGuide,
    "single_head": SingleHeadGuide,
    "point": PointGuide,
    "mixture": MixtureGuide,
    "logistic_normal": LogisticNormalGuide,
}
#: Former names, still accepted and found in older files.
FORMER = {"undivided": "single_head"}


def named_guide(name: str, x: Tensor, num_classes: int) -> PredictiveGuide | TrunkGuide:
    """Build a guide of a family in :data:`GUIDES`; see :meth:`.PredictiveGuide.for_inputs`."""
    name = one_of("guide", FORMER.get(name, name), GUIDES, "Or pass a module x -> Dirichlet.")
    return GUIDES[name].for_inputs(x, num_classes)
