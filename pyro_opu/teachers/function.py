"""A function that returns draws on the simplex as a teacher."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_opu.teachers.base import BaseTeacher, Teacher


class FunctionTeacher(BaseTeacher):
    r"""A callable ``x -> (S, N, C)`` of class probabilities, or ``(x, num_draws) -> (S, N, C)``.

    Without a ``num_draws`` parameter the function's own ``S`` is the size of the posterior and
    fewer draws are a random subset; the function must then use the same draws for every input.

    Args:
        function: Returns points of the simplex, one :math:`\theta_s` for all rows where possible.

    Raises:
        TypeError: at the first call, when the function returns no floating tensor.
        ValueError: at the first call, when the result is not ``(S, N, C)`` with C >= 2 and rows on
            the simplex, or holds another number of draws than asked for.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self._takes_draws = _accepts_num_draws(function)
        self.chunk_rows = 2**20  # the function holds all its draws at once anyway

    def _pick(self, x: Tensor, num_draws: int) -> Tensor | range:
        if self._takes_draws:
            return range(num_draws)
        return torch.randperm(self._held(x))[:num_draws].sort().values

    def _checked(self, num_draws: int | None) -> int:
        if num_draws is None and not self._takes_draws:
            return 2**62  # all that the function gives
        return super()._checked(num_draws)

    def _held(self, x: Tensor) -> int:
        """Draws the function gives, learnt from one row."""
        if self.max_draws is None:
            self.max_draws = len(check_simplex(self.function(x[:1]), 1))
        return self.max_draws

    def _evaluate(self, draws: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        if self._takes_draws:
            values = check_simplex(self.function(x, len(draws)), len(x))
            if len(values) != len(draws):
                raise ValueError(
                    f"the callable was asked for num_draws={len(draws)} and returned "
                    f"{len(values)} draws; return a tensor of shape (num_draws, N, C)."
                )
        else:
            values = check_simplex(self.function(x), len(x))[draws.to(x.device)]
        return values.clamp_min(torch.finfo(values.dtype).tiny).log()


class MembersTeacher(FunctionTeacher):
    """A user's own object with the members of :class:`Teacher`, chunked and checked like all."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(teacher.probs)
        self._takes_draws = True
        self.max_draws = getattr(teacher, "max_draws", None)
        self._num_classes = teacher.num_classes


def _accepts_num_draws(function: Callable[..., Any]) -> bool:
    try:
        return "num_draws" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return False


def check_simplex(values: Any, rows: int) -> Tensor:  # noqa: ANN401
    """Return ``values`` if they are draws ``(S, N, C)`` on the simplex.

    Raises:
        TypeError: not a floating tensor.
        ValueError: another shape, one class, NaN, or rows that are not probabilities.
    """
    if not isinstance(values, Tensor) or not values.is_floating_point():
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(
            f"the callable must return a floating tensor of class probabilities; got {found}."
        )
    if values.ndim != 3 or values.shape[1] != rows:
        raise ValueError(
            f"the callable must return draws of shape (S, N, C) with N = {rows}; got "
            f"{tuple(values.shape)}. Draws come first, then inputs, then classes."
        )
    if values.shape[-1] < 2:
        raise ValueError(
            f"the callable must return at least two classes (C >= 2); got {tuple(values.shape)}. "
            "For two classes return [1 - p, p]."
        )
    off = (values.sum(-1) - 1).abs().max()
    if not (values.min() >= 0 and off < 1e-3):
        raise ValueError(
            "the callable must return probabilities: rows that are >= 0 and sum to 1; got a "
            f"smallest entry {float(values.min()):.3g} and a sum off by {float(off):.3g}. "
            "Apply softmax over the last axis?"
        )
    return values.detach()
