"""1,000 classes: a mean-field posterior over the last layer, 256 features.

The features are made up, since no data set of so many classes is at hand: non-negative, as after a
ReLU, around a centre for every class, so that under half of the test rows are classified rightly.
The student is the default one, whose moments of logits are too many to be told. "Memory" is the
peak during 50 steps of ``distill``, above what the process held before; it is another process, in
which freed tensors are given back to the system (see ``benchmarks.memory``).

    python -m benchmarks.many_classes
"""

from __future__ import annotations

import argparse
import time

import pyro
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from benchmarks.judging import nearness, passes
from benchmarks.memory import in_a_process, peak_of
from papers.results import Tables, parser, record_seeds
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import fit_network
from pyro_opu.models.variational import fit_svi, mean_field

FEATURES, DRAWS, ROWS = 256, 500, 1000


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--classes", type=int, default=1000)
    options.add_argument("--train", type=int, default=40_000, help="rows")
    options.add_argument("--rows", type=int, default=100, help="judged")
    options.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.quick:
        args.seeds, args.classes, args.train, args.rows = 1, 20, 300, 20
    if args.memory:
        print(memory(args))
        return
    del args.memory
    record_seeds(__file__, args, of_seed, {"Nearness": ("classes",), "Time": ("classes",)})


def made(seed: int, args, steps: int) -> tuple[Predictive, nn.Linear, list[tuple[Tensor, Tensor]]]:
    """The posterior, the layer that it is around, and rows to train and to judge."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    parts = rows_of(args.classes, args.train, args.rows)
    network = fit_network(nn.Linear(FEATURES, args.classes), *parts[0], epochs=10, batch_size=256)
    return posterior(network, *parts[0], steps), network, parts


def memory(args) -> float:
    """Megabytes that a few steps add."""
    predictive, _, ((x, _), _) = made(0, args, 2)
    steps = 5 if args.quick else 50
    return peak_of(lambda: pyro_opu.distill(predictive, x, num_steps=steps, progress=False))


def of_seed(seed: int, args) -> Tables:
    """Make the posterior, distill, judge and time."""
    predictive, network, parts = made(seed, args, 20 if args.quick else 1500)
    (x, _), (test, labels) = parts
    quick = {"num_steps": 5, "effort": "quick"} if args.quick else {}
    start, begun = time.perf_counter(), time.process_time()
    fast = pyro_opu.distill(predictive, x, seed=seed, progress=False, **quick)
    seconds = {"distill, s": time.perf_counter() - start}
    seconds["distill, CPU s"] = time.process_time() - begun
    asked = "benchmarks.many_classes", "--memory"
    seconds["memory, MB"] = memory(args) if args.quick else in_a_process(*asked)
    report = pyro_opu.fidelity(fast, predictive, test, seed=seed, wasserstein_inputs=0)
    same = {"classes": args.classes}
    right = (fast.dirichlet(test).mean.argmax(-1) == labels).double().mean()
    near = {**same, "rightly classified": float(right), **nearness(report)}
    price = passes(fast, network, x[:ROWS], budget=0.0 if args.quick else 10.0)
    return {"Nearness": [near], "Time": [{**same, **seconds, **price}]}


def rows_of(classes: int, train: int, test: int) -> list[tuple[Tensor, Tensor]]:
    """Features ``(N, 256)`` and labels, to train and to judge."""
    centres, y = torch.randn(classes, FEATURES), torch.randint(classes, (train + test,))
    x = (0.14 * centres[y] + 0.5 * torch.randn(len(y), FEATURES)).relu()
    return [(x[:train], y[:train]), (x[train:], y[train:])]


def posterior(network: nn.Linear, x: Tensor, y: Tensor, steps: int) -> Predictive:
    """A normal for every weight, around those of a trained layer."""
    model = logistic_regression(len(network.weight))
    start = {"weight": network.weight.detach().mT.contiguous(), "bias": network.bias.detach()}
    guide = mean_field(model, start, scale=0.1)
    fit = fit_svi(model, guide, x, y, steps=steps, batch_size=256, learning_rate=5e-3)
    return Predictive(model, guide=fit.guide, num_samples=DRAWS, return_sites=["obs"])


if __name__ == "__main__":
    main()
