"""Pictures of a student beside its teacher: the simplex, the line, histograms and risk-coverage.

Four files in ``docs/pictures``, each from one seed: they show what the tables of the other
benchmarks measure, and are no measurement themselves.

``simplex.png`` is Fig. 1 of Cui et al. (2019) for three inputs: the MNIST test digit whose largest
probability in the teacher's mean is nearest to .999 (confident), the one whose two likeliest
classes are nearest in the teacher's mean (ambiguous), and the Fashion-MNIST test image where the
teacher's mutual information is largest (outside). The three classes are the likeliest in the
teacher's mean; draws are renormalised to them, and the student's Dirichlet on them is the exact
sub-composition.
The paper's teacher knows three digits only; this one knows all ten, so that the three classes do
not hold all of the probability. How much they hold is written beside the image.

``line.png`` is Fig. 3: a teacher whose draws lie on the edge between two classes (the function of
``benchmarks.known``, not an image), a student of one Dirichlet, one of a mixture, and how
often each of the three puts class 0 where on the edge. The energy distance is that of 4,000 draws.
``concentration.png`` and ``risk_coverage.png`` are of the same MNIST student: its concentration on
MNIST and on three other test sets, and the errors of both among the digits that are kept.

The teacher is the dropout network of ``papers.mnist`` after 5 epochs on 40,000 training rows,
so that the whole command takes three minutes; the student is distilled in 1,000 steps from the
20,000 other rows, without labels and without any image of another set.

    python -m benchmarks.pictures --write
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyro_opu
from benchmarks.known import KNOWN
from papers import datasets
from papers.mnist import images, pixels, trained
from papers.results import parser
from pyro_opu import plots
from pyro_opu.metrics.distances import energy_distance
from pyro_opu.plots.colours import BLUE, GREEN, ORANGE
from pyro_opu.transfer import default_transfer

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
ROWS = ("confident", "ambiguous", "outside")
#: Without the critic and the recalibration, which take most of the time of a few steps.
SHORT: dict[str, Any] = {"loss": "energy", "training": pyro_opu.Training(recalibrate=False)}


def main() -> None:
    quick = not parser(__doc__).parse_args().write
    torch.set_num_threads(1)
    mnist(quick)
    line(quick)


def mnist(quick: bool) -> None:
    """Train, distil, and draw the three pictures of the digits."""
    rows, steps, tested, draws = (400, 10, 200, 20) if quick else (40_000, 1000, 2000, 200)
    x, y = images(train=True)
    network = trained(0, (x[:rows], y[:rows]), 1 if quick else 5)
    transfer = x[rows : rows + rows // 2]
    fast = pyro_opu.distill(
        network,
        transfer,
        guide="dirichlet",
        transfer=default_transfer(transfer, image_shape=(28, 28)),
        loss="energy" if quick else None,
        seed=0,
        progress=False,
        training=pyro_opu.Training(num_steps=steps, num_draws=16, recalibrate=not quick),
    )
    torch.manual_seed(0)
    teacher = pyro_opu.as_teacher(network)
    x, y = (part[:tested] for part in images(train=False))
    outside = outside_images(tested)
    answers = teacher.probs(x, draws)
    triptych(fast, teacher, chosen(x, answers, outside["Fashion-MNIST"], teacher), quick)
    histograms(fast, {"MNIST": x, **outside}, quick)
    risk_coverage(fast, x, y, answers, quick)


def outside_images(count: int) -> dict[str, Tensor]:
    """Test images of other sets by name, at most so many, ``(M, 784)`` in [-1, 1]."""
    sets = {
        "Fashion-MNIST": datasets.fashion_mnist(train=False),
        "KMNIST": datasets.kmnist(),
        "Semeion": datasets.semeion(28),
    }
    return {name: pixels(data, count) for name, data in sets.items()}


def chosen(x: Tensor, answers: Tensor, outside: Tensor, teacher: Any) -> Tensor:
    """One input for every row of the triptych, ``(3, 784)``, by the rules above."""
    first, second = answers.mean(0).topk(2).values.T
    confident = (first - 0.999).abs().argmin()
    elsewhere = pyro_opu.uncertainty(teacher.probs(outside, len(answers))).epistemic.argmax()
    return torch.stack([x[confident], x[(first - second).argmin()], outside[elsewhere]])


def triptych(fast: Any, teacher: Any, x: Tensor, quick: bool) -> None:
    """Rows: the inputs. Columns: the image, the teacher's draws, the student's Dirichlet."""
    figure, panels = canvas((9.0, 8.4), 3, 3)
    answers = teacher.probs(x, 500)
    students = fast.dirichlet(x)
    for n, (image, draws, density) in enumerate(panels):
        classes = answers[:, n].mean(0).topk(3).indices.tolist()
        student = pyro_opu.PredictiveDirichlet(students.log_mean[n], students.log_concentration[n])
        labels = [str(k) for k in classes]
        theirs = plots.three_classes(answers[:, n], classes)
        mine = plots.three_classes(student, classes)
        plots.simplex(draws=theirs, labels=labels, ax=draws)
        plots.simplex(mine, labels=labels, ax=density)
        image.imshow(x[n].reshape(28, 28), cmap="gray_r")
        image.set(xticks=[], yticks=[])
        image.set_ylabel(ROWS[n], fontsize=13)
        held = [100 * p[classes].sum().item() for p in (answers[:, n].mean(0), student.mean)]
        image.set_xlabel(
            f"{', '.join(labels)} hold {held[0]:.0f} % of the teacher's\n"
            f"mean and {held[1]:.0f} % of the student's"
        )
        alpha_0 = student.log_concentration.exp().item()
        density.set_title(rf"$\alpha_0$ = {alpha_0:.3g}, ten classes", y=-0.16, fontsize=10)
    for panel, title in zip(panels[0], ("input", "teacher", "student, one pass"), strict=True):
        panel.annotate(
            title, (0.5, 1.0), (0, 12), xycoords="axes fraction", textcoords="offset points",
            ha="center", fontsize=13,
        )  # fmt: skip
    keep(figure, "simplex", quick)


def histograms(fast: Any, sets: dict[str, Tensor], quick: bool) -> None:
    figure, ax = canvas((6.4, 4.0))
    answers = {name: fast.distribution(x) for name, x in sets.items()}
    plots.concentration_histograms(answers, ax=ax)
    ax.set_title("Student of MNIST digits, on four test sets", fontsize=10)
    keep(figure, "concentration", quick)


def risk_coverage(fast: Any, x: Tensor, y: Tensor, answers: Tensor, quick: bool) -> None:
    """Both are scored by the entropy of their own mean, on their own errors."""
    figure, ax = canvas((5.6, 4.2))
    means = {"teacher": answers.mean(0), "student": fast.distribution(x).mean}
    scores = {
        "teacher": pyro_opu.uncertainty(answers).entropy,
        "student": fast.uncertainty(x).entropy,
    }
    wrong = {name: mean.argmax(-1) != y for name, mean in means.items()}
    plots.risk_coverage(scores, wrong, ax=ax)
    ax.set_title(f"{len(x)} MNIST test digits, kept by entropy", fontsize=10)
    keep(figure, "risk_coverage", quick)


def line(quick: bool) -> None:
    """The teacher on the edge, two students, and the three of them along the edge."""
    torch.manual_seed(0)
    x, here = torch.randn(1000, 2), torch.tensor([[0.5, 1.0]])
    posterior = KNOWN["two-class line"]
    answers = {"teacher": posterior.judge(here, 4000)}
    figure, panels = canvas((14.5, 3.9), 1, 4)
    plots.simplex(draws=answers["teacher"][:300], ax=panels[0])
    panels[0].set_title("teacher, 300 draws")
    for panel, name in zip(panels[1:3], ("dirichlet", "mixture"), strict=True):
        short = {"num_steps": 5, **SHORT} if quick else {"num_steps": 1000}
        fast = pyro_opu.distill(posterior.teacher, x, guide=name, **short, seed=0, progress=False)
        student = fast.distribution(here)
        plots.simplex(student, ax=panel)
        answers[name] = student.sample((4000,))
        distance = energy_distance(answers["teacher"], answers[name]).item()
        panel.set_title(f"{name}, energy distance {round(distance, 4) + 0.0:.4f}")
    looks = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."))
    for (name, draws), (colour, style) in zip(answers.items(), looks, strict=True):
        panels[3].hist(
            draws[:, 0, 0], 25, range=(0, 1), density=True, histtype="step", color=colour,
            linestyle=style, linewidth=1.5, label=name,
        )  # fmt: skip
    panels[3].set(xlabel=r"$\pi_0$ (on the edge, $1 - \pi_1$)", ylabel="density, 4,000 draws")
    panels[3].legend(frameon=False)
    keep(figure, "line", quick)


def canvas(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure of its own, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def keep(figure: Any, name: str, quick: bool) -> None:
    """Write the picture; without ``--write`` render it only."""
    if quick:
        figure.savefig(BytesIO(), format="png", dpi=100)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    figure.savefig(path, dpi=100)
    print(f"{path.relative_to(FOLDER.parent.parent)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
