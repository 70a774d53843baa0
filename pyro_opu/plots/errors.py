"""Right and wrong answers: reliability diagrams and risk-coverage curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_bool,
    check_labels,
    check_probs,
    positive_int,
)
from pyro_opu.plots.canvas import axes_for, check_names, legend, look_of
from pyro_opu.plots.colours import BLACK, GREY
from pyro_opu.reports.readings import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(
    probs: Tensor | Mapping[str, Tensor],
    y: Tensor,
    *,
    bins: int = 15,
    equal_mass: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw accuracy against confidence (the largest probability), bin by bin, for some models.

    Each bin holds as many inputs as any other, and its accuracy has Wilson's interval of 95 %. With
    ``equal_mass=False`` bins are :math:`((b-1)/B, b/B]`, most of which hold next to nothing where a
    model is sure; each that holds inputs has a point whose area grows with their share. The
    diagonal is a calibrated model. The legend shows the expected calibration error over the same
    bins, :math:`\sum_b \tfrac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|`.

    Args:
        probs: Class probabilities ``(N, C)``, such as ``fast.distribution(x).mean``, or a dict of
            them by name.
        y: Labels, integers in ``[0, C)``, ``(N,)``.
        bins: B, at most N bins of equal mass.

    References:
        Guo et al. (2017), On calibration of modern neural networks, Fig. 1 and eq. 3. Wilson
        (1927), Probable inference, the law of succession, and statistical inference.
    """
    bins = positive_int("bins", bins)
    check_bool("equal_mass", equal_mass)
    several = isinstance(probs, Mapping)
    named = check_names(probs if several else {"model": probs}, "probs")
    points = {
        name: _points(f"probs[{name!r}]" if several else "probs", each, y, bins, equal_mass)
        for name, each in named.items()
    }
    ax = axes_for(ax, (4.4, 4.2))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--", label="calibrated")
    for index, (name, (confidence, accuracy, count)) in enumerate(points.items()):
        share = count / count.sum()
        error = float((share * (accuracy - confidence).abs()).sum())
        label, look = f"{name} (ECE {error:.3f})", look_of(index)
        ax.plot(confidence, accuracy, linewidth=1.3, label=label, **look)
        area = 12 + 150 * share
        ax.scatter(confidence, accuracy, s=area, color=look["color"], alpha=0.6, linewidths=0)
        if equal_mass:
            ax.vlines(confidence, *_wilson(accuracy, count), color=look["color"], linewidth=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set(xlabel="confidence (largest class probability)", ylabel="accuracy (share right)")
    legend(ax)
    return ax


def _points(name: str, probs: Tensor, y: Tensor, bins: int, equal_mass: bool) -> Tensor:
    """Mean confidence, accuracy and number of inputs of each bin that holds some."""
    values = check_probs(name, probs, "(N, C)").detach().double()
    if values.ndim != 2:
        raise ArgumentError(f"`{name}` must have shape (N, C); got {tuple(values.shape)}.")
    labels = check_labels(y, len(values), values.shape[-1]).to(values.device)
    confidence, predicted = values.max(-1)
    right = (predicted == labels).double()
    if equal_mass:
        rank = confidence.argsort().argsort()
        which = rank * min(bins, len(rank)) // len(rank)
    else:
        which = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)  # as in the ECE
    count = torch.bincount(which, minlength=bins)
    sums = [torch.bincount(which, each, bins)[count > 0] for each in (confidence, right)]
    held = count[count > 0].double()
    return torch.stack([sums[0] / held, sums[1] / held, held]).cpu()


def _wilson(share: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the 95 % interval of a probability, from the share of so many."""
    z = 1.959964
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * (share * (1 - share) / count + (z / (2 * count)) ** 2).sqrt() / (1 + z**2 / count)
    return centre - half, centre + half


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

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> entropy, wrong = torch.tensor([0.1, 0.2, 0.9, 0.4]), torch.tensor([0, 0, 1, 0]).bool()
        >>> ax = risk_coverage({"entropy": entropy}, wrong, ax=Figure().subplots())
        >>> ax.get_legend().get_texts()[0].get_text()  # the error is kept last: 1/4 of 1/4
        'entropy (AURC 0.0625)'

    References:
        Geifman and El-Yaniv (2017), Selective classification for deep neural networks, section 2.
        Geifman, Uziel and El-Yaniv (2019), Bias-reduced uncertainty estimation (AURC).
    """
    named = check_names(scores_by_name, "scores_by_name")
    own = isinstance(wrong, Mapping)
    by_name = wrong if isinstance(wrong, Mapping) else dict.fromkeys(named, wrong)
    if set(by_name) != set(named):
        raise ArgumentError(
            f"`wrong` must have the names of the scores, {list(named)}; got {list(by_name)}."
        )
    errors = {name: _errors(by_name[name]) for name in named}
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


def _array(values: object) -> Array:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _errors(wrong: object) -> Array:
    """As float64, ``(N,)``."""
    found = _array(wrong)
    if found.dtype != bool:
        raise ArgumentTypeError(
            f"`wrong` must be boolean, (N,); got {found.dtype}. Write probs.argmax(-1) != y."
        )
    if found.ndim != 1 or not len(found):
        raise ArgumentError(f"`wrong` must have shape (N,) with N >= 1; got {found.shape}.")
    return found.astype(np.float64)


def _curve(name: str, scores: object, errors: Array) -> Array:
    """Risk at coverage 1 / N, 2 / N, ..., 1, averaged over the orders of equal scores."""
    values = _array(scores)
    numbers = np.issubdtype(values.dtype, np.number) or values.dtype == bool
    if values.shape != errors.shape or not numbers or not np.isfinite(values).all():
        raise ArgumentError(
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
