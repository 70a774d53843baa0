"""Moment matching in closed form: no critic and no draws from the student."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyro_opu.checks import one_of
from pyro_opu.objectives.base import Objective, cross_entropy
from pyro_opu.simplex import Answer, as_answer

#: Least Gini index that "share" weights divide by.
LEAST_GINI = 1e-4


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
        \ell(g) = \frac{A\, \mathrm{softplus}(g) + B\, \mathrm{softplus}(-g)}{G}

    For a Dirichlet :math:`\mathbb{E}\,\Sigma\pi^2 = \Sigma m^2 + \rho (1 - \Sigma m^2)` with
    :math:`\rho = 1/(\alpha_0 + 1) = \sigma(-g)`, so :math:`\rho` is the epistemic share of the Gini
    uncertainty. The loss is convex in g, and its expectation over draws is least where that share
    is the teacher's, :math:`\sigma(-g) = \mathbb{E}A / \mathbb{E}(A + B)` (:func:`.gini_parts`),
    for any number of draws per step: the weight 1 / G of an input does not depend on the draws that
    A and B are taken from. Divided by their own A + B, rare draws at a sure input would count too
    little, and the concentration there would come out too large. So each half of the draws is
    weighted by the other half: G is the Gini index of the other's mean or that of the student's own
    mean, held fixed, whichever is larger. (Of fewer than four draws there are no halves, and G is
    the student's.)

    Args:
        weights: "share" divides by G, at least 1e-4, so that inputs count alike; "variance" does
            not, so that inputs count by their uncertainty.

    Raises:
        ValueError: other ``weights``.
    """

    def __init__(self, weights: Literal["share", "variance"] = "share") -> None:
        super().__init__()
        self.weights = one_of("weights", weights, ("share", "variance"))

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"cross_entropy", "moments"}``."""
        answer = as_answer(student)
        if self.weights == "share":
            loss = share_loss(answer.log_concentration, draws, gini_index(answer.log_mean.detach()))
        else:
            loss = concentration_loss(answer.log_concentration, *gini_parts(draws))
        return {"cross_entropy": cross_entropy(student, draws), "moments": loss.mean()}


def share_loss(g: Tensor, draws: Tensor, gini: Tensor) -> Tensor:
    """The loss in g of :class:`MomentMatching` with weights "share", per input ``(N,)``.

    Args:
        g: Logarithm of the student's concentration ``(N,)``.
        draws: Teacher's draws ``(S, N, C)``.
        gini: Gini index of the student's mean ``(N,)``, without a gradient.
    """
    halves = draws.chunk(2) if len(draws) >= 4 else (draws,)
    losses = []
    for own, other in zip(halves, halves[::-1], strict=True):
        weight = gini.clamp_min(LEAST_GINI)
        if other is not own:
            mean = other.mean(0)
            weight = torch.maximum(weight, (mean * (1 - mean)).sum(-1))
        losses.append(concentration_loss(g, *gini_parts(own)) / weight)
    return torch.stack(losses).mean(0)


def concentration_loss(g: Tensor, between: Tensor, within: Tensor) -> Tensor:
    """The loss in g of :class:`MomentMatching` before it is divided, per input ``(N,)``."""
    return between * softplus(g) + within * softplus(-g)


def gini_index(log_mean: Tensor) -> Tensor:
    r""":math:`1 - \sum_k h_k^2 = \sum_k h_k (1 - h_k)` from logarithms ``(N, C)``, ``(N,)``.

    Exact where one class has nearly all: no difference of numbers near 1 is taken.
    """
    return -(log_mean.exp() * log_mean.expm1()).sum(-1)
