"""What a run shows while it goes on: one line for each phase, with the time that it has left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm.auto import tqdm

__all__ = ["foretold", "line", "say", "tracked"]

T = TypeVar("T")
#: All but the bar takes about 65 columns of 80.
LAYOUT = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
#: Weight of the last refresh, a tenth of a second, in the rate that the time left is taken from.
#: Many refreshes are averaged, since every hundredth step, an evaluation, is a slow one; all would
#: keep the slow first steps of a network that is compiled or of a critic.
SMOOTHING = 0.01
#: Phases of less time, seconds, are not shown.
BRIEF = 0.5
#: Seconds from which on it is said before how long a run takes, and in minutes.
LONG, MINUTES = 30.0, 120.0


def foretold(labels: float, steps: float, quick: float | None, gpu: bool) -> str | None:
    """How long a run takes, in words; ``None`` where it is short.

    Args:
        labels, steps: Seconds of each.
        quick: Seconds of a quick run in all; ``None`` where this is one.
        gpu: Whether there is one that is not used.
    """
    if labels + steps < LONG:
        return None
    unit, name = (1.0, "seconds") if labels + steps < MINUTES else (60.0, "minutes")
    whole, first, second = (f"{each / unit:.2g}" for each in (labels + steps, labels, steps))
    text = f"about {whole} {name} here, or less: labels {first}, steps {second}"
    if quick is not None:
        text += f'; effort="quick" {quick / unit:.2g}; effort=60 one minute in all'
    return text + ('; there is a GPU for device="cuda"' if gpu else "")


def say(text: str | None) -> None:
    """Write a line above the bars, if there is one."""
    if text:
        tqdm.write(text, file=sys.stderr)


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
