"""What normal logits say of class probabilities: their average, and log alpha_0."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet

__all__ = [
    "LEAST",
    "LOG_DEVIATIONS",
    "NormalLogits",
    "averaged_logit",
    "informed_concentration",
    "moderated",
    "tabulated_logit",
]

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
#: Of the table of normal logits by their average and deviation: the ends of both, how many there
#: are, and its rule, which has more nodes, for deviations of 8; of its inverse the ranges of the
#: log deviation and of log alpha_0, and how many.
FARTHEST, LOGITS = 20.0, 81
LEAST_DEVIATION, MOST_DEVIATION, DEVIATIONS = 1e-3, 8.0, 81
LOG_DEVIATIONS = (-10.0, math.log(MOST_DEVIATION))
CONCENTRATIONS, SOUGHT = (-2.0, 20.0), 177
TABLE_NODES, TABLE_REACH, NEWTON = 64, 9.0, 8


def normal_rule(like: Tensor, count: int = NODES, reach: float = REACH) -> tuple[Tensor, Tensor]:
    """Nodes and weights ``(count,)`` of the trapezoidal rule for a standard normal distribution."""
    nodes = torch.linspace(-reach, reach, count, dtype=like.dtype, device=like.device)
    return nodes, (-0.5 * nodes.square()).softmax(0)


def averaged_logit(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""What one normal logit averages to: that of the mean, and log alpha_0 by moments.

    .. math::
        \sigma(\kappa) = \bar p = \mathbb{E}\,\sigma(z), \quad
        \alpha_0 = \frac{\mathbb{E}\,\sigma(z)(1 - \sigma(z))}{\operatorname{Var} \sigma(z)}, \qquad
        z \sim N(m, v)

    by the trapezoidal rule, which converges exponentially for a normal. It is done on the side
    where :math:`\bar p \le 1/2`, so that small probabilities and variances keep their digits.

    Args:
        mean: m, ``(N, 1)``.
        variance: v, ``(N, 1)``.

    Returns:
        ``(N, 1)`` each.

    References:
        Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule, section 5.
    """
    nodes, weights = normal_rule(mean)
    weights = weights[:, None]
    deviation = variance.clamp_min(LEAST).sqrt()
    p = 1.0 / (1.0 + (mean.abs() - deviation * nodes).clamp_max(MOST_LOGIT).exp())
    least = p @ weights
    share = p / least
    within, between = (share * (1.0 - p)) @ weights, (share - 1.0).square() @ weights
    logit = least.log() - (1.0 - least).log()
    log_concentration = within.log() - least.log() - between.clamp_min(LEAST_SHARE).log()
    return torch.where(mean < 0.0, logit, -logit), log_concentration


def moderated(mean: Tensor, variance: Tensor) -> Tensor:
    r"""About what normal logits average to, each by itself: :math:`m / \sqrt{1 + \pi v / 8}`.

    References:
        MacKay (1992), The evidence framework applied to classification networks, eq. 10.
    """
    return mean * (1.0 + math.pi / 8.0 * variance).rsqrt()


class TabulatedLogit(NamedTuple):
    r"""What one normal logit :math:`z \sim N(m, s^2)` says of :math:`p = \sigma(z)`."""

    mean: Tensor
    """m."""
    log_concentration: Tensor
    r""":math:`\log \alpha_0`, :math:`\alpha_0 = \bar p (1 - \bar p) / \operatorname{Var} p - 1`."""
    log_information: Tensor
    r""":math:`\log (H[\bar p] - \mathbb{E}\, H[p])`, nats."""
    log_present: Tensor
    r""":math:`\mathbb{E} \log p`."""
    log_absent: Tensor
    r""":math:`\mathbb{E} \log (1 - p)`."""


def tabulated_logit(logit: Tensor, log_deviation: Tensor) -> TabulatedLogit:
    r"""The normal logit with an average :math:`\bar p` and a deviation s, and its moments.

    By interpolation in a table that is made once; without bounds on the average: where
    :math:`|\mathrm{logit}\, \bar p| > 20` the smaller of p and 1 - p is log-normal, and what is
    said at 20 is moved. Deviations are at most 8: draws that are apart by more are labels.

    Args:
        logit: :math:`\mathrm{logit}\, \bar p`, any shape.
        log_deviation: :math:`\log s`, of the same shape.

    Returns:
        Both of that shape, in float64; off by at most 0.003.
    """
    size, farther = beyond(logit)
    twice = 2 * log_deviation.double()
    found = _between(_cells(logit.device), _along(size), (twice / 2).exp() / MOST_DEVIATION)
    moved, log_concentration, log_information, log_loss = found.unbind(-1)
    # Of p where it is the smaller; farther out its average falls by exp(-farther).
    mean = -(size + farther) - moved * twice.exp()
    loss = (log_loss - farther).exp()
    less, more = mean - loss, -loss
    small = logit < 0
    return TabulatedLogit(
        torch.where(small, mean, -mean),
        log_concentration - twice + farther,
        log_information + twice - farther,
        torch.where(small, less, more),
        torch.where(small, more, less),
    )


class NormalLogits:
    """Normal logits by their averages, and numbers of the table at their deviations, float64.

    Attributes:
        farther: How far each lies beyond the table, ``(N, K)``.

    Args:
        logit: :math:`\\mathrm{logit}\\, \\bar p`, ``(N, K)``.
    """

    def __init__(self, logit: Tensor) -> None:
        size, self.farther = beyond(logit)
        self._place, self._device = _along(size), logit.device

    def first_deviation(self, log_concentration: Tensor) -> Tensor:
        """The deviation of the first with this log alpha_0 ``(N,)``, ``(N, 1)``."""
        first = tuple(each[:, :1] for each in self._place)
        return _sought(first, log_concentration.unsqueeze(-1) - self.farther[:, :1]).exp()

    def concentration(self, deviation: Tensor) -> Tensor:
        """alpha_0, ``(N, K)``, times the square of the deviation."""
        return (self._one(1, deviation) + self.farther).exp()

    def information(self, deviation: Tensor) -> Tensor:
        """Information in nats, ``(N, K)``, over the square of the deviation."""
        return (self._one(2, deviation) - self.farther).exp()

    def _one(self, channel: int, deviation: Tensor) -> Tensor:
        cells = _cells(self._device, channel)
        return _between(cells, self._place, deviation / MOST_DEVIATION).squeeze(-1)


def beyond(logit: Tensor) -> tuple[Tensor, Tensor]:
    """The size of a logit, as far as the table goes, and what is beyond."""
    size = logit.double().abs()
    inside = size.clamp_max(FARTHEST)
    return inside, size - inside


def _sought(along: tuple[Tensor, ...], log_concentration: Tensor) -> Tensor:
    """Log deviations in the table of the inverse."""
    low, high = CONCENTRATIONS
    across = (log_concentration - low) / (high - low)
    return _between(_inverse(log_concentration.device), along, across).squeeze(-1)


def _along(size: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of cells for sizes of logits, and how far down a cell each is."""
    down = size * ((LOGITS - 1) / FARTHEST)
    top = down.long().clamp(0, LOGITS - 2)  # of NaN any, between which and the next NaN stays NaN
    return top, down - top


def _between(cells: Tensor, along: tuple[Tensor, ...], across: Tensor) -> Tensor:
    """Entries ``(*shape, K)`` of a table of :func:`_in_cells` at rows and shares of its width.

    Not by ``grid_sample``, which runtimes of ONNX lack in float64.
    """
    top, lower = along
    width = len(cells) // (LOGITS - 1)
    right = (across * width).clamp(0, width)
    left = right.long().clamp(0, width - 1)
    found = torch.embedding(cells, left + top * width).double().unflatten(-1, (-1, 4))
    start, rightward, downward, both = found.unbind(-1)
    lower, upper = lower.unsqueeze(-1), (right - left).unsqueeze(-1)
    return start + rightward * upper + (downward + both * upper) * lower


def _in_cells(table: Tensor) -> Tensor:
    """What is linear between four entries of a table ``(H, W, K)``: ``((H - 1)(W - 1), 4 K)``."""
    (here, right), (under, across) = (
        (rows[:, :-1], rows[:, 1:]) for rows in (table[:-1].double(), table[1:].double())
    )
    four = torch.stack([here, right - here, under - here, across - under - right + here], -1)
    return four.float().flatten(2).flatten(0, 1)


@cache
@torch.inference_mode(mode=False)
def _cells(device: torch.device, channel: int | None = None) -> Tensor:
    """One number of the table, or all four."""
    table = _table()
    return _in_cells(table if channel is None else table[..., channel : channel + 1]).to(device)


@cache
@torch.inference_mode(mode=False)
def _table() -> Tensor:
    r"""The table for averages below one half ``(|logit| from 0 to 20, s from 0 to 8, 4)``, float32.

    How far m lies below the average's logit, log alpha_0, the logarithm of the information, and
    that of :math:`-\mathbb{E} \log (1 - p)`; the first three without their factor of
    :math:`s^{\pm 2}`, which leaves them flat at 0. m is solved for by Newton's method.
    """
    logit = -torch.linspace(0.0, FARTHEST, LOGITS, dtype=torch.float64)[:, None, None]
    s = torch.linspace(0.0, MOST_DEVIATION, DEVIATIONS, dtype=torch.float64)
    s = s.clamp_min(LEAST_DEVIATION)[None, :, None]
    nodes, weights = normal_rule(s, TABLE_NODES, TABLE_REACH)
    weights = weights[:, None]
    mean = logit * (1 + math.pi / 8 * s.square()).sqrt()
    for _ in range(NEWTON):
        p = torch.sigmoid(mean + s * nodes)
        average, slope = p @ weights, (p * (1 - p)) @ weights
        step = (average.log() - (-average).log1p() - logit) * average * (1 - average) / slope
        mean = mean - step.clamp(-5.0, 5.0)
    z = mean + s * nodes
    p, rest, log_p, log_rest = z.sigmoid(), (-z).sigmoid(), logsigmoid(z), logsigmoid(-z)
    average = p @ weights
    share = p / average
    within, between = (share * rest) @ weights, (share - 1).square() @ weights
    divergence = p * (log_p - average.log()) + rest * (log_rest - (-average).log1p())
    channels = [
        (logit - mean) / s.square(),
        within.log() - average.log() - between.log() + 2 * s.log(),
        (divergence @ weights).log() - 2 * s.log(),
        (-log_rest @ weights).log(),
    ]
    return torch.cat(channels, -1).float()


@cache
@torch.inference_mode(mode=False)
def _inverse(device: torch.device) -> Tensor:
    """Log deviations by ``|logit|`` from 0 to 20 and log alpha_0, float32, in cells."""
    logits = torch.linspace(0.0, FARTHEST, LOGITS, dtype=torch.float64)
    log_s = torch.linspace(*LOG_DEVIATIONS, 20 * DEVIATIONS, dtype=torch.float64)
    logit, log_deviation = torch.meshgrid(logits, log_s, indexing="ij")
    found = tabulated_logit(logit, log_deviation).log_concentration.numpy()
    wanted = np.linspace(*CONCENTRATIONS, SOUGHT)
    rows = [np.interp(wanted, own[::-1], log_s.numpy()[::-1]) for own in found]
    return _in_cells(torch.from_numpy(np.array(rows)).float()[..., None]).to(device)


def informed_concentration(log_mean: Tensor, variance: Tensor) -> Tensor:
    r"""The log alpha_0 that has the mutual information of many normal logits.

    .. math::
        I \approx \frac{i H}{i + H}, \qquad
        i = \tfrac12 \sum_k \operatorname{Var} \pi_k / h_k
          \approx \tfrac12\, v\, \Big(1 - \sum_k h_k^2\Big)

    with i to second order in independent logits of one variance v, and kept below the entropy H of
    the mean h. With 1,000 classes this ranks inputs as the posterior does (.99); moments, which the
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
