"""What plots share: axes, names, looks and legend; measures of uncertainty and their scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_inputs, instance_of, one_of
from pyro_opu.plots.colours import SERIES, STYLES
from pyro_opu.reports.answers import Student, is_student
from pyro_opu.reports.readings import Array, Measure, Reader, Reading
from pyro_opu.teachers import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def axes_for(ax: Axes | None, size: tuple[float, float] = (5.0, 4.2)) -> Axes:
    """The caller's axes, or those of a new pyplot figure of this size in inches."""
    if ax is None:
        return new_axes(size)
    from matplotlib.axes import Axes as Given

    advice = "Pass one of several axes, as plt.subplots(1, 2) gives them."
    return instance_of("ax", ax, Given, "a matplotlib Axes or None", advice)


def new_axes(size: tuple[float, float], rows: int = 1) -> Any:
    """Axes of a new pyplot figure, or an array of them, one above the other."""
    return new_figure(size).subplots(rows, sharex=True)


def new_figure(size: tuple[float, float]) -> Figure:
    """A new pyplot figure."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "pyro_opu.plots needs matplotlib, which is not installed: "
            'pip install "pyro_opu[plots]".'
        ) from error
    return pyplot.figure(figsize=size, layout="constrained")


def check_names(named: Any, argument: str) -> Mapping[str, Any]:
    """A dict name -> values with at most as many entries as there are colours."""
    advice = 'Give a single one a name: {"student": values}.'
    instance_of(argument, named, Mapping, "a dict name -> values", advice)
    if not 1 <= len(named) <= len(SERIES):
        raise ArgumentError(
            f"`{argument}` must hold 1 to {len(SERIES)} entries, as many as there are colours to "
            f"tell apart; got {len(named)}. Draw the others on further axes."
        )
    return named


def look_of(index: int) -> dict[str, Any]:
    """Colour and line style of the curve with this index."""
    return {"color": SERIES[index], "linestyle": STYLES[index % len(STYLES)]}


def legend(ax: Axes) -> None:
    """The legend of named curves."""
    ax.legend(frameon=False, fontsize=9)


class Scale(NamedTuple):
    """The label of a measure with its unit, and whether its axis is logarithmic."""

    label: str
    log: bool


#: Scales by the names of :data:`pyro_opu.reports.readings.MEASURES`.
SCALES: dict[Measure, Scale] = {
    "entropy": Scale("entropy of the mean (nats)", False),
    "max_probability": Scale("largest class probability", False),
    "mutual_information": Scale("mutual information (nats)", True),
    "variance": Scale("variance, summed over classes", True),
    "concentration": Scale(r"concentration $\alpha_0$", True),
    "expected_pairwise_kl": Scale("expected pairwise KL (nats)", True),
    "differential_entropy": Scale("differential entropy (nats)", False),
}
#: On logarithmic axes smaller values, mostly exact zeros, are drawn here.
FLOOR = 1e-6


def scale_of(measure: Measure) -> Scale:
    """The scale of a measure, by its name."""
    return SCALES[one_of("measure", measure, SCALES)]


def read(source: Source | Student, x: Tensor, num_draws: int) -> Reading:
    """What a student or a teacher says at ``x``, the latter by one set of draws for all inputs."""
    check_inputs(x)
    return Reader(source, x, is_student(source, x), num_draws).together(x)


def read_by_halves(source: Source | Student, x: Tensor, num_draws: int) -> list[Reading]:
    """What a teacher says by all of its draws, and by every other one; a student says one thing."""
    check_inputs(x)
    if is_student(source, x):
        return [read(source, x, num_draws)]
    reader = Reader(source, x, False, num_draws)
    if reader.num_draws < 4:  # a half without spread
        return [reader.together(x)]
    parts = [
        [Reading.of(some) for some in (block, block[::2], block[1::2])]
        for block in reader.source.stream(x, reader.num_draws)
    ]
    return [Reading.joined(list(each)) for each in zip(*parts, strict=True)]


def finite(values: Array, measure: Measure) -> Array:
    """The values, if they are finite numbers; a reading holds the largest float for infinity."""
    bad = ~(np.abs(values) < 1e300)
    if bad.any():
        raise ArgumentError(
            f"`measure` must be finite at every input; {measure!r} is not at {int(bad.sum())} of "
            f"{len(values)}, where there is no spread at all. Choose another, such as 'entropy'."
        )
    return values
