r"""How near a student is to its teacher: three questions, their limits, and one grade.

- **mean**: the number of independent posterior draws whose mean errs as much as the student's. The
  mean of n draws has a KL of V / 2 n from the posterior's. A perfect student, judged by S of the M
  draws that a posterior holds, has one of V (1 - S / M) / 2 S, the *attainable*; what a student has
  beyond it is its own error.
- **epistemic**: the typical factor by which its epistemic part (mutual information; of a real y the
  variance of the mean) is off at one input.
- **shape**: its energy distance as a share of the draws' spread, 1 / n for n draws; and the shares
  of the draws in its central 50 % and 90 % intervals.

An answer is True or False only if rows and draws tell it from the limit, otherwise ``None``. Errors
below 1e-5 nats are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class Limits(NamedTuple):
    """What a student of a grade keeps to."""

    draws: float  #: Draws whose mean is as near, at least; or all that the posterior holds.
    factor: float  #: Of the epistemic part at single inputs, at most.
    share: float  #: Energy distance as a share of the draws' spread, at most.
    off: float  #: Coverage of the central intervals less what they promise, at most.


#: The grades, the best first. A faithful student is at least good.
EXCELLENT = "excellent"
GRADES = {
    EXCELLENT: Limits(500, 1.1, 0.01, 0.05),
    "good": Limits(100, 1.25, 0.03, 0.1),
    "fair": Limits(30, 1.6, 0.1, 0.2),
}
POOR, NOT_GRADED, FAITHFUL = "poor", "not graded", GRADES["good"]
#: Factor that the mean epistemic part of all inputs may be off by; that of a class of certainty as
#: much as single inputs.
MOST_MEAN = 1.1
#: Nor may the rank correlation with the teacher's epistemic part lie below the one, where that of
#: the teacher, asked again, is at least the other: it would be of no use to a detector.
LEAST_RANKS, TEACHER_RANKS = 0.5, 0.8
#: Nats, or shares of the variance of y, that are too small to matter.
NOTHING = 1e-5
#: As near as so many draws is near enough to say no more.
MOST_DRAWS = 10_000.0
#: Inputs below which nothing is told, and below which a class of certainty is not judged by itself.
FEWEST_ROWS, FEWEST = 20, 10
#: Standard errors by which a number must lie within its limit, and beyond it: many are tested.
WITHIN, BEYOND = 2.0, 3.0
#: Standard error of an input's epistemic part, as a share of it, above which it tells no factor.
MOST_NOISE = 0.25
#: Quantiles of the absolute value of a normal.
_QUANTILES = np.array([NormalDist().inv_cdf(0.5 + (i + 0.5) / 32) for i in range(16)])


class Finding(NamedTuple):
    """A number, its 95 % interval over inputs, and whether it keeps to its limit."""

    value: float
    low: float
    high: float
    within: bool | None  #: ``None`` where it cannot be told.


def as_draws(ratio: float, num_draws: float, held: float | None = None) -> float:
    r"""Independent draws whose mean errs as a student's, by its KL as a multiple of the attainable.

    .. math:: n = \frac{S}{(r - 1)\,(1 - S / M)}

    Args:
        ratio: The KL over the attainable, r.
        num_draws: The S draws that judge.
        held: The M that the posterior holds; ``None`` or infinite where it draws afresh.

    Returns:
        At most 10,000, which students near the attainable have.

    Example:
        >>> as_draws(3.0, 500), as_draws(3.0, 500, held=1000), as_draws(1.0, 500)
        (250.0, 500.0, 10000.0)
    """
    left = 1 - num_draws / (held or math.inf)
    if math.isnan(ratio):
        return math.nan
    return min(num_draws / max((ratio - 1) * left, 1e-12), MOST_DRAWS)


def in_draws(value: float) -> str:
    """A number of draws in words.

    Example:
        >>> in_draws(347.2), in_draws(10_000.0), in_draws(2.345)
        ('347', 'over 10,000', '2.3')
    """
    if math.isnan(value):
        return "n/a"
    if value >= MOST_DRAWS:
        return f"over {MOST_DRAWS:,.0f}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def of_mean(
    kl: Array, attainable: Array, num_draws: float, held: float, expected: Array | None = None
) -> Finding:
    """The error of the mean in draws, from the KL of every input ``(N,)`` and the attainable.

    Where more is ``expected`` of a perfect student, this decides what is within the limit.
    """
    one = float(attainable.mean())
    ratio = quotient(float(kl.mean()), one)
    error = quotient(standard_error(kl - ratio * attainable), one)
    draws, low, high = (
        as_draws(ratio + errors * error, num_draws, held) for errors in (0.0, WITHIN, -WITHIN)
    )
    allowed = attainable if expected is None else max(attainable, expected, key=np.mean)
    share = num_draws / max(1 - num_draws / held, 1e-12) / min(FAITHFUL.draws, held)
    beyond = kl - allowed * (1 + share)
    return Finding(draws, low, high, told(float(beyond.mean()) - NOTHING, standard_error(beyond)))


def typical_factor(mine: Array, theirs: Array) -> float:
    r"""The factor between numbers that matter ``(N,)``: exp of the median of :math:`|\log a / b|`.

    Example:
        >>> round(typical_factor(np.array([1.0, 2.0, 8.0]), np.array([2.0, 2.0, 2.0])), 3)
        2.0
    """
    some = theirs > NOTHING
    if not some.any():
        return math.nan
    return math.exp(float(np.median(_log_factors(mine[some], theirs[some]))))


def _log_factors(mine: Array, theirs: Array) -> Array:
    """Sizes of the logarithms of ratios, at most 50."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.abs(np.log(np.maximum(mine, 0) / np.maximum(theirs, 0)))
    found: Array = np.nan_to_num(sizes, nan=0.0, posinf=50.0).clip(max=50.0)
    return found


def relative_noise(per_draw: Tensor, held: float) -> Tensor:
    """Standard error of means over draws ``(S, N)``, as a share of them, ``(N,)``."""
    values = per_draw.double()
    left = math.sqrt(max(0.0, 1 / len(values) - 1 / held))
    return values.std(0) * left / values.mean(0).clamp_min(torch.finfo(values.dtype).tiny)


def single_factor(mine: Tensor, theirs: Tensor, per_draw: Tensor, held: float) -> float:
    """The typical factor of :func:`of_single_inputs`, of draws that are not joint over inputs."""
    noise = relative_noise(per_draw, held)
    mine_, theirs_, noise_ = (each.double().cpu().numpy() for each in (mine, theirs, noise))
    return of_single_inputs(mine_, theirs_, noise_, 0.0).found.value


def or_none(value: float) -> float | None:
    """A number for a file, where NaN is equal to nothing."""
    return None if math.isnan(value) else value


class SingleInputs(NamedTuple):
    """The epistemic part at single inputs."""

    found: Finding  #: The typical factor by which it is off; NaN where no draws tell.
    by_chance: float  #: That of a perfect student, by the noise of the draws that judge.


def of_single_inputs(
    mine: Array, theirs: Array, noise: Array, common: float, redrawn: Array | None = None
) -> SingleInputs:
    r"""Typical factor between epistemic parts ``(N,)``, without what the judge's noise adds.

    The median of :math:`|\log a / b|` over inputs, of whose square that by chance is taken off:
    exact where both are normal. Inputs that do not matter, or whose noise says nothing, are left
    out.

    Args:
        mine: The student's.
        theirs: The teacher's, by its draws.
        noise: The standard error of the latter, as a share of it.
        common: Variance of their mean: inputs may share their draws.
        redrawn: The student's, by as many draws of its own, where these are known: the rare draws
            of sure posteriors may all be missing, and their noise with them.
    """
    some = (theirs > NOTHING) & (noise <= MOST_NOISE)
    count = int(some.sum())
    if not count:
        nothing = True if max(mine.mean(), theirs.mean()) <= NOTHING else None
        return SingleInputs(Finding(math.nan, math.nan, math.nan, nothing), math.nan)
    off = _log_factors(mine[some], theirs[some])
    chance = float(np.median(np.outer(noise[some], _QUANTILES)))
    if redrawn is not None:
        chance = max(chance, float(np.median(_log_factors(redrawn[some], mine[some]))))

    def factor(errors: float) -> float:
        """The typical one, or an end of an interval of so many standard errors."""
        at = 0.5 + errors / (2 * math.sqrt(count))
        if not 0 <= at <= 1:
            return 1.0 if at < 0 else math.inf
        left = float(np.quantile(off, at)) ** 2 - chance**2
        log = math.sqrt(max(left, 0.0)) + errors * common
        return math.exp(min(max(log, 0.0), 50.0))

    within = False if factor(-BEYOND) > FAITHFUL.factor else None
    if count >= FEWEST_ROWS and max(factor(WITHIN), math.exp(chance)) <= FAITHFUL.factor:
        within = True
    found = Finding(factor(0.0), factor(-WITHIN), factor(WITHIN), within)
    return SingleInputs(found, math.exp(chance))


def of_shape(
    distance: Array, spread: Array, covered: dict[float, Array], num_draws: float, held: float
) -> tuple[Finding, dict[float, Finding]]:
    """The energy distance as a share of the spread, and the coverage of central intervals.

    Draws may be joint over inputs: a share of them in an interval errs by chance as that of S draws
    at most.
    """
    mean, error, whole = float(distance.mean()), standard_error(distance), float(spread.mean())
    share, low, high = (quotient(mean + e * error, whole) for e in (0.0, -WITHIN, WITHIN))
    beyond = distance - FAITHFUL.share * spread
    within = told(float(beyond.mean()) - NOTHING, standard_error(beyond))
    intervals = {}
    for level, shares in covered.items():
        value = float(shares.mean())
        joint = math.sqrt(level * (1 - level) * max(0.0, 1 / num_draws - 1 / held))
        error = math.hypot(standard_error(shares), joint)
        ends = value - WITHIN * error, value + WITHIN * error
        intervals[level] = Finding(value, *ends, told(abs(value - level) - FAITHFUL.off, error))
    return Finding(share, low, high, within), intervals


def quotient(value: float, reference: float, least: float = 0.0) -> float:
    """NaN where the reference is no more than ``least``, as of draws that agree."""
    return float(value / reference) if reference > least else math.nan


def standard_error(values: Array) -> float:
    """Standard error of the mean; infinite for one value."""
    count = len(values)
    return float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf


def told(beyond: float, error: float) -> bool | None:
    """Whether a number keeps to its limit, by how far it lies beyond it, and its standard error."""
    if beyond > BEYOND * error:
        return False
    return True if beyond + WITHIN * error <= 0 else None


def all_of(answers: Sequence[bool | None]) -> bool | None:
    """False if one is, True if all are, ``None`` otherwise."""
    if any(each is False for each in answers):
        return False
    return True if all(answers) else None


def grade_of(
    draws: float,
    factor: float,
    share: float,
    off: float = 0.0,
    held: float = math.inf,
    faithful: bool | None = None,
) -> str:
    """The best grade whose limits the numbers keep to; NaN keeps to any.

    What is not faithful, in some class of certainty for instance, is fair at best.

    Example:
        >>> grade_of(340, 1.08, 0.004), grade_of(340, 1.08, 0.004, faithful=False)
        ('good', 'fair')
    """
    for name, limits in GRADES.items():
        if faithful is False and limits.draws >= FAITHFUL.draws:
            continue
        beyond = (
            draws < min(limits.draws, held),
            factor > limits.factor,
            share > limits.share,
            off > limits.off,
        )
        if not any(beyond):
            return name
    return POOR
