"""The picture of the toy problem in the plane: P(y = 1) on the grid, one panel per method."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

ORDER = ("SGD", "NUTS", "SGLD", "distilled")  # as in the paper's Figure 1


def draw(path: Path, panels: dict[str, Tensor], axis: Tensor, train) -> None:
    """A panel for each name: P(y = 1) ``(n * n,)`` on the grid of the axis, and the points."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = sorted(panels, key=_place)
    columns = 4
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3 * columns, 3.1 * rows), layout="constrained", squeeze=False
    )
    for each in axes.flat[len(names) :]:
        each.set_axis_off()
    for each, name in zip(axes.flat, names, strict=False):
        values = panels[name].reshape(len(axis), len(axis)).T
        image = each.imshow(
            values, origin="lower", extent=(-10, 10, -10, 10), vmin=0, vmax=1, cmap="RdBu_r"
        )
        for label, marker in ((0, "o"), (1, "s")):
            points = train.x[train.y == label].T
            each.plot(*points, marker, color="black", markersize=3, fillstyle="none")
        each.set_title(name.replace(" of these", "\nof these"), fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7, label="P(y = 1)")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _place(name: str) -> int:
    return next((place for place, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))
