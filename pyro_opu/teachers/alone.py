"""Whether a teacher says the same of a row whatever rows stand beside it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.rng import seeded
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.utils.chunks import spread_rows

__all__ = ["check_alone"]

#: Rows that are asked at, at most and at least; draws, and numbers where noise is in the way.
ROWS, FEWEST, DRAWS, NUMBERS = 24, 6, 16, 2**18
#: What may differ by rounding: a share of the range of an output, and of its size.
OF_RANGE, OF_SIZE = 2e-3, 1e-4
#: Standard errors of a mean over draws beyond noise: by chance once in 10^6 teachers.
ERRORS = 6.0


@torch.no_grad()
def check_alone(teacher: BaseTeacher, x: Tensor) -> None:
    """Refuse a teacher whose answer at a row depends on the other rows that it is asked at.

    A few rows are asked again with fewer others, in another order. A teacher that draws noise for
    each row is asked with other rows beside them, so that the noise stays; and where draws are
    joint over the rows, as of a Gaussian process, moments of many draws must stay.

    Raises:
        ValueError: it does.
    """
    if len(x) < FEWEST:
        return
    few = spread_rows(x, ROWS)
    some, beside, other = few[: len(few) // 3 * 3].chunk(3)
    order = torch.arange(len(some) - 1, -1, -1, device=x.device)
    whole = _asked(teacher, torch.cat([some, beside]), DRAWS)
    own = whole[:, : len(some)]
    if _apart(own[:, order], _asked(teacher, some[order], DRAWS), whole) <= 1:
        return
    if not _repeats(teacher, some):
        many = max(DRAWS, NUMBERS // whole[0].numel())
        first, second = (
            _asked(teacher, torch.cat([some, each]), many)[:, : len(some)].double()
            for each in (beside, other)
        )
        if _apart(first, second, whole) <= 1 or len(first) < DRAWS:
            return
        if not (_moved(first, second) or _moved(first.square(), second.square())):
            return
    raise ArgumentError(
        "`source` must say the same of a row whatever rows it is asked at with it; asked alone or "
        "in another order it does not. Scale x by numbers of the training rows, not by x.mean(0) "
        "or a softmax over rows; look nothing up by len(x) or a row's place; call .eval() on "
        "layers that normalise over the batch."
    )


def _asked(teacher: BaseTeacher, x: Tensor, most: int, seed: int = 0) -> Tensor:
    """The same draws at every call of the same seed, as far as they do not depend on ``x``."""
    with seeded(seed):
        return teacher.draws(x, min(most, teacher.max_draws or most))


def _repeats(teacher: BaseTeacher, x: Tensor) -> bool:
    """Whether all draws are those of another call, so that there is no noise in them."""
    if teacher.max_draws is None:
        return False
    one, again = (_asked(teacher, x, teacher.max_draws, seed) for seed in (0, 1))
    return _apart(one, again, one) <= 1


def _apart(one: Tensor, again: Tensor, whole: Tensor) -> float:
    """Largest difference of two answers in units of what rounding may make."""
    numbers = whole.flatten(0, 1).float()
    rounding = max(OF_RANGE, 4 * torch.finfo(whole.dtype).eps)
    spread = rounding * (numbers.amax(0) - numbers.amin(0)) + OF_SIZE * numbers.abs().amax(0)
    return float(((one - again).abs() / spread.clamp_min(1e-12)).max())


def _moved(one: Tensor, again: Tensor) -> bool:
    """Whether the mean over draws differs by more than noise at some row."""
    gap = one - again
    error = gap.std(0) / math.sqrt(len(gap))
    return bool((gap.mean(0).abs() > ERRORS * error + 1e-6).any())
