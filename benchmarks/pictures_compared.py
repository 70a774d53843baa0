r"""Small pictures of the figures whose drawing has changed, for ``docs/figures.md``.

The same answers, drawn by the ``pyro_opu`` that is imported: that of this checkout into
``docs/pictures/now``. Those in ``docs/pictures/before`` are by the package of commit ``89fa124``,
with this file and ``PYTHONPATH`` on a checkout of it. The answers of students and teachers are made
once, by the first command, and read by the second:

    python -m benchmarks.pictures_compared --answers answers.safetensors
    PYTHONPATH=../checkout-of-89fa124 python benchmarks/pictures_compared.py docs/pictures/before \
        --answers answers.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor

import pyro_opu
from pyro_opu import datasets, plots
from pyro_opu.models.neural_network import dropout_network, fit_network

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
NEW = hasattr(plots, "decision_maps")
#: Milliseconds, as large a ratio as in the main job; only how they are drawn is shown.
TIMES = {"one pass": 4.0, "Predictive": 230.0}
SIDE = 50


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", nargs="?", type=Path, default=FOLDER / "now")
    options.add_argument("--answers", type=Path, help="made if it is not there")
    args = options.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.answers is None or not args.answers.exists():
        answers = {**moons(600), **digits(150, 1000)}
        if args.answers is not None:
            save_file(answers, args.answers)
    else:
        answers = load_file(args.answers)
    for name, figure in drawn(answers).items():
        figure.savefig(args.folder / f"{name}.png", dpi=60)


def drawn(answers: dict[str, Tensor]) -> dict[str, Figure]:
    """The figures by their names."""
    return {
        "simplex": sure_input(),
        "times": times(),
        "maps": maps(answers),
        **of_digits(answers),
    }


def taught(network: Any, x: Tensor, steps: int) -> Any:
    return pyro_opu.distill(network, x, loss="moments", num_steps=steps, seed=0, progress=False)


def moons(steps: int) -> dict[str, Tensor]:
    """A teacher of two moons and its student at the centres of a grid, and the data."""
    torch.manual_seed(0)
    data = datasets.two_moons(300, noise=0.15)
    network = fit_network(dropout_network((2, 50, 2)), data.x, data.y, epochs=200)
    fast = taught(network, 6 * torch.rand(1000, 2) - 3, steps)
    centres = 6 * (torch.arange(SIDE) + 0.5) / SIDE - 3
    grid = torch.cartesian_prod(centres, centres)
    draws = pyro_opu.as_teacher(network).probs(grid, 100)
    alpha = fast.dirichlet(grid).concentration
    points = data.x[:60].contiguous(), data.y[:60].contiguous()
    return {"grid": grid, "map draws": draws, "map alpha": alpha} | dict(
        zip(("moons", "labels"), points, strict=True)
    )


def digits(epochs: int, steps: int) -> dict[str, Tensor]:
    """A teacher of digits and its student at the test digits, and their labels."""
    torch.manual_seed(0)
    bundle = load_digits()
    pixels = torch.tensor(bundle.data / 16, dtype=torch.float32)
    data = datasets.Dataset(pixels, torch.tensor(bundle.target), "digits")
    rest, test = datasets.split(data, test=497)
    train, transfer = datasets.split(rest, test=600)
    network = fit_network(dropout_network((64, 128, 128, 10)), train.x, train.y, epochs=epochs)
    fast = taught(network, transfer.x, steps)
    draws = pyro_opu.as_teacher(network).probs(test.x, 200)
    alpha = fast.dirichlet(test.x).concentration
    return {"digits": test.x, "digit labels": test.y, "draws": draws, "alpha": alpha}


def recorded(inputs: Tensor, answers: Tensor) -> Any:
    """A function of inputs with an answer in store, ``(N, D)``: draws, or a Dirichlet's alpha."""

    def answer(x: Tensor) -> Any:
        rows = torch.cdist(x.double(), inputs.double()).argmin(1)
        if answers.ndim == 3:
            return answers[:, rows]
        return torch.distributions.Dirichlet(answers[rows])

    return answer


def new_figure(size: tuple[float, float], columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns)


def sure_input() -> Figure:
    """A teacher whose mean is at .999, and a student a little less sure."""
    draws = torch.distributions.Dirichlet(torch.tensor([3000.0, 2.0, 1.0])).sample((300,))
    student = torch.distributions.Dirichlet(torch.tensor([1500.0, 1.5, 1.0]))
    figure, ax = new_figure((4.2, 3.6))
    plots.simplex(student, draws, labels=["cat", "dog", "cow"], ax=ax)
    return figure


def times() -> Figure:
    """As the main job's picture draws them."""
    figure, ax = new_figure((4.2, 2.4))
    try:
        from benchmarks.main_job_picture import points
    except ImportError:
        ax.barh(list(TIMES), list(TIMES.values()), color=["#E69F00", "#0072B2"], height=0.5)
        ax.set(xscale="log", xlabel="milliseconds for 497 inputs")
        return figure
    points(ax, {name: value / 1000 for name, value in TIMES.items()}, 497)
    return figure


def maps(answers: dict[str, Tensor]) -> Figure:
    """A teacher of two moons and its student."""
    sources = {
        "teacher": recorded(answers["grid"], answers["map draws"]),
        "student": recorded(answers["grid"], answers["map alpha"]),
    }
    settings: dict[str, Any] = {"x": answers["moons"], "y": answers["labels"], "resolution": SIDE}
    bounds = ((-3, 3), (-3, 3))
    if NEW:
        figure = plots.decision_maps(sources, bounds, **settings)
        figure.set_size_inches(7.0, 3.2)
        return figure
    figure, panels = new_figure((7.0, 3.2), 2)
    for panel, (name, source) in zip(panels, sources.items(), strict=True):
        plots.decision_map(source, bounds, ax=panel, **settings)
        panel.set_title(name)
    return figure


def of_digits(answers: dict[str, Tensor]) -> dict[str, Figure]:
    """Reliability, and the student's mutual information against the teacher's."""
    x, y = answers["digits"], answers["digit labels"]
    student, teacher = (recorded(x, answers[name]) for name in ("alpha", "draws"))
    found: dict[str, Figure] = {}
    found["reliability"], ax = new_figure((3.6, 3.4))
    plots.reliability({"student": student(x).mean}, y, ax=ax)
    found["fidelity"], ax = new_figure((3.6, 3.4))
    plots.fidelity_scatter(student, teacher, x, num_draws=200, ax=ax)
    return found


if __name__ == "__main__":
    main()
