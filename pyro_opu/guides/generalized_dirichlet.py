"""A student that breaks a stick in Beta shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pyro_opu.distributions import GeneralizedDirichlet
from pyro_opu.guides.dirichlet import LOG_CONCENTRATION_RANGE, soft_clamp
from pyro_opu.guides.trunk import TrunkGuide

__all__ = ["GeneralizedDirichletGuide"]


class GeneralizedDirichletGuide(TrunkGuide):
    r"""Beta shares of a stick, their means and concentrations divided as in the default guide.

    .. math::
        v_j \sim \mathrm{Beta}\big(h_j e^{g_j}, (1 - h_j)\, e^{g_j}\big), \qquad j < C

    with :math:`h_j` a sigmoid and :math:`g_j` bent into the range of the divided guide. It starts
    at a mean that is nearly uniform. The family depends on the order of the classes
    (:class:`~pyro_opu.distributions.GeneralizedDirichlet`); for two classes it is a Dirichlet.

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: fewer than two classes.

    Example:
        >>> import torch
        >>> guide = GeneralizedDirichletGuide(torch.nn.Linear(4, 16), 16, num_classes=3)
        >>> guide(torch.zeros(5, 4))
        GeneralizedDirichlet(N: 5, C: 3)

    References:
        Connor and Mosimann (1969), Concepts of independence for proportions with a generalization
        of the Dirichlet distribution.
    """

    kind = "generalized_dirichlet"

    def __init__(self, trunk: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__(trunk, num_features, num_classes)
        rest = torch.arange(num_classes - 1, 0, -1, dtype=self.head.bias.dtype)
        with torch.no_grad():
            self.head.bias[: num_classes - 1] -= rest.log()  # a share of 1 / (classes left)

    def num_outputs(self, num_classes: int) -> int:
        """A mean and a concentration for every share."""
        return 2 * (num_classes - 1)

    def answer(self, outputs: Tensor) -> GeneralizedDirichlet:
        """The broken stick."""
        logit, raw = outputs.chunk(2, -1)
        g = soft_clamp(raw, *LOG_CONCENTRATION_RANGE)
        return GeneralizedDirichlet(logsigmoid(logit) + g, logsigmoid(-logit) + g)

    def extra_repr(self) -> str:
        return "Beta shares of a stick, 2 (C - 1) numbers"
