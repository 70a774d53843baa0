"""Moment matching in closed form: no critic and no draws from the student."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyro_opu.objectives.base import Objective, cross_entropy
from pyro_opu.simplex import Answer, as_answer


def gini_parts(draws: Tensor) -> tuple[Tensor, Tensor]:
    r"""Between-draw and within-draw parts of the Gini uncertainty, both unbiased for S >= 2.

    .. math::
        A = \operatorname{mean}_s \|\pi_s\|^2
        - \operatorname{mean}_{s \neq s'} \pi_s \cdot \pi_{s'}, \qquad
        B = 1 - \operatorname{mean}_s \|\pi_s\|^2

    Args:
        draws: ``(S, N, C)`` on the simplex.

    Returns:
        ``(A, B)``, each ``(N,)``. A is the summed variance of the class probabilities; A + B
        estimates the Gini index 1 - sum of squares of the mean.

    Raises:
        ValueError: fewer than two draws.
    """
    count = len(draws)
    if count < 2:
        raise ValueError(
            f"`draws` must hold at least two draws per input; got shape {tuple(draws.shape)}. "
            "One draw says nothing about the spread."
        )
    # Centred, so that a spread of 1e-6 beside a mean of 0.9 keeps its digits in float32. Over draws
    # first, and not by `var`: ten times as fast.
    between = (draws - draws.mean(0)).square().sum(0).sum(-1) / (count - 1)
    within = (draws * (1 - draws)).mean(0).sum(-1)
    return between, within


class MomentMatching(Objective):
    r"""Cross-entropy for h, and for g the loss that the first two moments minimise.

    .. math::
        \ell(g) = A\, \mathrm{softplus}(g) + B\, \mathrm{softplus}(-g)

    For a Dirichlet :math:`\mathbb{E}\,\Sigma\pi^2 = \Sigma m^2 + \rho (1 - \Sigma m^2)` with
    :math:`\rho = 1/(\alpha_0 + 1) = \sigma(-g)`, so :math:`\rho` is the epistemic share of the Gini
    uncertainty. The loss is convex in g and least where that share is the teacher's,
    :math:`\sigma(-g) = A / (A + B)` (:func:`.gini_parts`).

    Args:
        weights: "share" divides by A + B, so that every input counts alike; "variance" does not,
            so that inputs count by their uncertainty.

    Raises:
        ValueError: other ``weights``.
    """

    def __init__(self, weights: Literal["share", "variance"] = "share") -> None:
        super().__init__()
        if weights not in ("share", "variance"):
            raise ValueError(f'`weights` must be "share" or "variance"; got {weights!r}.')
        self.weights = weights

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"cross_entropy", "moments"}``."""
        g = as_answer(student).log_concentration
        return {
            "cross_entropy": cross_entropy(student, draws),
            "moments": share_loss(g, *gini_parts(draws), weights=self.weights).mean(),
        }


def share_loss(g: Tensor, between: Tensor, within: Tensor, *, weights: str = "share") -> Tensor:
    """The loss in g of :class:`MomentMatching`, per input ``(N,)``."""
    if weights == "share":
        total = (between + within).clamp_min(torch.finfo(g.dtype).tiny)
        between, within = between / total, within / total
    return between * softplus(g) + within * softplus(-g)
