"""Decision maps of two-dimensional inputs: classes and uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_labels, check_row_shape, check_tensor, positive_int
from pyro_opu.plots.canvas import axes_for, finite, read, scale_of
from pyro_opu.plots.colours import BLACK, SERIES
from pyro_opu.reports.readings import Array
from pyro_opu.rng import seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Labels of the measures whose sign is changed, to grow with uncertainty.
_TURNED = {
    "concentration": r"$-\log\,\alpha_0$ (concentration)",
    "max_probability": "1 - largest class probability",
}


def decision_map(
    predict: Any,
    bounds: Sequence[Sequence[float]],
    *,
    x: Tensor | None = None,
    y: Tensor | None = None,
    measure: str = "mutual_information",
    resolution: int = 100,
    num_draws: int = 500,
    seed: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw class probabilities and an uncertainty over a rectangle of inputs.

    Colours of the classes are mixed by the mean class probabilities; black lines are decision
    boundaries. The darker the shade, the larger the measure, which grows with uncertainty.

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
    """
    scale = scale_of(measure)
    corners = _checked_bounds(bounds)
    positive_int("resolution", resolution, 2)
    _check_points(x, y)
    with seeded(seed):
        reading = read(predict, _inputs(corners, resolution, x), num_draws)
    probs = reading.log_mean.double().exp().cpu().numpy()
    classes = probs.shape[1]
    if classes > len(SERIES):
        raise ValueError(
            f"`predict` must have at most {len(SERIES)} classes, as many as there are colours to "
            f"tell apart; got {classes}. Merge classes in a function x -> (S, N, C)."
        )
    labels = None if y is None else check_labels(y, len(y), classes)
    shade = finite(reading.detectors[measure], measure)
    ax = axes_for(ax, (5.6, 4.2))
    extent = tuple(corners.flatten().tolist())
    _paint(ax, probs, shade.reshape(resolution, resolution), extent)
    ax.figure.colorbar(ax.images[-1], ax=ax, label=_TURNED.get(measure, scale.label))
    _borders(ax, probs.reshape(resolution, resolution, classes), corners)
    _points(ax, x, labels, classes)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", xlim=extent[:2], ylim=extent[2:])
    return ax


def _checked_bounds(bounds: Sequence[Sequence[float]]) -> Tensor:
    """As ``(2, 2)``, float64."""
    try:
        corners = torch.as_tensor(bounds, dtype=torch.float64).cpu()
    except (TypeError, ValueError):
        corners = torch.empty(0)
    fits = corners.shape == (2, 2) and corners.isfinite().all()
    if not (fits and (corners[:, 0] < corners[:, 1]).all()):
        raise ValueError(
            "`bounds` must be ((left, right), (bottom, top)) with left < right and bottom < top; "
            f"got {bounds!r}."
        )
    return corners


def _check_points(x: Tensor | None, y: Tensor | None) -> None:
    if x is None:
        if y is not None:
            raise ValueError("`y` needs `x`, the inputs that it labels; got labels alone.")
        return
    advice = "Choose two features, and give `predict` a function that fills in the others."
    check_row_shape("x", check_inputs(x), (2,), advice)
    if y is not None and len(check_tensor("y", y, "(N,)")) != len(x):
        raise ValueError(f"`y` must hold one label per row of `x`, {len(x)}; got {len(y)}.")


def _inputs(corners: Tensor, resolution: int, x: Tensor | None) -> Tensor:
    """Centres of the cells, row by row from below, ``(resolution ** 2, 2)``."""
    across, up = (_centres(side, resolution) for side in corners)
    grid = torch.stack(torch.meshgrid(across, up, indexing="xy"), -1).reshape(-1, 2)
    return grid.to(torch.get_default_dtype()) if x is None else grid.to(x)


def _centres(side: Tensor, count: int) -> Tensor:
    return side[0] + (torch.arange(count, dtype=torch.float64) + 0.5) / count * (side[1] - side[0])


def _paint(ax: Axes, probs: Array, shade: Array, extent: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    colours = np.array([to_rgb(colour) for colour in SERIES[: probs.shape[1]]])
    mixed = (probs @ (0.45 + 0.55 * colours)).reshape(*shade.shape, 3).clip(0, 1)
    spread: dict[str, Any] = {"origin": "lower", "extent": extent, "aspect": "auto"}
    ax.imshow(mixed, interpolation="bilinear", **spread)
    dark = LinearSegmentedColormap.from_list("dark", [(0, 0, 0, 0), (0, 0, 0, 0.75)])
    low = min(0.0, float(shade.min()))
    high = max(float(shade.max()), low + 1e-9)
    ax.imshow(shade, interpolation="bilinear", cmap=dark, vmin=low, vmax=high, **spread)


def _borders(ax: Axes, probs: Array, corners: Tensor) -> None:
    """Lines where a class is as likely as the likeliest other one."""
    centres = [_centres(side, len(probs)).numpy() for side in corners]
    classes = probs.shape[-1]
    for k in range(1 if classes == 2 else classes):
        margin = probs[..., k] - np.delete(probs, k, -1).max(-1)
        if margin.min() < 0 < margin.max():
            ax.contour(*centres, margin, levels=[0.0], colors=BLACK, linewidths=0.9)


def _points(ax: Axes, x: Tensor | None, labels: Tensor | None, classes: int) -> None:
    """The data, and the legend of the classes."""
    from matplotlib.lines import Line2D

    if x is not None:
        across, up = x.detach().double().cpu().T.numpy()
        colours = [SERIES[int(k)] for k in labels.cpu()] if labels is not None else "white"
        ax.scatter(across, up, s=16, c=colours, edgecolors=BLACK, linewidths=0.6, zorder=3)
    handles = [
        Line2D([], [], linestyle="", marker="o", color=SERIES[k], label=f"class {k}")
        for k in range(classes)
    ]
    ax.legend(handles=handles, loc="upper right", fontsize=8, framealpha=0.9, handletextpad=0.1)
