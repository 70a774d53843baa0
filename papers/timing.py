"""Calls timed in turn, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

#: Rounds that are timed at least, however long they take.
ROUNDS = 3


class Timing(NamedTuple):
    """Seconds of a call: the median, the distance between the quartiles, and how many runs."""

    median: float
    iqr: float
    runs: int

    def times(self, factor: float) -> Timing:
        """The same of a call that takes so many times as long."""
        return Timing(factor * self.median, factor * self.iqr, self.runs)


def spans(
    ways: dict[str, Callable[[], object]],
    budget: float,
    wait: Callable[[], object] = lambda: None,
    *,
    warm: bool = False,
) -> dict[str, Timing]:
    """Each call timed in turn for ``budget`` seconds, and at least three rounds.

    Args:
        ways: Calls by name.
        budget: Seconds in all.
        wait: Returns when the device has done what was asked of it; for a GPU.
        warm: All have run before; else each runs once unmeasured.
    """
    for way in () if warm else ways.values():
        way()
    wait()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    end, rounds = time.perf_counter() + budget, 0
    while rounds < ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            wait()
            taken[name].append(time.perf_counter() - start)
    return {name: timing(values) for name, values in taken.items()}


def timing(values: list[float]) -> Timing:
    """Of at least two measurements."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(middle, high - low, len(values))


def timed(ways: dict[str, Callable[[], object]], budget: float) -> dict[str, float]:
    """Median seconds of each; see :func:`spans`."""
    return {name: found.median for name, found in spans(ways, budget).items()}
