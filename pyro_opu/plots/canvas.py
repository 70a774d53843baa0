"""The axes that a plot is drawn on: those of the caller, or new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyro_opu.plots.colours import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["axes_for", "check_names", "new_axes"]


def axes_for(ax: Axes | None, size: tuple[float, float] = (5.0, 4.2)) -> Axes:
    """The caller's axes, or those of a new pyplot figure.

    Args:
        ax: Axes to draw on, or ``None``.
        size: Of a new figure, width and height in inches.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: ``ax`` is something else.

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
    if not isinstance(ax, Given):
        raise TypeError(
            f"`ax` must be a matplotlib Axes or None; got {type(ax).__name__}. Of several axes, as "
            "plt.subplots(1, 2) gives them, pass one."
        )
    return ax


def new_axes(size: tuple[float, float], rows: int = 1) -> Any:
    """Axes of a new pyplot figure, one above the other; an array of them if there are several.

    Raises:
        ImportError: matplotlib is not installed.
    """
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
    """Return what has a name each, if it can be drawn in colours that differ.

    Raises:
        TypeError: no mapping.
        ValueError: empty, or more entries than there are colours.
    """
    if not isinstance(named, Mapping):
        raise TypeError(
            f"`{argument}` must be a dict name -> values; got {type(named).__name__}. Give the one "
            'a name: {"student": values}.'
        )
    if not 1 <= len(named) <= len(SERIES):
        raise ValueError(
            f"`{argument}` must hold 1 to {len(SERIES)} entries, as many as there are colours to "
            f"tell apart; got {len(named)}. Draw the others on further axes."
        )
    return named
