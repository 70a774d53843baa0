"""Energy distance: a divergence whose best witness is known, so that it needs no critic."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, in_range, one_of, positive_int
from pyro_opu.distributions import SimplexDistribution, as_answer
from pyro_opu.metrics.marginals import mean_absolute_difference
from pyro_opu.objectives.base import Objective
from pyro_opu.objectives.cross_entropy import cross_entropy

#: Teacher's draws per input and step where all pairs are compared.
MOST_PAIRED = 32


class EnergyDistance(Objective):
    r"""Energy distance between the teacher's draws and draws of the student.

    An integral probability metric whose best witness is known,
    :math:`\psi(\pi) = \tfrac12(\mathbb{E}_q\|\pi - \pi'\| - \mathbb{E}_p\|\pi - \pi'\|)`, so it
    needs no critic.

    With the l1 ground metric it is the sum of the distances of single numbers: it costs a sort, and
    says nothing of what they have in common, such as a curve that all draws are on. With "l2" it is
    zero for the same joint distribution alone, and compares all pairs of draws.

    Args:
        num_samples: Student draws per input.
        likelihood: Weight of the expected log-likelihood of labels beside it.
        ground: Ground metric, "l1" or "l2".

    References:
        Szekely and Rizzo (2013), Energy statistics; ``pyro.infer.EnergyDistance`` for the same idea
        between data and a model.
    """

    learning_rate = 3e-5
    ground: Literal["l1", "l2"] = "l1"

    def __init__(
        self,
        num_samples: int = 64,
        likelihood: float = 0.0,
        ground: Literal["l1", "l2"] = "l1",
    ) -> None:
        super().__init__()
        if one_of("ground", ground, ("l1", "l2")) == "l2":
            self.ground = ground
            self.most_draws = self.kept = MOST_PAIRED
            self.sufficient = type(self).statistics is EnergyDistance.statistics
        num_samples = positive_int("num_samples", num_samples, 2)
        in_range("likelihood", likelihood, 0)
        self.num_samples, self.likelihood = num_samples, likelihood

    parts_at = Objective.parts_at  # from whatever draws are kept

    def statistics(self, draws: Tensor) -> dict[str, Tensor]:
        """The draws, inputs first; where pairs are compared, a few of each input's own.

        They are evenly spaced, from a place that is chosen at random for every input.
        """
        count, rows = draws.shape[:2]
        if self.most_draws is None or count <= self.most_draws:
            return super().statistics(draws)
        steps = torch.arange(self.most_draws, device=draws.device) * (count // self.most_draws)
        chosen = (torch.randint(count, (rows,), device=draws.device) + steps[:, None]) % count
        few = draws.gather(0, chosen[..., None].expand(-1, -1, draws.shape[-1]))
        return super().statistics(few)

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"energy"}``, and "log_likelihood" (negated) where it has a weight."""
        answer = as_answer(student)
        samples, weights = answer.stratified_rsample(self.num_samples)
        distance = energy_distance_loss if self.ground == "l1" else joint_energy_distance
        parts = {"energy": distance(samples, answer.comparable(draws), weights).mean()}
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
    _check_counts(student, teacher, weights)
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


def joint_energy_distance(
    student: Tensor, teacher: Tensor, weights: Tensor | None = None
) -> Tensor:
    r"""Energy distance ``(N,)`` with the l2 ground metric, differentiable in ``student``.

    It takes all pairs of whole vectors; arguments as in :func:`energy_distance_loss`, K numbers.
    """
    strata = _check_counts(student, teacher, weights)
    mine, theirs = student.movedim(0, 1), teacher.movedim(0, 1)
    n, m = len(student), len(teacher)
    each = student.new_full((n, len(mine)), 1 / n)
    if weights is not None:
        each = (weights * strata / n).repeat_interleave(n // strata, 0)
    each = each.T  # (N, S)
    own = _distances(mine, mine)
    # A draw makes no pair with itself: what that takes from its stratum's pairs is put back.
    size = n // strata
    pairs = own * each[:, :, None] * each[:, None, :]
    within = pairs.unflatten(1, (strata, size)).unflatten(3, (strata, size))
    within = within.diagonal(dim1=1, dim2=3).sum((1, 2, 3))
    of_own = pairs.sum((1, 2)) + within / (size - 1)
    of_teacher = _distances(theirs, theirs).sum((1, 2)) / (m * (m - 1))
    cross = (_distances(mine, theirs).mean(-1) * each).sum(-1)
    return 2 * cross - of_own - of_teacher


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances ``(N, S, T)``, without the products that round small ones to zero."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _check_counts(student: Tensor, teacher: Tensor, weights: Tensor | None) -> int:
    """The number of strata, of two draws at least."""
    strata = 1 if weights is None else len(weights)
    if min(len(student) // strata, len(teacher)) < 2:
        raise ArgumentError(
            "`student` and `teacher` must hold at least two draws per input each; got "
            f"{len(student)} and {len(teacher)}. One draw says nothing about the spread."
        )
    return strata


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
