"""The picture of the cubic: mean and three deviations, one panel per method."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def draw(path: Path, panels: dict[str, Tensor], problem) -> None:
    """A panel for each name: mean and deviation ``(2, N)`` on the grid, and the points."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = 3
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4 * columns, 3.2 * rows), layout="constrained", squeeze=False,
        sharex=True, sharey=True,
    )  # fmt: skip
    for each in axes.flat[len(panels) :]:
        each.set_axis_off()
    grid, points = problem.raw_grid, problem.points
    for each, (name, (mean, deviation)) in zip(axes.flat, panels.items(), strict=False):
        each.fill_between(
            grid, mean - 3 * deviation, mean + 3 * deviation, color="#56B4E9", alpha=0.5
        )
        each.plot(grid, mean, color="#0072B2", label="mean, 3 deviations")
        each.plot(grid, grid**3, color="black", linewidth=0.8, linestyle="--", label="$x^3$")
        each.plot(points.x[:, 0], points.y, "o", color="#D55E00", markersize=3)
        each.set_title(name, fontsize=10)
        each.set_ylim(-250, 250)
    axes[0, 0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
