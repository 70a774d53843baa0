"""A student with Gaussian logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.distributions import LogisticNormal
from pyro_opu.guides.dirichlet import soft_clamp
from pyro_opu.guides.trunk import TrunkGuide

__all__ = ["LogisticNormalGuide"]

#: Range of a logit's log standard deviation. The logarithm of a gamma variate has the deviation
#: alpha^(-1/2) for large alpha and 1 / alpha for small: about what the divided guide may say.
LOG_SCALE_RANGE = (-8.0, 4.0)
#: Largest entry of the factor, either way: the largest deviation.
FACTOR_RANGE = (-50.0, 50.0)


class LogisticNormalGuide(TrunkGuide):
    r"""Gaussian logits, :math:`z = \mu(x) + \sigma(x) \odot \epsilon + F(x)\, \eta`, and a softmax.

    The low-rank part makes classes rise and fall together, as logits do that share a posterior;
    see :class:`~pyro_opu.distributions.LogisticNormal` for what is exact. :math:`\log\sigma`
    is bent into [-8, 4] and the entries of F into [-50, 50].

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.
        rank: R >= 0, columns of the factor.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: fewer than two classes, or a negative rank.

    Example:
        >>> import torch
        >>> guide = LogisticNormalGuide(torch.nn.Linear(4, 16), 16, num_classes=3)
        >>> guide(torch.zeros(5, 4))
        LogisticNormal(N: 5, C: 3)
    """

    kind = "logistic_normal"

    def __init__(
        self, trunk: nn.Module, num_features: int, num_classes: int, rank: int = 2
    ) -> None:
        self.rank = positive_int("rank", rank, 0, "0 is independent logits.")
        super().__init__(trunk, num_features, num_classes)

    def num_outputs(self, num_classes: int) -> int:
        """A mean, a log deviation and a row of the factor for every class."""
        return num_classes * (2 + self.rank)

    def answer(self, outputs: Tensor) -> LogisticNormal:
        """The Gaussian logits; deviations and factor bent into their ranges."""
        outputs = outputs.unflatten(-1, (self.num_classes, -1))
        return LogisticNormal(
            outputs[..., 0],
            soft_clamp(outputs[..., 1], *LOG_SCALE_RANGE),
            soft_clamp(outputs[..., 2:], *FACTOR_RANGE),
        )

    def options(self) -> dict[str, Any]:
        """The rank."""
        return {"rank": self.rank}

    def extra_repr(self) -> str:
        return f"softmax of Gaussian logits, diagonal plus rank {self.rank}"
