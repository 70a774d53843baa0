"""The pictures of Bayesian Dark Knowledge: P(y = 1) over the plane, and the cubic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ORDER = ("SGD", "NUTS", "SGLD", "distilled")  # as in the paper's Figure 1


def panels(names: list[str], columns: int, size: tuple[float, float], **settings: Any) -> Any:
    """A figure with a titled panel for every name."""
    from matplotlib.figure import Figure

    rows = -(-len(names) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **settings).flat)
    for each, name in zip(axes, names, strict=False):
        each.set_title(name.replace(" of SGLD", "\nof SGLD"), fontsize=9)
    for each in axes[len(names) :]:
        each.set_axis_off()
    return figure, axes


def planes(path: Path, found: dict[str, Tensor], axis: Tensor, train: Any) -> None:
    """A panel for each name: P(y = 1) ``(n * n,)`` on the grid of the axis, and the points."""
    names = sorted(found, key=_place)
    figure, axes = panels(names, 4, (3, 3.1))
    for each, name in zip(axes, names, strict=False):
        values = found[name].reshape(len(axis), len(axis)).T
        image = each.imshow(
            values, origin="lower", extent=(-10, 10, -10, 10), vmin=0, vmax=1, cmap="RdBu_r"
        )
        for label, marker in ((0, "o"), (1, "s")):
            points = train.x[train.y == label].T
            each.plot(*points, marker, color="black", markersize=3, fillstyle="none")
    figure.colorbar(image, ax=axes, shrink=0.7, label="P(y = 1)")
    figure.savefig(path, dpi=100)


def _place(name: str) -> int:
    return next((place for place, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))


def cubics(path: Path, found: dict[str, Tensor], grid: Tensor, points: Any) -> None:
    """A panel for each name: mean and deviation ``(2, N)`` on the grid, and the points."""
    figure, axes = panels(list(found), 3, (4, 3.2), sharex=True, sharey=True)
    for each, (mean, deviation) in zip(axes, found.values(), strict=False):
        bounds = torch.stack([mean - 3 * deviation, mean + 3 * deviation])
        each.fill_between(grid, *bounds, color="#56B4E9", alpha=0.5)
        each.plot(grid, mean, color="#0072B2", label="mean, 3 deviations")
        each.plot(grid, grid**3, color="black", linewidth=0.8, linestyle="--", label="$x^3$")
        each.plot(points.x[:, 0], points.y, "o", color="#D55E00", markersize=3)
        each.set_ylim(-250, 250)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=100)
