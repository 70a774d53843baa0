"""Histograms of a measure of uncertainty, in the domain and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.checks import positive_int
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.metrics.uncertainty import Uncertainty, uncertainty
from pyro_opu.plots.canvas import axes_for, check_names
from pyro_opu.plots.colours import SERIES, STYLES
from pyro_opu.plots.scales import FLOOR, finite, scale_of
from pyro_opu.reports.readings import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["concentration_histograms"]

_KINDS = (Uncertainty, Tensor, torch.distributions.Dirichlet, SimplexDistribution)


def concentration_histograms(
    answers: Mapping[str, Any],
    *,
    measure: str = "concentration",
    bins: int = 40,
    ax: Axes | None = None,
) -> Axes:
    """Draw how often each value of the concentration comes up, one outline per set of inputs.

    Each outline adds up to 1, whatever the number of inputs, and all have the same bins. The
    concentration, the mutual information, the variance and the pairwise KL are binned by their
    logarithm to base 10; of these, values below 1e-6 are counted there.

    Args:
        answers: What was answered at every set of inputs, by the set's name: of a student
            ``fast.distribution(x)`` (any distribution on the simplex) or ``fast.uncertainty(x)``,
            of a teacher its draws ``(S, N, C)``. Put the inputs of the domain first.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
        bins: Number of bins.
        ax: Where to draw; by default a new figure.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: ``answers`` is no dict, or holds something else.
        ValueError: no such measure, bins that are no positive integer, no or too many answers, or
            infinite values.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> inside = torch.distributions.Dirichlet(torch.full((9, 3), 100.0))
        >>> outside = torch.distributions.Dirichlet(torch.full((5, 3), 1.0))
        >>> answers = {"inside": inside, "outside": outside}
        >>> ax = concentration_histograms(answers, ax=Figure().subplots())
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['inside (N = 9)', 'outside (N = 5)']
    """
    scale = scale_of(measure)
    positive_int("bins", bins)
    named = check_names(answers, "answers")
    values = {name: _values(name, answer, measure) for name, answer in named.items()}
    if scale.log:
        values = {name: np.log10(each.clip(FLOOR)) for name, each in values.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(values.values())), bins)
    ax = axes_for(ax, (5.6, 3.8))
    for index, (name, each) in enumerate(values.items()):
        share = np.full(len(each), 1 / len(each))
        look: dict[str, Any] = {"color": SERIES[index], "bins": edges, "weights": share}
        ax.hist(each, histtype="stepfilled", alpha=0.18, **look)
        ax.hist(
            each, histtype="step", linewidth=1.5, linestyle=STYLES[index % len(STYLES)],
            label=f"{name} (N = {len(each)})", **look,
        )  # fmt: skip
    ax.set(xlabel=_label(scale.label, scale.log), ylabel="share of inputs per bin")
    ax.legend(frameon=False, fontsize=9)
    return ax


def _values(name: str, answer: Any, measure: str) -> Array:
    """The measure at every input, float64, ``(N,)``."""
    if not isinstance(answer, _KINDS):
        raise TypeError(
            f"`answers[{name!r}]` must be a distribution on the simplex, an Uncertainty, or draws "
            f"(S, N, C); got {type(answer).__name__}. Pass fast.distribution(x)."
        )
    found = answer if isinstance(answer, Uncertainty) else uncertainty(answer)
    return finite(found[measure].detach().double().reshape(-1).cpu().numpy(), measure)


def _label(label: str, log: bool) -> str:
    return rf"$\log_{{10}}$ {label}" if log else label
