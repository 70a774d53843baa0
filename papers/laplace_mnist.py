"""The Laplace bridge on MNIST: confidence, inputs from elsewhere, and time, against sampling.

python -m papers.laplace_mnist --seeds 3

Hobbhahn, Kristiadi and Hennig 2020: the Laplace approximation of a network gives normal logits; the
bridge turns them into a Dirichlet, sampling into a mean of draws. MMC is the mean over inputs of
the largest class probability; AUROC is that of MNIST's test rows against another set, by the
largest probability (the slides do not say), and by mutual information and concentration beside it.
Nothing is chosen on test rows. A seed sets rows held out, training and draws. Times are seconds of
processor time, one thread, and start at the normal law of the logits, as the paper's do; what that
law takes is a column of its own. The speed tests are described in `papers/laplace_speed.py`.

What differs from the paper, of which we have the slides:

- The slides name neither network nor number of draws. Here: a network of LeNet's form (two
  convolutions of 6 and 16 channels, 84 units, 10 classes), 10 epochs of Adam on 50,000 of the
  training rows, normal weights in the last layer, and 1,000 draws of the logits of each input.
- notMNIST is not at hand. Semeion stands in, enlarged to the whole image ("Semeion"; the mean
  pixel tells it from MNIST) and in MNIST's frame ("Semeion, framed").
- The precision of the prior is where Laplace's marginal likelihood is highest. The paper's sampling
  is far less sure (MMC 0.942) than this posterior, or one with a precision of 1e-4: with so many
  rows the curvature rules. So a third posterior is the diagonal one with the variances of the
  logits times one factor, at which sampling has that MMC on 2,000 of the training rows held out.
- `distill` learns from the diagonal posterior, on the held-out training rows without labels, in
  a fifth of its usual steps.
- The bridge projects independent logits to a zero sum; the paper's code conditions them on it.

Misses. By the largest probability, the slides' measure, the bridge does not detect better than
sampling; on KMNIST by mutual information it is far behind. On the logits of a network it is worth a
few samples, and more than a hundred only where the logits have the distribution that Dirichlets
give them, and not at a hundredth of their time. The law of the logits takes about half as long as
the samples. The means of the probit are nearer to sampling everywhere, but it has no density.
"""

from __future__ import annotations

import math
import time
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import pyro_opu
from papers import datasets
from papers.laplace_answers import (
    Gaussian,
    auroc,
    fitted,
    gaussian,
    measured,
    methods,
    mmc,
    read,
    timed,
    trivial,
)
from papers.laplace_speed import of_dirichlets, speed_tests
from papers.results import Tables, over_seeds, parser, record_seeds
from pyro_opu.metrics.distances import kl_divergence
from pyro_opu.models.laplace_network import NetworkLaplace
from pyro_opu.models.neural_network import convolutional_network, fit_network

#: The paper's MMC of sampling on MNIST's test rows.
PAPER_MMC = 0.942
#: Method and test set of the diagonal posterior -> the paper's figures.
PAPER = {
    ("sampling", "MNIST"): {"MMC, paper": PAPER_MMC},
    ("sampling", "Fashion-MNIST"): {"MMC, paper": 0.397, "AUROC, paper": 99.2},
    ("sampling", "KMNIST"): {"MMC, paper": 0.513, "AUROC, paper": 97.4},
    ("bridge", "MNIST"): {"MMC, paper": 0.987},
    ("bridge", "Fashion-MNIST"): {"MMC, paper": 0.363, "AUROC, paper": 99.6},
    ("bridge", "KMNIST"): {"MMC, paper": 0.637, "AUROC, paper": 97.3},
}
#: Table -> columns that say what a row is of; the rest are numbers.
KEYS = {
    "Detection": ("posterior", "method", "test set"),
    "Time": ("posterior",),
    "Trained on 0, 1, 2": ("digit",),
    "Speed tests": ("inputs", "answer", "samples"),
    "Posteriors": (),
}


def main() -> None:
    options = parser(__doc__, seeds=5)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--draws", type=int, default=1000)
    options.add_argument("--steps", type=int, default=600, help="of distill")
    options.add_argument("--reference", type=int, default=100_000, help="draws in the speed tests")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.epochs, args.draws, args.steps = 1, 1, 30, 5
        args.reference = 200
    record_seeds(__file__, args, one_seed, tables)


def tables(runs: Tables) -> Tables:
    """Means over seeds, the paper's figures beside those of detection."""
    found = {title: over_seeds(runs[title], by) for title, by in KEYS.items()}
    for row in found["Detection"]:
        if row["posterior"].startswith("diagonal"):
            row.update(PAPER.get((row["method"], row["test set"]), {}))
    return found


def one_seed(seed: int, args) -> Tables:
    """The rows of all tables."""
    train, held = datasets.split(datasets.mnist(), test=10_000, seed=seed)
    test = datasets.mnist(train=False)
    most = 100 if args.quick else None
    if args.quick:
        train, held = train.take(slice(300)), held.take(slice(200))
    sets = {name: x[:most] for name, x in {"MNIST": test.x, **outside()}.items()}
    fits, found = posteriors(seed, train, held, test, args)
    start = time.process_time()
    student = distilled(fits["diagonal"], held.x, seed, args)
    found["distill, s"] = time.process_time() - start
    wide, factor = f"diagonal, MMC {PAPER_MMC}", found["factor of the variances"]
    detection, times = [], []
    for name, fit in fits.items():
        laws = {which: gaussian(fit, x) for which, x in sets.items()}
        answers = {"distill": student} if name == "diagonal" else {}
        detection += judged(name, laws, sets, answers, args.draws)
        spent = timed(fit, sets["MNIST"], laws["MNIST"], answers, args.draws)
        times.append({"posterior": name, **spent})
        if name == "diagonal":
            wider = {which: (mean, factor * c) for which, (mean, c) in laws.items()}
            detection += judged(wide, wider, sets, {}, args.draws)
            some = {which: laws[which] for which in ("MNIST", "Fashion-MNIST")}
            some[f"Fashion-MNIST, MMC {PAPER_MMC}"] = wider["Fashion-MNIST"]
            some["laws of Dirichlets"] = of_dirichlets(10)
            curves = speed_tests(some, args.reference)
    return {
        "Detection": detection + trivial(sets),
        "Time": times,
        "Trained on 0, 1, 2": digits(seed, train, test, most, args),
        "Speed tests": curves,
        "Posteriors": [found],
    }


def posteriors(
    seed: int, train: datasets.Dataset, held: datasets.Dataset, test: datasets.Dataset, args
) -> tuple[dict[str, NetworkLaplace], dict[str, Any]]:
    """The two Laplace approximations of the trained network, and numbers about them."""
    start = time.process_time()
    network = trained(seed, train.x, train.y, 10, args.epochs)
    found: dict[str, Any] = {"training, s": time.process_time() - start}
    with torch.no_grad():
        correct = (network(test.x).argmax(-1) == test.y).double().mean().item()
    found["accuracy of the network, %"] = 100 * correct
    fit = partial(fitted, network, train.x, train.y)
    fits = {"diagonal": fit(structure="diag"), "kron": fit(structure="kron")}
    for name, each in fits.items():
        found[f"prior precision, {name}"] = float(each.fit.prior_precision)
    law = gaussian(fit(structure="diag", precision=1e-4), held.x[:2000])
    found["MMC held out, precision 1e-4"] = mmc(read(methods(200)["sampling"], *law))
    law = gaussian(fits["diagonal"], held.x[:2000])
    found["factor of the variances"] = widening(*law, PAPER_MMC)
    return fits, found


def outside() -> dict[str, Tensor]:
    return {
        "Fashion-MNIST": datasets.fashion_mnist(train=False).x,
        "KMNIST": datasets.kmnist().x,
        "Semeion": datasets.semeion(28).x,
        "Semeion, framed": datasets.semeion(20, pad=4).x,
    }


def trained(seed: int, x: Tensor, y: Tensor, classes: int, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    features = convolutional_network((28, 28), 84, (6, 16))
    network = nn.Sequential(*features, nn.ReLU(), nn.Linear(84, classes))
    return fit_network(network, x, y, epochs=epochs, batch_size=128)


def widening(mean: Tensor, variance: Tensor, target: float) -> float:
    """The factor of the variances, at least 1, that takes the MMC of 200 draws to the target."""
    noise = torch.randn(200, *mean.shape)
    low, high = 0.0, 14.0  # of its logarithm
    for _ in range(20):
        middle = (low + high) / 2
        probs = (mean + noise * (variance * torch.tensor(middle).exp()).sqrt()).softmax(-1)
        sure = probs.mean(0).amax(-1).mean().item() > target
        low, high = (middle, high) if sure else (low, middle)
    return float(torch.tensor((low + high) / 2).exp())


def distilled(fit: NetworkLaplace, x: Tensor, seed: int, args) -> pyro_opu.OnePassPredictive:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so few steps leave something to learn
        return pyro_opu.distill(fit, x, num_steps=args.steps, seed=seed, progress=False)


def judged(
    posterior: str,
    laws: dict[str, Gaussian],
    sets: dict[str, Tensor],
    students: dict[str, pyro_opu.OnePassPredictive],
    draws: int,
) -> list[dict]:
    """A row for every method and test set; the first set is the domain."""
    readings: dict[str, dict[str, dict[str, Tensor]]] = {}
    for method, answer in methods(draws).items():
        if method != "MAP network" or posterior == "diagonal":
            readings[method] = {name: read(answer, *law) for name, law in laws.items()}
    for method, student in students.items():
        answers = {name: student.distribution(x) for name, x in sets.items()}
        readings[method] = {name: measured(answer) for name, answer in answers.items()}
    rows = []
    for method, of in readings.items():
        inside = next(iter(of.values()))
        for name, reading in of.items():
            row: dict[str, Any] = {"posterior": posterior, "method": method, "test set": name}
            row["MMC"] = mmc(reading)
            if reading is not inside:
                for key in list(reading)[1:]:
                    row[f"AUROC, {key}"] = auroc(inside[key], reading[key])
            if method != "sampling":
                target = readings["sampling"][name]["mean"]
                close = kl_divergence(target, reading["mean"].clamp_min(1e-30))
                row["KL of the mean from sampling's"] = close.double().mean().item()
            rows.append(row)
    return rows


def digits(seed: int, train: datasets.Dataset, test: datasets.Dataset, most, args) -> list[dict]:
    """Trained on three digits, asked about all ten: how sure, the mean over the rows of a digit."""
    known = train.take(train.y < 3)
    network = trained(seed, known.x, known.y, 3, args.epochs)
    fit = fitted(network, known.x, known.y, structure="diag")
    rows = []
    for digit in range(10):
        law = gaussian(fit, test.x[test.y == digit][:most])
        found = {
            method: read(methods(args.draws)[method], *law)
            for method in ("MAP network", "sampling", "bridge")
        }
        row = {"digit": digit, **{f"{method}, MMC": mmc(of) for method, of in found.items()}}
        log = -found["bridge"]["by concentration"].double().mean().item()
        row["bridge, log10 of the concentration"] = log / math.log(10)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
