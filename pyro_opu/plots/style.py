"""The looks of the tutorials' figures, for pyplot."""

from __future__ import annotations

from typing import Any

from pyro_opu.plots.colours import SERIES


def use_style() -> None:
    """Set pyplot's defaults to those of the tutorials: 120 dots per inch, these colours.

    The other functions neither need this nor do it. ``matplotlib.rcdefaults()`` undoes it.

    Example:
        >>> from matplotlib import pyplot
        >>> use_style()
        >>> pyplot.rcParams["figure.dpi"]
        120.0
        >>> pyplot.rcdefaults()
    """
    from matplotlib import pyplot
    from matplotlib.rcsetup import cycler

    looks: Any = {
        "figure.dpi": 120,
        "savefig.dpi": 120,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.prop_cycle": cycler(color=SERIES),
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    pyplot.rcParams.update(looks)
