r"""Distances between mixtures of normals in closed form: CRPS, energy distance, KL.

Both sides are mixtures of normals at every input: the student of K components, the teacher of S
draws ``(S, N, 2)``, the mean f of y and the logarithm of the noise's deviation. All expectations of
absolute differences are weighted sums of :func:`expected_absolute`: no draws of y are needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_opu.distributions import RealAnswer
from pyro_opu.distributions.normal import Components, PredictiveNormal

#: The mean's deviation counts as at least this share of y's, where it is the unit.
FLOOR = 0.1
#: Pairs that each draw makes with others, where the teacher is compared with itself.
PAIRS = 8


def expected_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    r""":math:`\mathbb{E}|N(m, v)|`, of any broadcastable shapes; a variance of 0 gives \|m\|.

    .. math:: m\,\mathrm{erf}\frac{m}{\sqrt{2v}} + \sqrt{\frac{2v}{\pi}}\, e^{-m^2 / 2v}

    References:
        Grimit, Gneiting, Berrocal and Johnson (2006), The continuous ranked probability score for
        circular variables (its formula for mixtures of normals).
    """
    scale = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
    z = mean / scale
    return (
        mean * torch.erf(z / math.sqrt(2))
        + scale * math.sqrt(2 / math.pi) * (-z.square() / 2).exp()
    )


def crps_of_y(student: Components, draws: Tensor) -> Tensor:
    r"""Expected CRPS of the student's y under the teacher's, ``(N,)``, in units of y.

    .. math:: \mathbb{E}|Y_q - Y_p| - \tfrac12 \mathbb{E}|Y_q - Y_q'|
    """
    variance = torch.logaddexp(student.log_aleatoric, student.log_epistemic).exp()
    return _crps(student, variance, draws[..., 0], (2 * draws[..., 1]).exp())


def crps_of_mean(student: Components, draws: Tensor) -> Tensor:
    """Expected CRPS of the mean f, which the teacher's draws hold without noise, ``(N,)``."""
    f = draws[..., 0]
    return _crps(student, student.log_epistemic.exp(), f, torch.zeros_like(f))


def energy_of_y(student: Components, draws: Tensor) -> Tensor:
    r"""Energy distance of the student's y to the teacher's, ``(N,)``, in units of y.

    .. math:: 2\,\mathbb{E}|Y_q - Y_p| - \mathbb{E}|Y_q - Y_q'| - \mathbb{E}|Y_p - Y_p'|

    Exact in the student, and unbiased at any S >= 2: no draw makes a pair with itself, so the value
    can be slightly negative. In the last term each draw is paired with at most 8 others, at even
    distances in the order of the draws.
    """
    return 2 * crps_of_y(student, draws) - _pairs(draws, draws)


def energy_of_mean(student: Components, draws: Tensor) -> Tensor:
    """Energy distance of the mean f alone, ``(N,)``, estimated as that of y."""
    return 2 * crps_of_mean(student, draws) - _pairs(draws, draws, noise=False)


def energy_of_draws(a: Tensor, b: Tensor, *, noise: bool = True) -> Tensor:
    """Energy distance between two sets of draws, of y or (no noise) of f; pairs as above."""
    return 2 * _pairs(a, b, noise) - _pairs(a, a, noise) - _pairs(b, b, noise)


def pairs_with_others(draws: Tensor, *, noise: bool = True) -> Tensor:
    r"""How much more two draws ``(S, N, 2)`` differ than a draw differs from itself, ``(N,)``.

    In a posterior of M equally likely draws two random ones are the same with probability 1 / M,
    which lowers their mean difference by 1 / M times this.
    """
    itself = expected_absolute(torch.zeros_like(draws[..., 0]), 2 * (2 * draws[..., 1]).exp())
    return _pairs(draws, draws, noise) - noise * itself.mean(0)


def energy_of_normals(gap: Tensor, variance: Tensor, other: Tensor) -> Tensor:
    """Energy distance of two normals whose means differ by ``gap``, with these variances, exact."""
    own, others = (expected_absolute(torch.zeros_like(gap), 2 * v) for v in (variance, other))
    return 2 * expected_absolute(gap, variance + other) - own - others


def teacher_moments(draws: Tensor) -> PredictiveNormal:
    r"""The normal with the moments of a teacher's draws ``(S, N, 2)``, S of at least 2.

    Its epistemic variance :math:`\operatorname{Var}_s f_s` is unbiased.
    """
    f, noise = draws[..., 0], (2 * draws[..., 1]).exp()
    return PredictiveNormal(f.mean(0), noise.mean(0).log(), f.var(0).log(), validate_args=False)


def kl_of_normals(p: PredictiveNormal, q: PredictiveNormal) -> Tensor:
    r""":math:`\mathrm{KL}(p\,\|\,q)` of two normals of y, ``(N,)``, in nats."""
    log_ratio = p.log_variance - q.log_variance
    squares = (p.mean - q.mean).square() / q.variance
    return (log_ratio.exp() - 1 - log_ratio + squares) / 2


def energies(student: RealAnswer, draws: Tensor, size: float = math.inf) -> tuple[Tensor, Tensor]:
    """Energy distances of y and of its mean f to the teacher's draws ``(S, N, 2)``, ``(N,)`` each.

    In units of the teacher's deviation of y and of f, the latter at least a tenth of the former.
    ``size`` is the number of draws that the posterior holds; infinite where it draws afresh.
    """
    wide, narrow = _units(draws)
    parts = student.components()
    y, mean = energy_of_y(parts, draws), energy_of_mean(parts, draws)
    if math.isfinite(size):
        y = y + pairs_with_others(draws) / size
        mean = mean + pairs_with_others(draws, noise=False) / size
    return y / wide, mean / narrow


def spread_of_mean(draws: Tensor) -> Tensor:
    r""":math:`\mathbb{E}|f - f'|` of two draws of the mean, in the unit of `energies`, ``(N,)``."""
    return pairs_with_others(draws, noise=False) / _units(draws)[1]


def cdf_of_mean(student: RealAnswer, draws: Tensor) -> Tensor:
    """The student's distribution function of the mean f at draws ``(S, N, 2)``, ``(S, N)``."""
    parts = student.components()
    off = draws[..., :1] - parts.mean
    below = torch.special.ndtr(off / (parts.log_epistemic / 2).exp())
    return (parts.log_weights.exp() * below).sum(-1)


def energies_of_draws(other: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """`energies` of other draws of the teacher in the place of a student."""
    wide, narrow = _units(draws)
    of_y, of_mean = (energy_of_draws(other, draws, noise=noise) for noise in (True, False))
    return of_y / wide, of_mean / narrow


def energies_of_moments(student: RealAnswer, draws: Tensor) -> tuple[Tensor, Tensor]:
    """`energies` between the normals with the student's and with the teacher's moments."""
    wide, narrow = _units(draws)
    mine, teacher = student.normal(), teacher_moments(draws)
    gap = mine.mean - teacher.mean
    of_y = energy_of_normals(gap, mine.variance, teacher.variance)
    of_mean = energy_of_normals(gap, mine.epistemic, teacher.epistemic)
    return of_y / wide, of_mean / narrow


def _units(draws: Tensor) -> tuple[Tensor, Tensor]:
    """The teacher's deviation of y, and that of f or a tenth of y's, whichever is more."""
    moments = teacher_moments(draws)
    return moments.scale, torch.maximum((moments.log_epistemic / 2).exp(), FLOOR * moments.scale)


def _crps(student: Components, variance: Tensor, f: Tensor, noise: Tensor) -> Tensor:
    weights, mean = student.log_weights.exp(), student.mean
    cross = expected_absolute(f[..., None] - mean, noise[..., None] + variance).mean(0)
    gaps = mean[..., :, None] - mean[..., None, :]
    own = expected_absolute(gaps, variance[..., :, None] + variance[..., None, :])
    pairs = weights[..., :, None] * weights[..., None, :]
    return (weights * cross).sum(-1) - (pairs * own).sum((-2, -1)) / 2


def _pairs(a: Tensor, b: Tensor, noise: bool = True) -> Tensor:
    r""":math:`\mathbb{E}|Y_a - Y_b|` over pairs of different draws ``(S, N, 2)``, ``(N,)``."""
    count = len(a)
    few = min(PAIRS, count - 1)
    total = a.new_zeros(a.shape[1])
    for i in range(few):
        other = b.roll((i + 1) * count // (few + 1), 0)
        gap = a[..., 0] - other[..., 0]
        variance = (2 * a[..., 1]).exp() + (2 * other[..., 1]).exp()
        total = total + expected_absolute(gap, noise * variance).mean(0)
    return total / few
