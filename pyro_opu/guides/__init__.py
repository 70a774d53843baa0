"""Guides: networks that give a distribution of class probabilities for x in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pyro_opu.guides.affine import Affine, AffineTrunk
from pyro_opu.guides.base import HeadGuide, TrunkGuide, family, student_at
from pyro_opu.guides.beginning import Beginning
from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.guides.families import LogisticNormalGuide, MixtureGuide, PointGuide, SingleHeadGuide
from pyro_opu.guides.implicit import ImplicitGuide
from pyro_opu.guides.networks import Perceptron
from pyro_opu.guides.normal import REGRESSION_GUIDES, GaussianGuide
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.guides.table import UNITS, TableGuide
from pyro_opu.inputs import PLAIN, Form, Unpacked

__all__ = [
    "PredictiveGuide",
]

ClassGuideName = Literal[
    "dirichlet", "single_head", "point", "mixture", "logistic_normal", "implicit"
]
#: Name -> family, as in ``distill(guide=name)`` and in saved files.
GUIDES: dict[ClassGuideName, type[PredictiveGuide] | type[TrunkGuide]] = {
    "dirichlet": PredictiveGuide,
    "single_head": SingleHeadGuide,
    "point": PointGuide,
    "mixture": MixtureGuide,
    "logistic_normal": LogisticNormalGuide,
    "implicit": ImplicitGuide,
}


def of_form(guide: nn.Module, form: Form) -> nn.Module:
    """The guide as one of packed inputs: those of this package take them, others several inputs."""
    own = isinstance(guide, (HeadGuide, PredictiveGuide, Unpacked))
    if form == PLAIN or own or getattr(guide, "takes_one_tensor", False):
        return guide
    return Unpacked(guide, form)


def trainable(guide: nn.Module, form: Form, device: torch.device) -> nn.Module:
    """Move a guide to the device; make one that is frozen, as distilled ones are, trainable.

    It is trained as a Dirichlet: its moments are those of other families, too.
    """
    guide = of_form(guide, form).to(device).train()
    if isinstance(guide, PredictiveGuide):
        guide.read_as("dirichlet")
    if not any(parameter.requires_grad for parameter in guide.parameters()):
        guide.requires_grad_(True)
    return guide


@torch.no_grad()
def guide_at(
    kind: type[PredictiveGuide] | type[TrunkGuide],
    start: Beginning | Affine,
    x: Tensor,
    log_concentration: float = 0.0,
) -> PredictiveGuide | TrunkGuide:
    """Build a guide of a family that begins at a network, or with moments of its logits.

    Args:
        kind: One of :data:`GUIDES`.
        start: The network.
        x: Inputs ``(N, *input_shape)``, by which features are standardised.
        log_concentration: The g of every input, where the moments do not say it.
    """
    if isinstance(start, Affine):
        config, classes = start.describe(x), start.parts[0].width
    else:
        config, classes = NetworkTrunk.describe(start, x), len(start.head)
    shape = {"trunk": config, "num_classes": classes, "shared": True}
    guide = kind.from_config(shape).to(x.device)
    trunk: Any = guide.trunk
    head: Tensor = trunk.start_at(start, x)
    if isinstance(guide, PredictiveGuide):
        for layer, rows in ((guide.mean_head, head[:-1]), (guide.concentration_head, head[-1:])):
            layer.weight.copy_(rows[:, :-1])
            layer.bias.copy_(rows[:, -1])
        if not bool(head[-1].any()):
            guide.start_at(log_concentration)
    return guide


@torch.no_grad()
def real_at(start: Affine, x: Tensor, y: Tensor) -> GaussianGuide:
    """A guide of a real y that begins with its moments; ``y`` has values of any shape."""
    guide = GaussianGuide.from_config({"trunk": start.describe(x), "options": {}}).to(x.device)
    guide.fit_units(y)
    _begin(guide, start, x)
    return guide


@torch.no_grad()
def table_at(start: Affine, x: Tensor, draws: Sequence[Tensor]) -> TableGuide:
    """A guide of several numbers that begins so; ``draws`` ``(S, N, L, width)`` of each part."""
    parts = [part.config for part in start.parts]
    config = {"trunk": start.describe(x), "options": {"parts": parts}}
    guide = TableGuide.from_config(config).to(x.device).start_at(draws)
    _begin(guide, start, x)
    return guide


def _begin(guide: HeadGuide, start: Affine, x: Tensor) -> None:
    """Let the head of a guide on an :class:`.AffineTrunk` give what the trunk says."""
    assert isinstance(guide.trunk, AffineTrunk)
    head = guide.trunk.start_at(in_units_of(guide, start), x)
    guide.head.weight.copy_(head[:, :-1])
    guide.head.bias.copy_(head[:, -1])


def in_units_of(guide: nn.Module, start: Beginning | Affine) -> Beginning | Affine:
    """Moments of real numbers in the units of a guide; all others as they are."""
    if isinstance(guide, GaussianGuide) and isinstance(start, Affine):
        return start.in_units([guide.shift[None]], [guide.scale[None]])
    if isinstance(guide, TableGuide) and isinstance(start, Affine):
        count = range(len(guide.parts))
        return start.in_units(*([getattr(guide, f"{name}_{k}") for k in count] for name in UNITS))
    return start


def __dir__() -> list[str]:
    return sorted(__all__)
