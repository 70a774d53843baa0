"""What a run shows while it goes on: one line for each phase, with the time that it has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm.auto import tqdm

__all__ = ["line", "tracked"]

T = TypeVar("T")
#: All but the bar takes about 65 columns of 80.
LAYOUT = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
#: Weight of the last refresh, a tenth of a second, in the rate that the time left is taken from.
#: Many refreshes are averaged, since every hundredth step, an evaluation, is a slow one; all would
#: keep the slow first steps of a network that is compiled or of a critic.
SMOOTHING = 0.01
#: Phases of less time, seconds, are not shown.
BRIEF = 0.5


def line(phase: str, total: int, done: int = 0, *, show: bool = True, delay: float = 0.0) -> tqdm:
    """A line for one phase, to be used as a context: its time is not that of other phases."""
    return tqdm(
        desc=f"{phase:<14}",
        total=total,
        initial=done,
        disable=not show,
        bar_format=LAYOUT,
        smoothing=SMOOTHING,
        delay=delay,
    )


def tracked(items: Iterable[tuple[int, T]], phase: str, total: int, show: bool) -> Iterator[T]:
    """The items, each with the part of the ``total`` that it is, under a line for this phase."""
    with line(phase, total, show=show, delay=BRIEF) as shown:
        for part, item in items:
            yield item
            shown.update(part)
