"""What normal logits say of class probabilities: their average, and log alpha_0."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet

__all__ = ["LEAST", "averaged_logit", "informed_concentration", "normal_logit"]

#: Least variance of a logit.
LEAST = 1e-12
#: Halvings of the range of log alpha_0: to within 1e-6.
HALVINGS = 25
#: Nodes of the trapezoidal rule for a standard normal law, from -`REACH` to `REACH`: logits of a
#: deviation of 3 have an average within 1e-4, of 8 within 0.004, and log alpha_0 within 0.002 and
#: 0.04. Farther out than an average of 10 the tail that is left out counts.
NODES, REACH = 32, 5.5
#: Largest logit whose exponential is taken, and least share of a variance.
MOST_LOGIT, LEAST_SHARE = 80.0, 1e-12
#: Of the table of normal logits by their average and log alpha_0: its ends, where the rule above is
#: exact enough, and its step. What is between is linear, off by at most 0.01 in either.
FARTHEST, LEAST_CONCENTRATION, MOST_CONCENTRATION, STEP = 9.0, 0.0, 14.0, 0.125
#: Newton's steps to an entry of it, and by how much a slope is measured.
NEWTON, APART = 12, 1e-4


def averaged_logit(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""What one normal logit averages to: that of the mean, and log alpha_0 by moments.

    .. math::
        \sigma(\kappa) = \bar p = \mathbb{E}\,\sigma(z), \quad
        \alpha_0 = \frac{\mathbb{E}\,\sigma(z)(1 - \sigma(z))}{\operatorname{Var} \sigma(z)}, \qquad
        z \sim N(m, v)

    by the trapezoidal rule, which converges exponentially for a normal law. It is done on the side
    where :math:`\bar p \le 1/2`, so that small probabilities and variances keep their digits.

    Args:
        mean: m, ``(N, 1)``.
        variance: v, ``(N, 1)``.

    Returns:
        ``(N, 1)`` each.

    References:
        Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule, section 5.
    """
    nodes = torch.linspace(-REACH, REACH, NODES, dtype=mean.dtype, device=mean.device)
    weights = (-0.5 * nodes.square()).softmax(0)[:, None]
    deviation = variance.clamp_min(LEAST).sqrt()
    p = 1.0 / (1.0 + (mean.abs() - deviation * nodes).clamp_max(MOST_LOGIT).exp())
    least = p @ weights
    share = p / least
    within, between = (share * (1.0 - p)) @ weights, (share - 1.0).square() @ weights
    logit = least.log() - (1.0 - least).log()
    log_concentration = within.log() - least.log() - between.clamp_min(LEAST_SHARE).log()
    return torch.where(mean < 0.0, logit, -logit), log_concentration


def normal_logit(logit: Tensor, log_concentration: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and deviation of the normal logit with these moments: :func:`averaged_logit` inverted.

    .. math::
        \mathbb{E}\,\sigma(z) = \bar p, \quad
        \operatorname{Var} \sigma(z) = \frac{\bar p (1 - \bar p)}{\alpha_0 + 1}, \qquad
        z \sim N(m, s^2)

    By interpolation in a table of 8,249 solutions by Newton's method, made once. Where
    :math:`|\mathrm{logit}\, \bar p| > 9` the solution at 9 is moved; an :math:`\alpha_0` below
    1, whose draws are nearly labels, counts as that.

    Args:
        logit: Of the average, any shape.
        log_concentration: :math:`\log \alpha_0`, of a shape that broadcasts to it.

    Returns:
        m and s, of the shape of ``logit``, in float64.
    """
    logit = logit.double()
    wanted = log_concentration.double().expand_as(logit).clamp_min(LEAST_CONCENTRATION)
    size, inside = -logit.abs().clamp_max(FARTHEST), wanted.clamp_max(MOST_CONCENTRATION)
    across = (inside - LEAST_CONCENTRATION) / (MOST_CONCENTRATION - LEAST_CONCENTRATION)
    places = torch.stack([across, 1 + size / FARTHEST], -1).reshape(1, 1, -1, 2) * 2 - 1
    between: dict[str, Any] = {"padding_mode": "border", "align_corners": True}
    found = torch.nn.functional.grid_sample(_table().to(logit.device), places, **between)
    shift, log_deviation = found.reshape(2, *logit.shape)
    # Beyond the table deviations fall as those of a linear sigmoid do.
    deviation = (log_deviation - 0.5 * (wanted - inside)).exp()
    mean = shift.where(wanted == inside, size + (shift - size) * (inside - wanted).exp()) - (
        logit.abs() + size
    )
    return torch.where(logit < 0, mean, -mean), deviation


@cache
def _table() -> Tensor:
    """Means and log deviations ``(1, 2, logits from -9 to 0, log alpha_0)``."""
    logits = torch.arange(-FARTHEST, STEP / 2, STEP, dtype=torch.float64)
    ends = LEAST_CONCENTRATION, MOST_CONCENTRATION + STEP / 2
    wanted = torch.arange(*ends, STEP, dtype=torch.float64)
    logit, g = (each.reshape(-1, 1) for each in torch.meshgrid(logits, wanted, indexing="ij"))
    p = logit.sigmoid()
    log_variance = -((g.exp() + 1) * p * (1 - p)).log().clamp_min(-math.log(30.0))
    mean = logit * (1 + math.pi / 8 * log_variance.exp()).sqrt()
    for _ in range(NEWTON):
        found = averaged_logit(mean, log_variance.exp())
        by_mean = averaged_logit(mean + APART, log_variance.exp())
        by_variance = averaged_logit(mean, (log_variance + APART).exp())
        (a, c), (b, d) = (
            [(moved - here) / APART for moved, here in zip(each, found, strict=True)]
            for each in (by_mean, by_variance)
        )
        first, second = logit - found[0], g - found[1]
        determinant = a * d - b * c
        mean = mean + ((d * first - b * second) / determinant).clamp(-4.0, 4.0)
        log_variance = log_variance + ((a * second - c * first) / determinant).clamp(-1.5, 1.5)
    shape = 1, 1, len(logits), len(wanted)
    return torch.cat([mean.reshape(shape), 0.5 * log_variance.reshape(shape)], 1)


def informed_concentration(log_mean: Tensor, variance: Tensor) -> Tensor:
    r"""The log alpha_0 that has the mutual information of many normal logits.

    .. math::
        I \approx \frac{i H}{i + H}, \qquad
        i = \tfrac12 \sum_k \operatorname{Var} \pi_k / h_k
          \approx \tfrac12\, v\, \Big(1 - \sum_k h_k^2\Big)

    with i to second order in independent logits of one variance v, and kept below the entropy H of
    the mean h. Of 1,000 classes this ranks inputs as the posterior does (.99); moments, which the
    few likeliest classes decide, ask for so little alpha_0 that the information is threefold.

    Args:
        log_mean: :math:`\log h`, ``(N, C)``.
        variance: v, ``(N, 1)``.

    Returns:
        ``(N, 1)``.
    """
    mean = log_mean.exp()
    entropy = -(mean * log_mean).sum(-1)
    asked = 0.5 * variance.squeeze(-1) * (1.0 - mean.square().sum(-1))
    asked = asked * entropy / (asked + entropy).clamp_min(LEAST)
    low, high = (torch.full_like(asked, end) for end in LOG_CONCENTRATION_RANGE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = PredictiveDirichlet(log_mean, middle, validate_args=False).measures().epistemic
        low, high = torch.where(found > asked, middle, low), high.where(found > asked, middle)
    return ((low + high) / 2)[:, None]
