"""Ternary plots: a teacher's draws and a student's density on the simplex of three classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_probs, check_tensor, instance_of
from pyro_opu.distributions import PredictiveDirichlet, SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.plots.canvas import axes_for
from pyro_opu.plots.colours import BLACK, GREY, STUDENT, TEACHER
from pyro_opu.rng import seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Corners of the classes 0, 1 and 2: left, right, top; sides of length 1.
CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(3) / 2))
#: Probabilities of the regions, from the outer to the inner.
SHARES = (0.95, 0.75, 0.5, 0.25)
_OPACITIES = (0.15, 0.35, 0.6, 0.9)
_OWN_DRAWS = 4000
#: Steps of the grid along a side.
_GRID = 100
_LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 7.5,
    "labelspacing": 0.35,
    "handlelength": 1.2,
    "handletextpad": 0.5,
    "borderpad": 0.0,
    "markerscale": 0.8,
}


def simplex(
    distribution: object = None,
    draws: Tensor | None = None,
    *,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw a student's density, a teacher's draws, or both, at one input of three classes.

    A point of the triangle is :math:`\sum_k \pi_k v_k` with the corners :math:`v_k`. The density is
    shown as regions of highest density, which hold 95, 75, 50 and 25 % of the probability:

    .. math:: R_p = \{\pi : \log q(\pi) \ge t_p\}, \qquad q(R_p) = p

    The thresholds :math:`t_p` are estimated from 4,000 draws of the student with a fixed seed;
    torch's generator is restored. The density is evaluated at least a hundredth away from the
    edges, where it may be infinite. Means are marked.

    At an input of which draws and student are sure, all of this lies in a corner; enlarge it by
    ``ax.set(xlim=..., ylim=...)``.

    Args:
        distribution: A student's answer at one input, ``fast.distribution(x[n : n + 1])``: a
            distribution on the simplex with a density, batch shape ``()`` or ``(1,)``.
        draws: A teacher's draws at one input, ``(S, 3)`` or ``(S, 1, 3)``.
        labels: Names of the three classes; by default 0, 1, 2.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> from pyro_opu import PredictiveDirichlet
        >>> student = PredictiveDirichlet.from_alpha(torch.tensor([4.0, 2.0, 1.0]))
        >>> ax = simplex(student, student.sample((50,)), ax=Figure().subplots())
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ["student's mean", "teacher's draws", "teacher's mean"]

    References:
        Cui et al. (2019), Fig. 1 and 3. Hyndman (1996), Computing highest density regions.
    """
    answer = None if distribution is None else _checked_answer(distribution)
    points = None if draws is None else _checked_draws(draws)
    if answer is None and points is None:
        raise ArgumentError("`distribution` or `draws` must be given; got neither.")
    names = ("0", "1", "2") if labels is None else labels
    if not isinstance(names, Sequence) or len(names) != 3:
        raise ArgumentError(
            f"`labels` must name the 3 classes; got {labels!r}. Pass three strings."
        )
    ax = axes_for(ax)
    _frame(ax, names)
    if answer is not None:
        regions = _regions(ax, answer, _own_draws(answer))
        _mean(ax, answer.mean.reshape(1, 3), "student's mean", marker="x", c=BLACK, s=25)
        ax.add_artist(ax.legend(handles=regions, loc="upper left", **_LEGEND))
    if points is not None:
        across, up = _places(points)
        look: dict[str, Any] = {"s": 7, "color": TEACHER, "alpha": 0.45, "linewidths": 0}
        ax.scatter(across, up, label="teacher's draws", zorder=3, **look)
        ring = {"marker": "o", "facecolors": "none", "edgecolors": TEACHER, "s": 60}
        _mean(ax, points.mean(0, keepdim=True), "teacher's mean", **ring)
    ax.legend(loc="upper right", **_LEGEND)
    return ax


def three_classes(
    source: torch.distributions.Dirichlet | Tensor, classes: Sequence[int]
) -> PredictiveDirichlet | Tensor:
    """Probabilities of three of many classes, given that the class is one of them.

    The sub-composition of a Dirichlet is again Dirichlet, with the same alpha of the three. Draws
    are renormalised. The probability of the other classes is lost: report how much it was.

    Args:
        source: A Dirichlet, batch shape ``(*B)``, or points of the simplex ``(..., C)``.
        classes: Three different classes; their order is that of the corners.

    Example:
        >>> import torch
        >>> student = torch.distributions.Dirichlet(torch.tensor([5.0, 1.0, 3.0, 2.0]))
        >>> three_classes(student, [0, 2, 3]).concentration
        tensor([5., 3., 2.])
        >>> three_classes(torch.tensor([[0.4, 0.5, 0.1, 0.0]]), [0, 2, 3])
        tensor([[0.8000, 0.2000, 0.0000]])

    References:
        Aitchison (1986), The statistical analysis of compositional data, chapter 3.
    """
    whole = known_form(source)
    if isinstance(whole, PredictiveDirichlet):
        chosen = _checked_classes(classes, whole.event_shape[0])
        log_mean = whole.log_mean[..., chosen]
        log_share = log_mean.logsumexp(-1)
        log_mean = log_mean - log_share[..., None]
        return PredictiveDirichlet(log_mean, whole.log_concentration + log_share)
    expected = "a Dirichlet or a tensor of draws (..., C)"
    advice = "For another distribution pass draws, .sample((500,))."
    points: Tensor = instance_of("source", source, Tensor, expected, advice)
    check_probs("source", points)
    some = points[..., _checked_classes(classes, points.shape[-1])]
    share = some.sum(-1, keepdim=True)
    if not (share > 0).all():
        raise ArgumentError(
            "`classes` must have some probability at every point; these have none at "
            f"{int((share <= 0).sum())} of {share.numel()}. Choose the likeliest three."
        )
    return some / share


def _checked_classes(classes: Sequence[int], num_classes: int) -> list[int]:
    chosen = set(classes) if isinstance(classes, Sequence) else set()
    if len(chosen) != 3 or len(classes) != 3 or not chosen <= set(range(num_classes)):
        raise ArgumentError(
            f"`classes` must be 3 different classes from 0 to {num_classes - 1}; got {classes!r}. "
            "Pass their numbers."
        )
    return [int(k) for k in classes]


def _checked_answer(distribution: object) -> SimplexDistribution:
    answer = known_form(distribution)
    if not isinstance(answer, SimplexDistribution):
        raise ArgumentTypeError(
            "`distribution` must be a Dirichlet or another distribution on the simplex; got "
            f"{type(distribution).__name__}. Pass fast.distribution(x[n : n + 1])."
        )
    if answer.event_shape != (3,):
        raise ArgumentError(
            f"`distribution` must have 3 classes; got {answer.event_shape[0]}. Pick three of them "
            "with plots.three_classes."
        )
    if answer.batch_shape not in ((), (1,)):
        raise ArgumentError(
            "`distribution` must be of one input, batch shape () or (1,); got "
            f"{tuple(answer.batch_shape)}. Pass fast.distribution(x[n : n + 1])."
        )
    _log_density(answer, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    return answer


def _checked_draws(draws: Tensor) -> Tensor:
    """As ``(S, 3)``, float64."""
    check_tensor("draws", draws, "(S, 3)")
    if draws.ndim == 3 and draws.shape[1] == 1:
        draws = draws[:, 0]
    if draws.ndim != 2 or draws.shape[-1] != 3 or not len(draws):
        raise ArgumentError(
            f"`draws` must have shape (S, 3), of one input and 3 classes; got {tuple(draws.shape)}."
            " Take one input, draws[:, n], and three classes, with plots.three_classes."
        )
    return check_probs("draws", draws, "(S, 3)").detach().double().cpu()


def _own_draws(answer: SimplexDistribution) -> Tensor:
    """Draws ``(M, 3)`` of the student, the same ones at every call; float64."""
    with torch.no_grad(), seeded(0):
        return answer.sample((_OWN_DRAWS,)).reshape(-1, 3).double().cpu()


def _frame(ax: Axes, names: Sequence[str]) -> None:
    ax.fill(*zip(*CORNERS, strict=True), facecolor="none", edgecolor=GREY, linewidth=0.8, zorder=1)
    offsets = ((-4, -4, "right", "top"), (4, -4, "left", "top"), (0, 4, "center", "bottom"))
    for name, corner, (right, up, ha, va) in zip(names, CORNERS, offsets, strict=True):
        ax.annotate(str(name), corner, (right, up), textcoords="offset points", ha=ha, va=va)
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.1, 0.98), aspect="equal")
    ax.set_axis_off()


def _places(points: Tensor) -> Any:
    """Places in the plane of points ``(M, 3)`` of the simplex, ``(2, M)``."""
    corners = torch.tensor(CORNERS, dtype=torch.float64)
    return (points.detach().double().cpu() @ corners).T.numpy()


def _mean(ax: Axes, mean: Tensor, label: str, **look: Any) -> None:
    ax.scatter(*_places(mean), linewidths=1.5, zorder=4, label=label, clip_on=False, **look)


def _regions(ax: Axes, answer: SimplexDistribution, own: Tensor) -> list[Any]:
    """Draw the regions of highest density, interpolated between a grid and draws; the legend."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch
    from matplotlib.tri import Triangulation

    # A regular grid, corners and edges included.
    rows = [(a, b, _GRID - a - b) for a in range(_GRID + 1) for b in range(_GRID + 1 - a)]
    grid = torch.tensor(rows, dtype=torch.float64) / _GRID
    # A little below the quantiles, so that points on a threshold, as on a plateau, are inside.
    low = 1 - torch.tensor(SHARES, dtype=torch.float64)
    levels = (_log_density(answer, own).quantile(low) - 1e-6).tolist()
    points = torch.cat([own, grid])
    height = _log_density(answer, points)
    colours = [to_rgba(STUDENT, strength) for strength in _OPACITIES]
    # Of equal regions, as of a uniform density, the one of the largest share is drawn.
    kept = [k for k in range(len(levels)) if k == 0 or levels[k] > levels[k - 1]]
    bounds = [levels[k] for k in kept]
    mesh = Triangulation(*_places(points))
    top = max(float(height.max()), bounds[-1]) + 1.0
    fill: dict[str, Any] = {"colors": [colours[k] for k in kept], "zorder": 1}
    line: dict[str, Any] = {"colors": [STUDENT], "linewidths": 0.9, "linestyles": "-"}
    ax.tricontourf(mesh, height, [*bounds, top], **fill)
    ax.tricontour(mesh, height, bounds, zorder=2, **line)
    return [
        Patch(facecolor=colour, edgecolor=STUDENT, label=f"student's {100 * share:.0f} %")
        for share, colour in zip(SHARES, colours, strict=True)
    ]


@torch.no_grad()
def _log_density(answer: SimplexDistribution, points: Tensor) -> Tensor:
    """Log density ``(M,)`` at points ``(M, 3)`` moved away from the edges; float64."""
    inside = points.clamp_min(1 / _GRID)
    # Taken from the largest class: all points of a corner, or across an edge, have one height.
    excess = inside.sum(-1, keepdim=True) - 1
    inside = inside.scatter_add(-1, inside.argmax(-1, keepdim=True), -excess)
    inside = inside.reshape(-1, *answer.batch_shape, 3)
    try:
        density = answer.log_prob(inside.to(answer.log_mean.device))
    except NotImplementedError:
        raise ArgumentError(
            f"`distribution` must have a density; {type(answer).__name__} has none. Pass draws of "
            "it, draws=distribution.sample((500,))."
        ) from None
    return density.reshape(-1).double().cpu()
