"""Histograms of a measure of uncertainty, in and out of distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyro_opu.checks import instance_of, positive_int
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.metrics.uncertainty import Uncertainty, uncertainty
from pyro_opu.plots.canvas import axes_for, check_names, legend, look_of
from pyro_opu.plots.colours import SERIES
from pyro_opu.plots.scales import FLOOR, finite, scale_of
from pyro_opu.reports.readings import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["concentration_histograms"]

_KINDS = (Uncertainty, Tensor, SimplexDistribution)


def concentration_histograms(
    answers: Mapping[str, Any],
    *,
    measure: str = "concentration",
    bins: int = 40,
    ax: Axes | None = None,
) -> Axes:
    """Draw histograms of the concentration, one outline per set of inputs.

    Each outline sums to 1, and all have the same bins. The concentration, the mutual information,
    the variance and the pairwise KL are binned by their logarithm to base 10, clipped at 1e-6.

    Args:
        answers: Answers by the name of the set of inputs: ``fast.distribution(x)`` or
            ``fast.uncertainty(x)`` of a student, draws ``(S, N, C)`` of a teacher. Put the
            in-distribution inputs first.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
        bins: Number of bins.
        ax: Where to draw; by default a new figure.

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
        binned: dict[str, Any] = {"bins": edges, "weights": share}
        ax.hist(each, histtype="stepfilled", alpha=0.18, color=SERIES[index], **binned)
        label = f"{name} (N = {len(each)})"
        ax.hist(each, histtype="step", linewidth=1.5, label=label, **look_of(index), **binned)
    label = rf"$\log_{{10}}$ {scale.label}" if scale.log else scale.label
    ax.set(xlabel=label, ylabel="share of inputs per bin")
    legend(ax)
    return ax


def _values(name: str, answer: Any, measure: str) -> Array:
    """The measure at every input, float64, ``(N,)``."""
    expected = "a distribution on the simplex, an Uncertainty, or draws (S, N, C)"
    answer = known_form(answer)
    instance_of(f"answers[{name!r}]", answer, _KINDS, expected, "Pass fast.distribution(x).")
    found = answer if isinstance(answer, Uncertainty) else uncertainty(answer)
    return finite(found[measure].detach().double().reshape(-1).cpu().numpy(), measure)
