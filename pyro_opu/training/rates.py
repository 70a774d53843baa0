"""Learning rates by the number of the step: a rise, and a fall at the end or at a plateau."""

from __future__ import annotations

import math
from collections.abc import Callable

#: Learning rate by the number of the step.
Schedule = Callable[[int], float]


def _scheduled(rate: float, rise: int, fall: Callable[[int], float]) -> Schedule:
    """A rise to ``rate``, then by the cosine of the angle ``fall`` down to a hundredth of it."""

    def schedule(step: int) -> float:
        if step < rise:
            return rate * ((step + 1) / rise)
        return rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(fall(step))))

    return schedule


def _rise(steps: int) -> int:
    return min(50, max(1, steps // 10))


def cosine(rate: float, steps: int) -> Schedule:
    """A short rise to ``rate``, then a cosine down to a hundredth of it."""
    rise = _rise(steps)
    return _scheduled(rate, rise, lambda step: math.pi * (step - rise) / max(1, steps - rise))


def falling(rate: float, steps: int) -> Schedule:
    """A cosine from ``rate`` down to a hundredth of it, as :func:`cosine` without a rise."""
    return _scheduled(rate, 0, lambda step: math.pi * step / max(1, steps))


def settling(
    rate: float, steps: int, settle: int, moved: Callable[[], tuple[int, int] | None]
) -> Schedule:
    """A short rise to ``rate``, which then stays; at last a cosine down to a hundredth of it.

    That settling is the last ``settle`` of the steps, or from and to where ``moved`` says.
    """

    def fall(step: int) -> float:
        begin, end = moved() or (steps - settle, steps)
        return math.pi * min(1.0, max(0, step - begin) / max(1, end - begin))

    return _scheduled(rate, _rise(steps), fall)
