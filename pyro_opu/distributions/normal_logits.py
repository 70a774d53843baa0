"""What normal logits say of class probabilities: their average, and log alpha_0."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet

__all__ = ["LEAST", "averaged_logit", "informed_concentration"]

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
