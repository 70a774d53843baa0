"""Energy distance: a divergence whose best witness is known, so that it needs no critic."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.checks import in_range, positive_int
from pyro_opu.distributions import SimplexDistribution, as_answer
from pyro_opu.metrics.marginals import mean_absolute_difference
from pyro_opu.objectives.base import Objective
from pyro_opu.objectives.cross_entropy import cross_entropy


class EnergyDistance(Objective):
    r"""Energy distance between the teacher's draws and draws of the student.

    An integral probability metric whose best witness is known,
    :math:`\psi(\pi) = \tfrac12(\mathbb{E}_q\|\pi - \pi'\| - \mathbb{E}_p\|\pi - \pi'\|)`, so it
    needs no critic.

    Args:
        num_samples: Student draws per input.
        likelihood: Weight of the expected log-likelihood of labels beside it.

    References:
        Szekely and Rizzo (2013), Energy statistics; ``pyro.infer.EnergyDistance`` for the same idea
        between data and a model.
    """

    learning_rate = 3e-5

    def __init__(self, num_samples: int = 64, likelihood: float = 0.0) -> None:
        super().__init__()
        num_samples = positive_int("num_samples", num_samples, 2)
        in_range("likelihood", likelihood, 0)
        self.num_samples, self.likelihood = num_samples, likelihood

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"energy"}``, and "log_likelihood" (negated) where it has a weight."""
        samples, weights = as_answer(student).stratified_rsample(self.num_samples)
        parts = {"energy": energy_distance_loss(samples, draws, weights).mean()}
        if self.likelihood:
            parts["log_likelihood"] = self.likelihood * cross_entropy(student, draws.mean(0))
        return parts


def energy_distance_loss(student: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Energy distance ``(N,)`` with the l1 ground metric, differentiable in ``student``.

    .. math::
        2\,\mathbb{E}\|\pi - \pi'\|_1 - \mathbb{E}\|\pi - \tilde\pi\|_1
        - \mathbb{E}\|\pi' - \tilde\pi'\|_1

    By sorting each class; unbiased, so it can be slightly negative. Draws are ``(S, N, C)`` and
    ``(T, N, C)``. ``weights`` ``(K, N)``, summing to one over K, are of K strata of S / K student
    draws each, one after the other.
    """
    strata = 1 if weights is None else len(weights)
    if min(len(student) // strata, len(teacher)) < 2:
        raise ValueError(
            "`student` and `teacher` must hold at least two draws per input each; got "
            f"{len(student)} and {len(teacher)}. One draw says nothing about the spread."
        )
    student, teacher = (draws.movedim(0, -1).contiguous() for draws in (student, teacher))
    if weights is not None:
        return _stratified(student, teacher, weights)
    n, m = student.shape[-1], teacher.shape[-1]
    own, other = mean_absolute_difference(student), mean_absolute_difference(teacher)
    pooled = mean_absolute_difference(torch.cat([student, teacher], -1))
    pairs = (n + m) * (n + m - 1) * pooled - n * (n - 1) * own - m * (m - 1) * other
    return (pairs / (n * m) - own - other).sum(-1)


@torch.no_grad()
def energy_slopes(points: Tensor, samples: slice, draws: slice) -> Tensor:
    r"""Gradient of the energy distance's witness at points ``(N, P, C)``, samples and draws there.

    .. math:: \nabla_k \psi(\pi) = F_k(\pi_k) - G_k(\pi_k)

    with the distribution functions F of the samples and G of the draws, class by class, in which a
    draw does not count itself. One sort gives all.
    """
    table = points.transpose(1, 2)
    order = table.argsort(-1)
    gap = torch.zeros_like(table)
    for own, sign in ((samples, 1.0), (draws, -1.0)):
        mass = torch.zeros(points.shape[1], dtype=points.dtype, device=points.device)
        mass[own] = 1.0
        below = mass[order].cumsum(-1)
        share = torch.empty_like(table).scatter_(-1, order, below) - mass
        others = (mass.sum() - mass).clamp_min(1.0)
        gap += sign * share / others
    return gap.transpose(1, 2)


def _stratified(student: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    r"""Energy distance ``(N,)`` of draws ``(N, C, S)`` in K strata to draws ``(N, C, T)``.

    By distribution functions, :math:`\mathbb{E}|X - Y| = \int F (1 - G) + G (1 - F)`. A draw makes
    no pair with itself: what that takes from the pairs within a stratum is put back.
    """
    n, m = student.shape[-1], teacher.shape[-1]
    size = n // len(weights)
    each = (weights / size).T.repeat_interleave(size, -1)[:, None].expand(student.shape)
    table, order = torch.cat([student, teacher], -1).sort(-1)
    gaps = table.diff(dim=-1)
    mine = torch.nn.functional.pad(each, (0, m)).gather(-1, order).cumsum(-1)[..., :-1]
    theirs = (order >= n).to(table.dtype).cumsum(-1)[..., :-1] / m
    cross = (gaps * (mine * (1 - theirs) + theirs * (1 - mine))).sum(-1)
    within = mean_absolute_difference(student.unflatten(-1, (len(weights), size)))  # (N, C, K)
    own = 2 * (gaps * mine * (1 - mine)).sum(-1)
    own = own + (weights.T[:, None].square() * within).sum(-1) / size
    other = 2 * (gaps * theirs * (1 - theirs)).sum(-1) * m / (m - 1)
    return (2 * cross - own - other).sum(-1)
