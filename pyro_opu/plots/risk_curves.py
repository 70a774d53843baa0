"""Risk against coverage: the errors left when the most uncertain inputs are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyro_opu.plots.canvas import axes_for, check_names, legend, look_of
from pyro_opu.plots.colours import BLACK
from pyro_opu.reports.readings import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["risk_coverage"]


def risk_coverage(
    scores_by_name: Mapping[str, Tensor | Array],
    wrong: Tensor | Array | Mapping[str, Tensor | Array],
    *,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the error rate among the inputs kept against the share that is kept.

    With inputs sorted by score, the most certain first, and :math:`e_i` 1 for an error,

    .. math:: \text{risk at } \tfrac{n}{N}: \; r_n = \frac1n \sum_{i \le n} e_i, \qquad
              \mathrm{AURC} = \frac1N \sum_{n=1}^N r_n

    Among equal scores the expectation over random orders is drawn. The oracle sorts right before
    wrong, which no score can beat. The legend shows the AURC.

    Args:
        scores_by_name: Scores by name, each ``(N,)``, the larger the more uncertain.
        wrong: Whether an input is misclassified, ``(N,)``, boolean; or a dict of such by name,
            where each score belongs to another classifier.
        ax: Where to draw; by default a new figure.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> entropy, wrong = torch.tensor([0.1, 0.2, 0.9, 0.4]), torch.tensor([0, 0, 1, 0]).bool()
        >>> ax = risk_coverage({"entropy": entropy}, wrong, ax=Figure().subplots())
        >>> ax.get_legend().get_texts()[0].get_text()  # the error is kept last: 1/4 of 1/4
        'entropy (AURC 0.0625)'

    References:
        Geifman and El-Yaniv (2017), Selective classification for deep neural networks, section 2.
        Geifman, Uziel and El-Yaniv (2019), Bias-reduced uncertainty estimation for deep neural
        classifiers, for the AURC.
    """
    named = check_names(scores_by_name, "scores_by_name")
    own = isinstance(wrong, Mapping)
    if isinstance(wrong, Mapping) and set(wrong) != set(named):
        raise ValueError(
            f"`wrong` must have the names of the scores, {list(named)}; got {list(wrong)}."
        )
    errors = {name: _errors(wrong[name] if isinstance(wrong, Mapping) else wrong) for name in named}
    curves = {name: _curve(name, named[name], errors[name]) for name in named}
    ax = axes_for(ax)
    for index, (name, risk) in enumerate(curves.items()):
        look = look_of(index)
        _draw(ax, risk, name, linewidth=1.6, **look)
        if own:
            _oracle(ax, errors[name], f"{name}, oracle", look["color"])
    if not own:
        _oracle(ax, next(iter(errors.values())), "oracle", BLACK)
    ax.set(xlim=(0, 1), xlabel="coverage (share of inputs kept)", ylabel="risk (error among them)")
    ax.set_ylim(bottom=0.0)
    legend(ax)
    return ax


def _array(values: Any) -> Array:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _errors(wrong: Any) -> Array:
    """As float64, ``(N,)``."""
    found = _array(wrong)
    if found.dtype != bool:
        raise TypeError(
            f"`wrong` must be boolean, (N,); got {found.dtype}. Write probs.argmax(-1) != y."
        )
    if found.ndim != 1 or not len(found):
        raise ValueError(f"`wrong` must have shape (N,) with N >= 1; got {found.shape}.")
    return found.astype(np.float64)


def _curve(name: str, scores: Any, errors: Array) -> Array:
    """Risk at coverage 1 / N, 2 / N, ..., 1, averaged over the orders of equal scores."""
    values = _array(scores)
    numbers = np.issubdtype(values.dtype, np.number) or values.dtype == bool
    if values.shape != errors.shape or not numbers or not np.isfinite(values).all():
        raise ValueError(
            f"`scores_by_name[{name!r}]` must hold one finite number for each of the "
            f"{len(errors)} inputs in `wrong`; got shape {values.shape}, {values.dtype}"
            f"{' with NaN or infinity' if numbers and not np.isfinite(values).all() else ''}."
        )
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    level = np.bincount(group, errors) / count
    return np.cumsum(np.repeat(level, count)) / np.arange(1, len(errors) + 1)


def _draw(ax: Axes, risk: Array, name: str, **look: Any) -> None:
    coverage = np.arange(1, len(risk) + 1) / len(risk)
    ax.plot(coverage, risk, label=f"{name} (AURC {risk.mean():.3g})", **look)


def _oracle(ax: Axes, errors: Array, name: str, colour: str) -> None:
    _draw(ax, _curve(name, errors, errors), name, color=colour, linestyle=":", linewidth=1.0)
