r"""A real y: draws are normals of y, their mean :math:`f_s(x)` and :math:`\log\sigma_s(x)`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions import RealAnswer
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.parts.base import Outcome, SiteLayout
from pyro_opu.parts.kinds import said
from pyro_opu.programs.enumerated import mixed_normals, normals_apart
from pyro_opu.programs.sites import one_per_row
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.utils.laws import Node

__all__ = ["Real"]


@dataclass(frozen=True)
class Real(Outcome):
    """A real number at every input, normal under each draw."""

    kind: ClassVar[str] = "real"
    quantity: ClassVar[str] = "means and scales"
    answer_text: ClassVar[str] = "a PredictiveNormal"
    site_kinds: ClassVar[tuple[str, ...]] = ("value", "mean")
    learned: ClassVar[str] = "y"
    held: ClassVar[str] = "the mean of y"
    label: ClassVar[tuple[str, str]] = ("value", "")
    extra: ClassVar[str] = "mean"

    num_classes = None

    def __str__(self) -> str:
        return "a real y"

    @property
    def num_outputs(self) -> int:
        return 2

    @property
    def event_shape(self) -> tuple[int, ...]:
        return ()

    def checked(self, draws: Tensor, rows: int, sums: bool) -> Tensor:
        if draws.ndim != 3 or draws.shape[1:] != (rows, 2):
            raise ArgumentError(
                f"`source` must give one mean and one scale per input, shape (S, {rows}, 2) for "
                f"{rows} inputs; got {tuple(draws.shape)}. Let the model keep the inputs on axis 0."
            )
        if not torch.isfinite(draws.sum()):
            raise ArgumentError(
                "`source`'s means must be finite and its scales positive; got NaN, infinity or a "
                "scale of 0 or below. Check the posterior draws (torch.isfinite) and the model "
                "at these inputs."
            )
        return draws

    def read(self, fns: Mapping[str, Distribution], rows: int, axes: Mapping[str, int]) -> Tensor:
        ((site, fn),) = fns.items()
        advice = "Distill each output of a model with several from a model with that one output."
        return one_per_row(said("real", fn), rows, f"'{site}' must hold one number", advice)

    def mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        return mixed_normals(log_weights, said)

    def apart(self, one: Tensor, two: Tensor) -> float:
        return normals_apart(one, two)

    def kinds(self, nodes: Mapping[str, Node], site: str) -> dict[str, str]:
        """The observed site, and those that hold the mean of y."""
        mean = self.read({site: nodes[site]["fn"]}, 2, {})[:, 0]
        kinds = {name: "mean" for name, node in nodes.items() if _holds(node, mean)}
        return {**kinds, site: "value"}

    def sample(self, answer: Any, sites: Collection[SiteLayout], count: int) -> dict[str, Tensor]:
        """Draws of y (the kind "value") and of its mean f ("mean")."""
        y, f = answer.predict(count)
        return {site.name: site.fill(y if site.kind == "value" else f) for site in sites}

    def draws_of(self, answer: Any, count: int) -> Tensor:
        """Means, and the noise's log deviation of the component that each was drawn from."""
        f, _, log_aleatoric = answer.components().drawn(count)
        return torch.stack([f, log_aleatoric / 2], -1)

    def is_answer(self, value: object) -> bool:
        return isinstance(value, RealAnswer)

    def chain(self, draws: Tensor) -> Tensor:
        """Means in deviations of y, and logarithms of scales."""
        units = torch.ones_like(draws)
        units[..., 0] = teacher_moments(draws).scale
        return draws / units

    def means(self, draws: Tensor) -> Tensor:
        return draws[..., :1]


def _holds(node: Node, mean: Tensor) -> bool:
    """Whether a deterministic site holds the mean of y at two inputs."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point() or value.numel() != 2:
        return False
    return torch.allclose(value.reshape(2).double(), mean.double(), rtol=1e-5, atol=0)
