"""What plots share: axes, colours, names and the legend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyro_opu.checks import instance_of
from pyro_opu.plots.colours import SERIES, STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["axes_for", "check_names", "legend", "look_of", "new_axes"]


def axes_for(ax: Axes | None, size: tuple[float, float] = (5.0, 4.2)) -> Axes:
    """The caller's axes, or those of a new pyplot figure of this size in inches.

    Example:
        >>> from matplotlib.figure import Figure
        >>> ax = Figure().subplots()
        >>> axes_for(ax) is ax
        True
    """
    _need_matplotlib()
    from matplotlib.axes import Axes as Given

    if ax is None:
        return new_axes(size)
    advice = "Of several axes, as plt.subplots(1, 2) gives them, pass one."
    return instance_of("ax", ax, Given, "a matplotlib Axes or None", advice)


def new_axes(size: tuple[float, float], rows: int = 1) -> Any:
    """Axes of a new pyplot figure, or an array of them, one above the other."""
    _need_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(rows, sharex=True, figsize=size, layout="constrained")[1]


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "pyro_opu.plots needs matplotlib, which is not installed: "
            'pip install "pyro_opu[plots]".'
        ) from error


def check_names(named: Any, argument: str) -> Mapping[str, Any]:
    """A dict name -> values with at most as many entries as there are colours."""
    advice = 'Give the one a name: {"student": values}.'
    instance_of(argument, named, Mapping, "a dict name -> values", advice)
    if not 1 <= len(named) <= len(SERIES):
        raise ValueError(
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
