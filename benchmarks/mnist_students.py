"""Students of MC dropout on MNIST: near in and out of domain, at the price of the plug-in network.

The teacher is the network 784-400-400-10 of ``benchmarks.mnist_dropout`` with fewer epochs; the
student is the default one, taught at the teacher's training rows without their labels. It is judged
on test rows of MNIST, and out of domain on Fashion-MNIST and KMNIST.

- "one pass / plug-in": medians of calls in turn, 1,000 rows, student against the network itself.
- "distill / sweep": of one ``Predictive`` over all training rows, 500 draws, in calls of 1,000 rows
  of which one is timed.

    python -m benchmarks.mnist_students
"""

from __future__ import annotations

import time

import torch

import pyro_opu
from benchmarks.mnist_dropout import images, pixels, trained
from benchmarks.results import parser, say, write
from benchmarks.speed_cost import sweep_seconds, wait
from benchmarks.teachers import certainty_rows, nearness
from benchmarks.timing import spans
from pyro_opu import datasets

#: Draws of ``Predictive``, and rows of a call of it, and of a pass.
DRAWS, ROWS = 500, 1000


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
    x, y = images(train=True)
    if args.quick:
        x, y = x[:2000], y[:2000]
    network, _ = trained(seed, (x, y), args)
    start, begun = time.perf_counter(), time.process_time()
    quick = {"num_steps": 20, "effort": "quick"} if args.quick else {}
    fast = pyro_opu.distill(network, x, seed=seed, progress=False, **quick)
    distilled, processor = time.perf_counter() - start, time.process_time() - begun
    near, certainty = [], []
    for name, rows in judged(args.rows).items():
        report = pyro_opu.fidelity(fast, network, rows, seed=seed)
        print(report, flush=True)
        same = {"seed": seed, "rows": name}
        near.append(
            {
                **same,
                **nearness(report),
                "energy / best": report.energy_distance / report.energy_distance_best,
                "central 50 %": report.coverage_50,
                "central 90 %": report.coverage_90,
            }
        )
        certainty += certainty_rows(same, report)
    draws, rows = (20, 20) if args.quick else (DRAWS, ROWS)
    sweep = sweep_seconds(network, x, draws, wait("cpu"), rows)
    passed = x[:ROWS]
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
    return {"Nearness": near, "By certainty": certainty, "Time": [row]}


def judged(rows: int) -> dict[str, torch.Tensor]:
    """The first test rows of each data set, pixels ``(rows, 784)`` in [-1, 1]."""
    sets = {
        "MNIST": datasets.mnist,
        "KMNIST": datasets.kmnist,
        "Fashion-MNIST": datasets.fashion_mnist,
    }
    return {name: pixels(each(train=False), rows) for name, each in sets.items()}


if __name__ == "__main__":
    main()
