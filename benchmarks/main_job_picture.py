"""The picture of the main job: what the student says beside what its teacher says."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import pyro_opu

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#555555"  # Okabe and Ito


def draw(path: Path, fast, teacher, x: Tensor, outside: dict[str, Tensor], times: dict) -> None:
    """Three panels: epistemic uncertainty of both, one uncertain input, and the time of both."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    draws = teacher.probs(x)
    scatter(left, fast, teacher, {"digits": x, **outside})
    one_input(middle, fast, draws, x)
    points(right, times, len(x))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def scatter(axes, fast, teacher, sets: dict[str, Tensor]) -> None:
    """Mutual information per input, teacher against student."""
    colours = (BLUE, ORANGE, GREEN, GREY)
    for (name, x), colour in zip(sets.items(), colours, strict=False):
        theirs = pyro_opu.uncertainty(teacher.probs(x)).epistemic
        mine = fast.uncertainty(x).epistemic
        axes.scatter(theirs, mine, s=7, alpha=0.5, color=colour, label=name, linewidths=0)
    low, high = 1e-4, 1.5
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="500 runs of the model (nats)", ylabel="one pass of the student (nats)")
    axes.set_title("How unsure the model is, input by input:\none pass says what 500 runs say")
    axes.legend(markerscale=2, frameon=False)


def one_input(axes, fast, draws: Tensor, x: Tensor) -> None:
    """Class probabilities of the most uncertain input: the draws and the student's intervals."""
    chosen = int(pyro_opu.uncertainty(draws).total.argmax())
    answer = fast.distribution(x[chosen : chosen + 1])
    classes = torch.arange(draws.shape[-1])
    jitter = (torch.rand(draws.shape[0], 1) - 0.5) * 0.3
    axes.scatter(
        (classes + jitter - 0.2).flatten(), draws[:, chosen].flatten(), s=2, alpha=0.25, color=BLUE,
        linewidths=0, label="500 runs of the model, a dot each",
    )  # fmt: skip
    low, high = answer.sample((10_000,))[:, 0].quantile(torch.tensor([0.05, 0.95]), 0)
    axes.vlines(
        classes + 0.2, low, high, color=ORANGE, linewidth=4, label="one pass: 90 % interval"
    )
    axes.plot(classes + 0.2, answer.mean[0], "_", color="black", label="one pass: mean")
    axes.set(xticks=classes.tolist(), xlabel="class", ylabel="probability", ylim=(-0.02, 1.02))
    axes.set_title("The digit it is least sure of:\nprobability of each class")
    axes.legend(frameon=False, markerscale=1.5)


def points(axes, times: dict[str, float], count: int) -> None:
    """Times as points: on a logarithmic axis a bar would begin anywhere."""
    colours, names = {"Predictive": BLUE, "one pass": ORANGE}, {"Predictive": "500 runs"}
    for place, (name, seconds) in enumerate(times.items()):
        axes.plot(1e3 * seconds, place, "o", color=colours[name], markersize=9)
        axes.annotate(
            f"{1e3 * seconds:.3g} ms", (1e3 * seconds, place), (0, 10),
            textcoords="offset points", ha="center",
        )  # fmt: skip
    axes.set(
        xscale="log",
        yticks=range(len(times)),
        yticklabels=[names.get(name, name) for name in times],
    )
    axes.set(xlabel=f"milliseconds for {count} inputs", ylim=(-0.6, len(times) - 0.4))
    axes.margins(x=0.25)
    axes.grid(axis="x", alpha=0.3)
    ratio = times["Predictive"] / times["one pass"]
    axes.set_title(f"Time of an answer:\n{ratio:.0f} times faster")
