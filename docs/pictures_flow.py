"""The picture of the data flow on the page "How it works": python docs/pictures_flow.py"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

from pyro_opu.plots.colours import BLACK, GREY, STUDENT, TEACHER  # noqa: E402

TARGET = Path(__file__).with_name("flow.svg")
#: Size of a box, and of the whole picture, in the same units.
WIDTH, HEIGHT, SIZE = 2.6, 1.0, (9.8, 5.6)


@dataclass(frozen=True)
class Box:
    """A stage of the flow: its place, its name, and what happens there."""

    x: float
    y: float
    name: str
    what: str
    colour: str


POSTERIOR = Box(0.1, 4.4, "posterior", "Predictive, network,\nensemble, function", TEACHER)
ASKED = Box(3.6, 4.4, "teacher", "draws $\\pi_s = T(x;\\theta_s)$\non the simplex", TEACHER)
INPUTS = Box(3.6, 2.3, "transfer", "inputs without labels,\nreal and made up", GREY)
LOSS = Box(7.1, 4.4, "objective", "one number: the student\nagainst the draws", GREY)
GUIDE = Box(7.1, 2.3, "guide", "$x \\to$ Dir$(h(x)\\,e^{g(x)})$,\none forward pass", STUDENT)
FAST = Box(7.1, 0.2, "predictive", "the call, keys and shapes\nof Predictive", STUDENT)
REPORT = Box(0.1, 0.2, "report", "fidelity, uncertainty,\ndetection", GREY)
BOXES = (POSTERIOR, ASKED, INPUTS, LOSS, GUIDE, FAST, REPORT)


def draw(axes: Axes) -> None:
    """All boxes, and the arrows between their sides."""
    for box in BOXES:
        draw_box(axes, box)
    arrow(axes, side(POSTERIOR, 1, 0.5), side(ASKED, 0, 0.5))
    arrow(axes, side(ASKED, 1, 0.5), side(LOSS, 0, 0.5), "draws", (0, 0.18))
    arrow(axes, side(INPUTS, 0.5, 1), side(ASKED, 0.5, 0), "$x$", (0.2, 0))
    arrow(axes, side(INPUTS, 1, 0.5), side(GUIDE, 0, 0.5), "$x$", (0, 0.18))
    arrow(axes, side(GUIDE, 0.3, 1), side(LOSS, 0.3, 0), "answer", (-0.4, 0))
    arrow(axes, side(LOSS, 0.7, 0), side(GUIDE, 0.7, 1), "steps", (0.4, 0))
    arrow(axes, side(GUIDE, 0.5, 0), side(FAST, 0.5, 1), "the best, recalibrated", (-1.1, 0))
    arrow(axes, side(FAST, 0, 0.5), side(REPORT, 1, 0.5), "answers at new inputs", (0, 0.18))
    arrow(axes, side(ASKED, 0.1, 0), side(REPORT, 0.5, 1), "fresh draws", (-0.75, 0))


def side(box: Box, across: float, up: float) -> tuple[float, float]:
    """A point of a box, by its shares of width and height."""
    return box.x + across * WIDTH, box.y + up * HEIGHT


def draw_box(axes: Axes, box: Box) -> None:
    style = "round,pad=0,rounding_size=0.12"
    shape = FancyBboxPatch((box.x, box.y), WIDTH, HEIGHT, style, fc="white", ec=box.colour, lw=2)
    axes.add_patch(shape)
    centre = box.x + WIDTH / 2
    axes.text(centre, box.y + 0.78, box.name, ha="center", va="center", weight="bold", size=11)
    axes.text(centre, box.y + 0.34, box.what, ha="center", va="center", size=8.5, color=BLACK)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    label: str = "",
    aside: tuple[float, float] = (0, 0),
) -> None:
    """An arrow with a label beside its middle."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": BLACK, "lw": 1.2})
    middle = (start[0] + end[0]) / 2 + aside[0], (start[1] + end[1]) / 2 + aside[1]
    axes.text(*middle, label, ha="center", va="center", size=8.5, color=BLACK)


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "flow"  # the same file every time
    figure, axes = plt.subplots(figsize=SIZE)
    axes.set(xlim=(0, SIZE[0]), ylim=(0, SIZE[1]), aspect="equal")
    axes.axis("off")
    draw(axes)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
