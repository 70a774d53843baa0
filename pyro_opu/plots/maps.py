"""Decision maps of two-dimensional inputs: classes by hue, uncertainty by darkness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    check_bool,
    check_inputs,
    check_labels,
    check_row_shape,
    check_tensor,
    instance_of,
    positive_int,
)
from pyro_opu.plots.canvas import axes_for, finite, new_figure, read, scale_of
from pyro_opu.plots.colours import BLACK, SERIES, map_colours
from pyro_opu.reports.readings import Array, Measure
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Labels of the measures whose sign is changed, to grow with uncertainty.
_TURNED = {
    "concentration": r"$-\log\,\alpha_0$ (concentration)",
    "max_probability": "1 - largest class probability",
}


class _Map(NamedTuple):
    """What one source says at the cells: probabilities ``(N, C)`` and a measure ``(N,)``."""

    probs: Array
    measured: Array


class _Range(NamedTuple):
    """Values of the measure that are light and dark, and its label."""

    low: float
    high: float
    label: str


class _Ground(NamedTuple):
    """The rectangle, cells along a side, and the data on top."""

    corners: Tensor
    resolution: int
    x: Tensor | None
    labels: Tensor | None


def decision_map(
    predict: Source,
    bounds: Sequence[Sequence[float]],
    *,
    x: Tensor | None = None,
    y: Tensor | None = None,
    measure: Measure = "mutual_information",
    resolution: int = 100,
    num_draws: int = 500,
    seed: int | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    colorbar: bool = True,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw class probabilities and an uncertainty over a rectangle of inputs.

    Hue and saturation show the mean class probabilities, grey where all classes are as likely;
    darkness shows the measure, which grows with uncertainty, and nothing else: equally dark places
    are equally uncertain, whatever their class. Black and white lines are decision boundaries.

    Args:
        predict: A student or a teacher, as in :func:`pyro_opu.detection`, of inputs ``(N, 2)``.
        bounds: ``((left, right), (bottom, top))``, in units of the inputs.
        x: Data to draw on top, ``(N, 2)``; the grid gets its dtype and device.
        y: Their labels, integers in ``[0, C)``, ``(N,)``.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
        resolution: Inputs along each side.
        num_draws: Draws of a teacher, the same for the whole map; a function is called once, with
            all inputs.
        seed: Seed of a teacher's draws; torch's generators are restored.
        vmin: The value of the measure that is lightest; by default 0, or less if the measure is.
        vmax: The value that is darkest; larger ones are as dark. By default the largest.
        colorbar: Whether to draw the scale of darkness beside the axes.
        legend: Whether to name the colours of the classes, below the axes.
    """
    check_bool("colorbar", colorbar)
    check_bool("legend", legend)
    ground = _ground(bounds, resolution, x, y)
    found = _asked(predict, ground, measure, num_draws, seed)
    limits = _range([found], measure, vmin, vmax)
    ax = axes_for(ax, (5.6, 4.6))
    _draw(ax, found, limits, ground)
    if colorbar:
        _bar(ax.figure, ax, limits)
    if legend:
        _below(ax, found.probs.shape[1])
    return ax


def decision_maps(
    sources: Mapping[str, Any],
    bounds: Sequence[Sequence[float]],
    *,
    x: Tensor | None = None,
    y: Tensor | None = None,
    measure: Measure = "mutual_information",
    resolution: int = 60,
    num_draws: int = 500,
    seed: int | None = 0,
    vmin: float | None = None,
    vmax: float | None = None,
    columns: int | None = None,
) -> Figure:
    """Draw maps that are to be compared: one scale, one colour bar, one legend.

    Every panel is a :func:`decision_map` with the same range of the measure. Draws of a teacher are
    one set for the whole of its panel, and begin at the same seed in each.

    Args:
        sources: Students and teachers by the titles of their panels, row by row.
        bounds: ``((left, right), (bottom, top))``, in units of the inputs.
        x: Data to draw on top of each, ``(N, 2)``.
        y: Their labels, integers in ``[0, C)``, ``(N,)``.
        measure: A name of :data:`pyro_opu.reports.readings.MEASURES`.
        resolution: Inputs along each side of a panel.
        num_draws: Draws of a teacher.
        seed: Seed of the draws of every teacher; None draws on from torch's generator.
        vmin: The value of the measure that is lightest; by default 0, or less if a panel has less.
        vmax: The value that is darkest; by default the largest of all panels.
        columns: Panels in a row; by default all of them.

    Returns:
        A new pyplot figure.
    """
    advice = "Give each panel a title: {'teacher': predictive, 'student': fast}."
    instance_of("sources", sources, Mapping, "a dict title -> student or teacher", advice)
    if not sources:
        raise ArgumentError(
            f"`sources` must hold at least one student or teacher; got none. {advice}"
        )
    ground = _ground(bounds, resolution, x, y)
    found = [_asked(each, ground, measure, num_draws, seed) for each in sources.values()]
    limits = _range(found, measure, vmin, vmax)
    across = len(found) if columns is None else min(positive_int("columns", columns), len(found))
    down = math.ceil(len(found) / across)
    figure = new_figure((2.6 * across + 0.9, 2.6 * down + 0.5))
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for panel, title, each in zip(panels.flat, sources, found, strict=False):
        _draw(panel, each, limits, ground)
        panel.set_title(str(title), fontsize=10)
        panel.label_outer()
    for panel in panels.flat[len(found) :]:
        panel.set_axis_off()
    _bar(figure, panels, limits)
    classes = max(each.probs.shape[1] for each in found)
    look: dict[str, Any] = {"ncols": min(classes, 4), "fontsize": 9, "frameon": False}
    figure.legend(handles=_handles(classes), loc="outside lower center", **look)
    return figure


def _ground(bounds: Any, resolution: int, x: Tensor | None, y: Tensor | None) -> _Ground:
    resolution = positive_int("resolution", resolution, 2)
    _check_points(x, y)
    return _Ground(_checked_bounds(bounds), resolution, x, y)


def _asked(
    source: Source, ground: _Ground, measure: Measure, num_draws: int, seed: int | None
) -> _Map:
    """The source's answers at the cells, by one set of draws."""
    scale_of(measure)
    with seeded(seed):
        reading = read(source, _inputs(ground), num_draws)
    probs = reading.log_mean.double().exp().cpu().numpy()
    classes = probs.shape[1]
    if classes > len(SERIES):
        raise ArgumentError(
            f"`predict` must have at most {len(SERIES)} classes, as many as there are colours to "
            f"tell apart; got {classes}. Merge classes in a function x -> (S, N, C)."
        )
    if ground.labels is not None:
        check_labels(ground.labels, len(ground.labels), classes)
    return _Map(probs, finite(reading.detectors[measure], measure))


def _range(found: list[_Map], measure: Measure, low: float | None, high: float | None) -> _Range:
    """The range that was asked for, or the one that holds all maps."""
    for name, given in (("vmin", low), ("vmax", high)):
        instance_of(name, given, (int, float, type(None)), "a number or None")
    least, most = (f(float(f(each.measured)) for each in found) for f in (min, max))
    if high is None:
        # A map of one value is light.
        high = max(most, min(0.0, least) + 1e-6) if low is None else most
    low = min(0.0, least) if low is None else low
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ArgumentError(
            "`vmin` must be less than `vmax`, both finite, in the units of the measure; got "
            f"{low:g} and {high:g}. Leave one out to take it from the map."
        )
    return _Range(low, high, _TURNED.get(measure, scale_of(measure).label))


def _checked_bounds(bounds: Sequence[Sequence[float]]) -> Tensor:
    """As ``(2, 2)``, float64."""
    try:
        corners = torch.as_tensor(bounds, dtype=torch.float64).cpu()
    except (TypeError, ValueError):
        corners = torch.empty(0)
    fits = corners.shape == (2, 2) and corners.isfinite().all()
    if not (fits and (corners[:, 0] < corners[:, 1]).all()):
        raise ArgumentError(
            "`bounds` must be ((left, right), (bottom, top)) with left < right and bottom < top; "
            f"got {bounds!r}."
        )
    return corners


def _check_points(x: Tensor | None, y: Tensor | None) -> None:
    if x is None:
        if y is not None:
            raise ArgumentError("`y` needs `x`, the inputs that it labels; got labels alone.")
        return
    advice = "Choose two features, and give `predict` a function that fills in the others."
    check_row_shape("x", check_inputs(x), (2,), advice)
    if y is not None and len(check_tensor("y", y, "(N,)")) != len(x):
        raise ArgumentError(f"`y` must hold one label per row of `x`, {len(x)}; got {len(y)}.")


def _inputs(ground: _Ground) -> Tensor:
    """Centres of the cells, row by row from below, ``(resolution ** 2, 2)``."""
    across, up = (_centres(side, ground.resolution) for side in ground.corners)
    grid = torch.stack(torch.meshgrid(across, up, indexing="xy"), -1).reshape(-1, 2)
    return grid.to(torch.get_default_dtype()) if ground.x is None else grid.to(ground.x)


def _centres(side: Tensor, count: int) -> Tensor:
    return side[0] + (torch.arange(count, dtype=torch.float64) + 0.5) / count * (side[1] - side[0])


def _draw(ax: Axes, found: _Map, limits: _Range, ground: _Ground) -> None:
    """The colours, the borders and the data."""
    side, classes = ground.resolution, found.probs.shape[1]
    shade = ((found.measured - limits.low) / (limits.high - limits.low)).clip(0, 1)
    painted = map_colours(found.probs, shade).reshape(side, side, 3)
    left, right, bottom, top = extent = tuple(ground.corners.flatten().tolist())
    spread: dict[str, Any] = {"origin": "lower", "extent": extent, "aspect": "auto"}
    ax.imshow(painted, interpolation="bilinear", **spread)
    _borders(ax, found.probs.reshape(side, side, classes), ground.corners)
    if ground.x is not None:
        across, up = ground.x.detach().double().cpu().T.numpy()
        labels = ground.labels
        colours = "white" if labels is None else [SERIES[int(k)] for k in labels.cpu()]
        edge = BLACK if labels is None else "white"
        ax.scatter(across, up, s=16, c=colours, edgecolors=edge, linewidths=0.6, zorder=3)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(left, right), ylim=(bottom, top))


def _borders(ax: Axes, probs: Array, corners: Tensor) -> None:
    """Lines where a class is as likely as the likeliest other one, seen on light and on dark."""
    from matplotlib.patheffects import withStroke

    centres = [_centres(side, len(probs)).numpy() for side in corners]
    classes = probs.shape[-1]
    for k in range(1 if classes == 2 else classes):
        margin = probs[..., k] - np.delete(probs, k, -1).max(-1)
        if margin.min() < 0 < margin.max():
            line = ax.contour(*centres, margin, levels=[0.0], colors="white", linewidths=0.9)
            line.set(path_effects=[withStroke(linewidth=2.2, foreground=BLACK)])


def _bar(figure: Any, axes: object, limits: _Range) -> None:
    """The scale of darkness, in grey."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    steps = np.linspace(0, 1, 256)
    greys = ListedColormap(map_colours(np.full((256, 1), 0.0), steps), "darkness")
    scale = ScalarMappable(Normalize(limits.low, limits.high), greys)
    figure.colorbar(scale, ax=axes, label=limits.label)


def _handles(classes: int) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="", marker="o", color=SERIES[k], label=f"class {k}")
        for k in range(classes)
    ]


def _below(ax: Axes, classes: int) -> None:
    """The legend below the label of the axis, where no data are."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    below = ax.transAxes + ScaledTranslation(0, -38 / 72, figure.dpi_scale_trans)
    look: dict[str, Any] = {"fontsize": 8, "frameon": False, "handletextpad": 0.1, "borderpad": 0}
    place: dict[str, Any] = {"bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    handles = _handles(classes)
    ax.legend(handles=handles, loc="upper center", ncols=min(classes, 4), **look, **place)
