"""Students of MC dropout on MNIST: near in and out of domain, at the price of the plug-in network.

The teacher is the network 784-400-400-10 of ``benchmarks.mnist_dropout`` with fewer epochs; the
student is the default one, taught at the teacher's training rows without their labels. It is judged
on test rows of MNIST, and out of domain on Fashion-MNIST and KMNIST.

- "one pass / plug-in": medians of calls in turn, 1,000 rows, student against the network itself.
- "distill / sweep": of one ``Predictive`` over all training rows, whose time is that of 200 rows
  times their number over 200.

    python -m benchmarks.mnist_students
"""

from __future__ import annotations

import time

import pyro
import torch
from pyro.infer import Predictive

import pyro_opu
from benchmarks.mnist_dropout import images, trained
from benchmarks.results import parser, say, write
from benchmarks.timing import spans
from pyro_opu import datasets
from pyro_opu.models.dropout import DropoutGuide
from pyro_opu.models.neural_network import bayesian_network

#: Draws of ``Predictive``, rows of a sweep that are timed, and of a pass.
DRAWS, SWEPT, PASSED = 500, 200, 1000


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--rows", type=int, default=500, help="judged of each data set")
    args = options.parse_args()
    args.learning_rate, args.weight_decay = 1e-3, 1e-6
    if args.quick:
        args.seeds, args.epochs, args.rows = 1, 1, 50
    tables: dict[str, list[dict]] = {"Nearness": [], "By certainty": [], "Time": []}
    for seed in range(args.seeds):
        for name, rows in of_seed(seed, args).items():
            tables[name] += rows
        say(tables)
        if not args.quick:
            write("mnist_students", "python -m benchmarks.mnist_students", vars(args), tables)


def of_seed(seed: int, args) -> dict[str, list[dict]]:
    """Train, distill, judge and time."""
    pyro.clear_param_store()  # the last seed's guide has parameters of the same names
    x, y = images(train=True)
    if args.quick:
        x, y = x[:2000], y[:2000]
    network, _ = trained(seed, (x, y), args)
    start, begun = time.perf_counter(), time.process_time()
    quick = {"num_steps": 20, "effort": "quick"} if args.quick else {}
    fast = pyro_opu.distill(network, x, seed=seed, progress=False, **quick)
    distilled, processor = time.perf_counter() - start, time.process_time() - begun
    nearness, certainty = [], []
    for name, rows in judged(args.rows).items():
        report = pyro_opu.fidelity(fast, network, rows, seed=seed)
        print(report, flush=True)
        nearness.append({"seed": seed, "rows": name, **of_report(report)})
        certainty += [
            {
                "seed": seed,
                "rows": name,
                "certainty": each.certainty,
                "inputs": each.num_inputs,
                "KL / attainable": each.kl_ratio,
                "mutual information": each.mutual_information_ratio,
            }
            for each in report.by_certainty
            if each.num_inputs
        ]
    few = x[: 20 if args.quick else SWEPT]
    predictive = Predictive(
        bayesian_network(network),
        guide=DropoutGuide(network),
        num_samples=20 if args.quick else DRAWS,
    )
    start = time.perf_counter()
    predictive(few)
    sweep = (time.perf_counter() - start) * len(x) / len(few)
    passed = x[:PASSED]
    with torch.no_grad():
        spent = spans(
            {
                "student": lambda: fast.dirichlet(passed),
                "plug-in": lambda: network(passed).softmax(-1),
            },
            budget=1.0 if args.quick else 10.0,
        )
    row = {
        "seed": seed,
        "distill, s": distilled,
        "distill, CPU s": processor,
        "steps": fast.report["history"][-1]["step"],
        "sweep, s": sweep,
        "distill / sweep": distilled / sweep,
        "plug-in, ms": 1e3 * spent["plug-in"].median,
        "one pass, ms": 1e3 * spent["student"].median,
        "one pass / plug-in": spent["student"].median / spent["plug-in"].median,
    }
    return {"Nearness": nearness, "By certainty": certainty, "Time": [row]}


def judged(rows: int) -> dict[str, torch.Tensor]:
    """The first test rows of each data set, pixels ``(rows, 784)`` in [-1, 1]."""
    sets = {
        "MNIST": datasets.mnist,
        "KMNIST": datasets.kmnist,
        "Fashion-MNIST": datasets.fashion_mnist,
    }
    return {name: 2 * each(train=False).x[:rows].flatten(1) - 1 for name, each in sets.items()}


def of_report(report: pyro_opu.FidelityReport) -> dict[str, object]:
    """What a table shows of a report."""
    return {
        "KL": report.kl,
        "KL attainable": report.kl_attainable,
        "KL / attainable": report.kl_ratio,
        "energy distance": report.energy_distance,
        "best Dirichlet": report.energy_distance_best,
        "energy / best": report.energy_distance / report.energy_distance_best,
        "mutual information": report.mutual_information,
        "teacher's": report.mutual_information_teacher,
        "rank correlation": report.mutual_information_spearman,
        "central 50 %": report.coverage_50,
        "central 90 %": report.coverage_90,
        "faithful": "yes" if report.faithful else "no",
    }


if __name__ == "__main__":
    main()
