"""What normal logits say of class probabilities: their average, and log alpha_0."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet

__all__ = ["LEAST", "averaged_logit", "informed_concentration", "normal_logit", "normal_rule"]

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
#: Of the table of normal logits by their average and log alpha_0: the ends of both, their steps,
#: and the range and step of log deviations while it is made. Between entries it is linear, off by
#: at most 0.01 in either up to an average of 9. Its rule has more nodes, for deviations of 8.
FARTHEST, LOGIT_STEP, MOST_CONCENTRATION, STEP = 20.0, 0.25, 16.0, 0.125
LOG_DEVIATIONS, DEVIATION_STEP = (-9.0, math.log(8.0)), 0.04
TABLE_NODES, TABLE_REACH, NEWTON = 64, 9.0, 10


def normal_rule(like: Tensor, count: int = NODES, reach: float = REACH) -> tuple[Tensor, Tensor]:
    """Nodes and weights ``(count,)`` of the trapezoidal rule for a standard normal law."""
    nodes = torch.linspace(-reach, reach, count, dtype=like.dtype, device=like.device)
    return nodes, (-0.5 * nodes.square()).softmax(0)


def averaged_logit(
    mean: Tensor, variance: Tensor, count: int = NODES, reach: float = REACH
) -> tuple[Tensor, Tensor]:
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
        count: Nodes of the rule.
        reach: The outermost.

    Returns:
        ``(N, 1)`` each.

    References:
        Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule, section 5.
    """
    nodes, weights = normal_rule(mean, count, reach)
    weights = weights[:, None]
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

    By interpolation in a table that is made once, in a second. Deviations are at most 8: draws that
    are apart by more are labels. Where :math:`|\mathrm{logit}\, \bar p| > 20` the solution at 20 is
    moved.

    Args:
        logit: Of the average, any shape.
        log_concentration: :math:`\log \alpha_0`, of a shape that broadcasts to it.

    Returns:
        m and s, of the shape of ``logit``, in float64.
    """
    logit = logit.double()
    wanted = log_concentration.double().expand_as(logit).clamp(-STEP, MOST_CONCENTRATION)
    size = -logit.abs().clamp_max(FARTHEST)
    across, along = (wanted + STEP) / (MOST_CONCENTRATION + STEP), 1 + size / FARTHEST
    places = torch.stack([across, along], -1).reshape(1, 1, -1, 2) * 2 - 1
    between: dict[str, Any] = {"padding_mode": "border", "align_corners": True}
    found = torch.nn.functional.grid_sample(_table().to(logit.device), places, **between)
    mean, log_deviation = found.reshape(2, *logit.shape)
    mean = mean - (logit.abs() + size)
    return torch.where(logit < 0, mean, -mean), log_deviation.exp()


@cache
def _table() -> Tensor:
    """Means and log deviations ``(1, 2, logits from -20 to 0, log alpha_0)``.

    Means are solved for by Newton's method for every deviation; log alpha_0 falls as that rises.
    """
    logits = torch.arange(-FARTHEST, STEP, LOGIT_STEP, dtype=torch.float64)[:, None]
    deviations = torch.arange(*LOG_DEVIATIONS, DEVIATION_STEP, dtype=torch.float64)
    wanted = np.arange(-STEP, MOST_CONCENTRATION + STEP / 2, STEP)
    mean = logits * (1 + math.pi / 8 * (2 * deviations).exp()).sqrt()
    variance = (2 * deviations).exp().expand_as(mean).reshape(-1, 1)
    for _ in range(NEWTON):
        found, moved = (
            averaged_logit((mean + d).reshape(-1, 1), variance, TABLE_NODES, TABLE_REACH)[0]
            for d in (0.0, 1e-4)
        )
        off, slope = (each.reshape(mean.shape) for each in (found, (moved - found) / 1e-4))
        mean = mean + ((logits - off) / slope).clamp(-5.0, 5.0)
    g = averaged_logit(mean.reshape(-1, 1), variance, TABLE_NODES, TABLE_REACH)[1]
    rows = zip(g.reshape(mean.shape).numpy(), mean.numpy(), strict=True)
    entries = [
        [np.interp(wanted, own[::-1], values[::-1]) for values in (means, deviations.numpy())]
        for own, means in rows
    ]
    return torch.from_numpy(np.array(entries)).movedim(1, 0)[None].contiguous()


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
