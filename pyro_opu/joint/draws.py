"""Draws of a posterior at a pool of inputs, checked to be joint over its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_seed, check_tensor
from pyro_opu.reports.answers import at_border, is_student, teacher_of
from pyro_opu.rng import seeded

__all__ = ["PoolDraws", "joint_draws"]

#: Rows of the pool that are asked twice in the same call.
TWICE = 8
#: Root mean square of the difference between two answers that may be rounding, in their own units.
ROUNDING = 1e-4
_ADVICE = (
    'Pass the teacher, or a student of distill(..., guide="joint"), whose draw s is one function '
    "of all rows."
)


@dataclass(frozen=True, eq=False)
class PoolDraws:
    r"""S draws of a posterior at the N rows of a pool, each draw one :math:`\theta_s` for all rows.

    Every function of :mod:`pyro_opu.joint` takes them as its ``source``, with ``x=None``, so that
    several questions cost one evaluation.

    Attributes:
        kind: "classes" or "real".
        draws: Class probabilities ``(S, N, C)``, or the mean of y and the logarithm of the noise's
            deviation, ``(S, N, 2)``.
    """

    kind: str
    draws: Tensor

    def __repr__(self) -> str:
        return f"PoolDraws({self.kind}, {tuple(self.draws.shape)})"

    def probs(self, question: str) -> Tensor:
        """The class probabilities ``(S, N, C)``, for a ``question`` that is about labels."""
        if self.kind != "classes":
            raise ArgumentTypeError(
                f"`source` must be of class labels for {question}; got one of a real y. For a real "
                "y take covariance(source, x)."
            )
        return self.draws

    def values(self, weights: Tensor | None = None) -> Tensor:
        """What each row counts, on average over y under each draw, ``(S, N)`` in float64.

        ``weights`` are what each class counts, ``(C,)`` or ``(N, C)``, with two classes by default
        ``[0, 1]``; or factors ``(N,)`` of a real y, by default ones.
        """
        counts = self._counts(weights)
        if self.kind == "real":
            return self.draws[..., 0].double() * counts
        return torch.stack([(draw * counts).sum(-1) for draw in self.draws])

    def noise(self, weights: Tensor | None = None) -> Tensor:
        """Variance of what each row counts given the draw, ``(S, N)``; see :meth:`values`."""
        counts, values = self._counts(weights), self.values(weights)
        if self.kind == "real":
            return (2 * self.draws[..., 1].double()).exp() * counts.square()
        pairs = zip(self.draws, values, strict=True)
        off = ((draw * (counts - value[:, None]).square()).sum(-1) for draw, value in pairs)
        return torch.stack(list(off))

    def outcomes(self, weights: Tensor | None = None) -> Tensor:
        """What each row counts with y drawn under each draw, ``(S, N)``; see :meth:`values`."""
        if self.kind == "real":
            spread = self.noise(weights).sqrt()
            return self.values(weights) + spread * torch.randn_like(spread)
        counts = self._counts(weights).expand(self.draws.shape[1:])
        rows = torch.arange(len(counts), device=counts.device)
        return torch.stack([counts[rows, draw_labels(draw)] for draw in self.draws])

    def _counts(self, weights: Tensor | None) -> Tensor:
        """Checked weights in float64, or their default."""
        rows, columns = self.draws.shape[1:]
        real = self.kind == "real"
        if weights is None and (real or columns == 2):
            weights = torch.ones(rows) if real else torch.tensor([0.0, 1.0])
        form = f"({rows},)" if real else f"({columns},) or ({rows}, {columns})"
        advice = (
            "Give each row a factor, -1 to subtract it."
            if real
            else "It says what a class counts: torch.eye(C)[k] counts the rows of class k."
        )
        given = check_tensor("weights", weights, form, advice)
        allowed = {(rows,)} if real else {(columns,), (rows, columns)}
        complex_ = given.is_complex()
        if (
            complex_
            or tuple(given.shape) not in allowed
            or not torch.isfinite(given.double()).all()
        ):
            shape = tuple(given.shape)
            found = given.dtype if complex_ else shape if shape not in allowed else "no finite ones"
            raise ArgumentError(
                f"`weights` must be finite numbers of shape {form}; got {found}. {advice}"
            )
        return given.to(self.draws.device, torch.float64)


def draw_labels(probs: Tensor) -> Tensor:
    """A label for each row of probabilities ``(..., C)``."""
    below = probs.cumsum(-1)  # to a sum that rounding may keep off 1
    return (below[..., :-1] <= below[..., -1:] * torch.rand_like(below[..., :1])).sum(-1)


def joint_draws(
    source: Any, x: Any, num_draws: int | None = None, seed: int | None = None
) -> PoolDraws:
    """Draw functions from a posterior and evaluate each at all rows of a pool.

    Joint draws are recognised by a few rows that stand twice in the same call: a draw that
    is one function gives both copies the same answer. All draws are held in memory.

    Args:
        source: What :func:`~pyro_opu.as_teacher` takes, a regressor, a student of
            ``distill(..., guide="joint")``; or the result of this function, with ``x=None``.
        x: The pool, ``(N, ...)``, or a tuple or dict of tensors with N rows each.
        num_draws: S, at least 2; by default all that the source holds, or its default number.
        seed: Makes the result reproducible, and leaves torch's generators as they were.

    Raises:
        TypeError: ``source`` is a marginal student or a guide, or cannot be made a teacher.
        ValueError: its draws are independent between rows; fewer than two draws.

    Example:
        >>> weights = torch.randn(40, 2, 3)
        >>> joint_draws(lambda x: torch.softmax(x @ weights, -1), torch.randn(5, 2))
        PoolDraws(classes, (40, 5, 3))
    """
    if isinstance(source, PoolDraws):
        if x is not None:
            raise ArgumentTypeError("`x` must be None where `source` holds draws of its own pool.")
        return source
    found: PoolDraws = _drawn(source, x, num_draws, check_seed(seed))
    return found


def _drawn(source: Any, x: Tensor, num_draws: int | None, seed: int | None) -> PoolDraws:
    _, x, source = at_border(x, source)
    joint = getattr(source, "joint", False)
    if isinstance(source, Distribution) or (not joint and is_student(source, x)):
        raise ArgumentTypeError(
            f"`source` must draw jointly for all rows; got a {type(source).__name__}, a marginal "
            f"answer or student, whose draws are independent between rows. {_ADVICE}"
        )
    twice = torch.linspace(0, len(x) - 1, min(TWICE, len(x)), device=x.device).long()
    asked = torch.cat([x, x[twice]])
    with torch.no_grad(), seeded(seed):
        if joint:
            kind, draws = source.outcome.kind, source.draws(asked, num_draws, seed)
        else:
            teacher = teacher_of(source, x)
            kind, draws = teacher.outcome.kind, teacher.draws(asked, num_draws)
    if kind not in ("classes", "real"):
        raise ArgumentTypeError(
            "`source` must observe one label or one real y in every row; got several numbers. Pass "
            "as_teacher(predictive, site='...') for one of them."
        )
    if len(draws) < 2:
        raise ArgumentError(f"`num_draws` must be at least 2, or nothing varies; got {len(draws)}.")
    pool = draws[:, : len(x)]
    _check_joint(pool[:, twice], draws[:, len(x) :], kind)
    return PoolDraws(kind, pool)


def _check_joint(first: Tensor, again: Tensor, kind: str) -> None:
    """Refuse draws that differ between two copies of a row about as much as between each other."""
    if kind == "real":
        first, again = first[..., :1], again[..., :1]
    apart = (first.double() - again.double()).square().mean()
    # Independent copies are apart by twice the variance.
    if apart > first.double().var(0).mean() and apart > ROUNDING**2 * first.square().mean():
        raise ArgumentError(
            "`source` must give draws that are joint over rows; got other answers at two copies of "
            f"a row in the same call, as if drawn for every row by itself. {_ADVICE}"
        )
