"""Class labels: draws are class probabilities, in logarithms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from pyro_opu.checks import ArgumentError, positive_int, simplex_tolerance
from pyro_opu.distributions import Answer, SimplexDistribution
from pyro_opu.parts.base import Outcome, SiteLayout
from pyro_opu.programs.enumerated import log_probs_apart, mixed_log_probs
from pyro_opu.programs.sites import check_one_trial, class_log_probs, site_kind
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.utils.laws import Node

__all__ = ["Classes"]

#: Draws, and rows of each, that every call checks to sum to one, as what is read off logits does.
SUMMED = (2**4, 2**6)


@dataclass(frozen=True)
class Classes(Outcome):
    """One of C classes at every input.

    Attributes:
        num_classes: C.
    """

    kind: ClassVar[str] = "classes"
    task: ClassVar[str] = "classification"
    quantity: ClassVar[str] = "class probabilities"
    answer_text: ClassVar[str] = "a Dirichlet"
    site_kinds: ClassVar[tuple[str, ...]] = ("label", "onehot", "probs", "prob1")
    learned: ClassVar[str] = "class probabilities"
    held: ClassVar[str] = "the class probabilities"
    label: ClassVar[tuple[str, str]] = ("label", "int64")
    extra: ClassVar[str] = "probs"

    num_classes: int

    def __post_init__(self) -> None:
        positive_int("num_classes", self.num_classes, 2)

    @classmethod
    def of_teacher(cls, count: int) -> Classes:
        """So many classes, which a teacher has."""
        if count < 2:
            raise ArgumentError(
                f"`source` gives {count} class; expected at least two (for two classes [1 - p, p])."
            )
        return cls(count)

    def __str__(self) -> str:
        return f"{self.num_classes} classes"

    @classmethod
    def from_config(cls, **config: Any) -> Classes:
        if config["num_classes"] >= 2**40:
            raise ValueError(f"{config['num_classes']!r:.50} is no size")
        return cls(**config)

    @property
    def num_outputs(self) -> int:
        return self.num_classes

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.num_classes,)

    def plain(self, said: Tensor) -> Tensor:
        return said.exp()

    def check_classes(self, source: str) -> None:
        """Do nothing."""

    def checked(self, draws: Tensor, rows: int, sums: bool) -> Tensor:
        if draws.ndim != 3 or draws.shape[1] != rows:
            raise ArgumentError(
                "`source` must give one row of class probabilities per input, shape "
                f"(S, {rows}, C) for {rows} inputs; got {tuple(draws.shape)}. Let the model "
                "keep the inputs on axis 0 and return one row of logits for each."
            )
        if torch.isnan(draws.sum()):
            raise ArgumentError(
                "`source`'s class probabilities must be numbers; got NaN. Check the posterior "
                "draws (torch.isfinite) and the model at these inputs."
            )
        if draws.shape[-1] != self.num_classes:
            raise ArgumentError(
                "`source` must give as many classes at any number of inputs, and at every call; "
                f"got {self.num_classes} before and {draws.shape[-1]} now. Is an axis of its model "
                "that of the inputs where the classes belong?"
            )
        if sums:
            self._check_sums(draws)
        return draws.clamp_min(torch.finfo(draws.dtype).min / 4)

    def _check_sums(self, log_probs: Tensor) -> None:
        """Refuse rows that do not sum to one; a few are looked at."""
        draws, rows = (log_probs.shape[axis] // SUMMED[axis] for axis in (0, 1))
        some = log_probs[:: 1 + draws, :: 1 + rows]
        off = float(some.logsumexp(-1).expm1().abs().max())
        if off > simplex_tolerance(some.dtype):
            raise ArgumentError(
                f"`source` must give probabilities, rows that sum to 1; got a sum off by {off:.3g}."
                " Does its model pass numbers outside [0, 1] as probs? Pass logits, or a softmax."
            )

    def read(self, fns: Mapping[str, Distribution], rows: int, axes: Mapping[str, int]) -> Tensor:
        ((site, fn),) = fns.items()
        check_one_trial(fn, site)  # at all rows, as the first may have one each
        return class_log_probs(fn, rows, site)

    def mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        return mixed_log_probs(log_weights, said)

    def apart(self, one: Tensor, two: Tensor) -> float:
        return log_probs_apart(one, two)

    def kinds(self, nodes: Mapping[str, Node], site: str) -> dict[str, str]:
        """The observed site, and those that hold the class probabilities."""
        probs = class_log_probs(nodes[site]["fn"], 2, site).exp()
        kinds = {name: _kind(node, probs) for name, node in nodes.items()}
        onehot = site_kind(nodes[site]["fn"]) in ("onehot", "multinomial")
        kinds[site] = "onehot" if onehot else "label"
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def sample(
        self, answer: Answer, sites: Collection[SiteLayout], count: int
    ) -> dict[str, Tensor]:
        """Labels from the draws of class probabilities where those come back too, or their mean."""
        parameters = any(site.shows_parameters for site in sites)
        labels, probs = answer.predict(count, parameters)
        return {site.name: site.fill(self._values(site.kind, labels, probs)) for site in sites}

    def _values(self, kind: str, labels: Tensor, probs: Any) -> Tensor:
        if kind == "label":
            return labels
        if kind == "onehot":
            return one_hot(labels, self.num_classes)
        return probs if kind == "probs" else probs[..., 1]

    def draws_of(self, answer: Any, count: int) -> Tensor:
        log_probs: Tensor = answer.log_rsample((count,))
        return log_probs

    def is_answer(self, value: object) -> bool:
        return isinstance(value, SimplexDistribution)

    def chain(self, draws: Tensor) -> Tensor:
        return draws


def _kind(node: Node, probs: Tensor) -> str | None:
    """Whether a site holds the class probabilities ``(2, C)``, or the second class's."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point():
        return None
    if value.numel() == probs.numel() and _equal(value.reshape(probs.shape), probs):
        return "probs"
    if probs.shape[-1] == 2 and value.numel() == 2 and _equal(value.reshape(2), probs[:, 1]):
        return "prob1"
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=1e-5)
