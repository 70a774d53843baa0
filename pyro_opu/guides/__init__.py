"""Students: x -> a distribution of class probabilities, one forward pass each."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.guides.generalized_dirichlet import GeneralizedDirichletGuide
from pyro_opu.guides.logistic_normal import LogisticNormalGuide
from pyro_opu.guides.mixture import MixtureGuide
from pyro_opu.guides.point import PointGuide
from pyro_opu.guides.trunk import TrunkGuide
from pyro_opu.guides.undivided import UndividedGuide

__all__ = [
    "GUIDES",
    "GeneralizedDirichletGuide",
    "LogisticNormalGuide",
    "MixtureGuide",
    "PointGuide",
    "PredictiveGuide",
    "TrunkGuide",
    "UndividedGuide",
    "guide_from_config",
    "named_guide",
]

#: Name -> family, as in ``distill(guide=name)`` and in saved files.
GUIDES: dict[str, type[PredictiveGuide] | type[TrunkGuide]] = {
    "dirichlet": PredictiveGuide,
    "undivided": UndividedGuide,
    "point": PointGuide,
    "mixture": MixtureGuide,
    "logistic_normal": LogisticNormalGuide,
    "generalized_dirichlet": GeneralizedDirichletGuide,
}


def named_guide(name: str, x: Tensor, num_classes: int) -> PredictiveGuide | TrunkGuide:
    """A guide of this family sized to the inputs.

    Args:
        name: One of :data:`GUIDES`.
        x: Inputs ``(N, *input_shape)``.
        num_classes: C.

    Returns:
        The guide, with fresh weights drawn from torch's default generator.

    Raises:
        ValueError: an unknown name.
    """
    if name not in GUIDES:
        raise ValueError(
            f"`guide` must be one of {sorted(GUIDES)} or a module x -> Dirichlet; got {name!r}."
        )
    return GUIDES[name].for_inputs(x, num_classes)


def guide_from_config(config: dict[str, Any]) -> PredictiveGuide | TrunkGuide:
    """The guide that ``guide.config`` describes, with fresh weights.

    Args:
        config: As a guide made by ``for_inputs`` holds it; "kind" is one of :data:`GUIDES`.

    Returns:
        A guide of that shape.
    """
    return GUIDES[config.get("kind", "dirichlet")].from_config(config)
