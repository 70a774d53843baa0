"""Reliability diagram: is a class predicted with 80 % right in 80 of 100 cases?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_opu.checks import check_probs, positive_int
from pyro_opu.metrics.scores import expected_calibration_error
from pyro_opu.plots.canvas import axes_for, check_names, legend, look_of
from pyro_opu.plots.colours import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["reliability"]


def reliability(
    probs: Tensor | Mapping[str, Tensor],
    y: Tensor,
    *,
    bins: int = 15,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw accuracy against confidence (the largest probability), bin by bin, for some models.

    Bins are :math:`((b-1)/B, b/B]`; each that holds inputs has a point at their means, with an area
    that grows with their share. The diagonal is a calibrated model. The legend shows
    :func:`~pyro_opu.metrics.scores.expected_calibration_error` over the same bins.

    Args:
        probs: Class probabilities ``(N, C)``, such as ``fast.distribution(x).mean``, or a dict of
            them by name.
        y: Labels, integers in ``[0, C)``, ``(N,)``.
        bins: B.
        ax: Where to draw; by default a new figure.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> probs = torch.tensor([[0.75, 0.25]] * 4)
        >>> ax = reliability({"one": probs}, torch.tensor([0, 0, 0, 1]), ax=Figure().subplots())
        >>> ax.get_legend().get_texts()[1].get_text()
        'one (ECE 0.000)'

    References:
        Guo et al. (2017), On calibration of modern neural networks, Fig. 1 and eq. 3.
    """
    positive_int("bins", bins)
    named = check_names(probs if isinstance(probs, Mapping) else {"model": probs}, "probs")
    alone = not isinstance(probs, Mapping)
    points = {
        name: _points("probs" if alone else f"probs[{name!r}]", each, y, bins)
        for name, each in named.items()
    }
    ax = axes_for(ax, (4.4, 4.2))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--", label="calibrated")
    for index, (name, (error, (confidence, accuracy, share))) in enumerate(points.items()):
        label, look = f"{name} (ECE {error:.3f})", look_of(index)
        ax.plot(confidence, accuracy, linewidth=1.3, label=label, **look)
        area = 12 + 150 * share
        ax.scatter(confidence, accuracy, s=area, color=look["color"], alpha=0.6, linewidths=0)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set(xlabel="confidence (largest class probability)", ylabel="accuracy (share right)")
    legend(ax)
    return ax


def _points(name: str, probs: Tensor, y: Tensor, bins: int) -> tuple[float, Tensor]:
    """The ECE; mean confidence, accuracy and share of the inputs for each bin that holds some."""
    values = check_probs(name, probs, "(N, C)").detach().double()
    error = expected_calibration_error(values, y, bins)
    confidence, predicted = values.max(-1)
    right = (predicted == y.to(values.device)).double()
    which = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)  # as in the ECE
    count = torch.bincount(which, minlength=bins)
    sums = [torch.bincount(which, each, bins)[count > 0] for each in (confidence, right)]
    held = count[count > 0].double()
    return error, torch.stack([sums[0] / held, sums[1] / held, held / len(y)]).cpu()
