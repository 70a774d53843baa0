"""Students of MC dropout on MNIST: near in and out of domain, at the price of the plug-in network.

The teacher is the network 784-400-400-10 of ``benchmarks.mnist_dropout`` with fewer epochs; the
student is the default one, taught at the teacher's training rows without their labels. It is judged
on test rows of MNIST, and out of domain on Fashion-MNIST and KMNIST.

- "one pass / plug-in": medians of calls in turn, 1,000 rows, student against the network itself;
  "fused" is ``fast.fuse()``.
- "distill / sweep": of one ``Predictive`` over all training rows, 500 draws, in calls of 1,000 rows
  of which one is timed.
- "Detection": AUROC in per cent of teacher and student, beside that of norm or mean of the input,
  at inputs of other data sets against MNIST's, and at the errors of each among MNIST's test rows.

    python -m benchmarks.mnist_students
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import pyro_opu
from benchmarks.mnist_dropout import images, pixels, trained
from benchmarks.results import parser, record_seeds
from benchmarks.speed_cost import sweep_seconds, wait
from benchmarks.teachers import certainty_rows, nearness
from benchmarks.timing import spans
from pyro_opu import datasets
from pyro_opu.reports.detection import ERRORS

#: Draws of ``Predictive``, and rows of a call of it, and of a pass.
DRAWS, ROWS = 500, 1000
MEASURES = ("entropy", "mutual_information", "concentration")


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--rows", type=int, default=500, help="judged of each data set")
    args = options.parse_args()
    args.learning_rate, args.weight_decay = 1e-3, 1e-6
    if args.quick:
        args.seeds, args.epochs, args.rows = 1, 1, 50
    record_seeds("mnist_students", args, of_seed, {"Detection": ("against MNIST",)})


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
            }
        )
        certainty += certainty_rows(same, report)
    draws, rows = (20, 20) if args.quick else (DRAWS, ROWS)
    sweep = sweep_seconds(network, x, draws, wait("cpu"), rows)
    row = {
        "seed": seed,
        "distill, s": distilled,
        "distill, CPU s": processor,
        "steps": fast.report["history"][-1]["step"],
        "sweep, s": sweep,
        "distill / sweep": distilled / sweep,
        **passes(fast, network, x[:ROWS], budget=1.0 if args.quick else 10.0),
    }
    detected = detection(seed, fast, network, args)
    return {"Nearness": near, "By certainty": certainty, "Detection": detected, "Time": [row]}


def detection(seed: int, fast: Any, network: nn.Module, args: Any) -> list[dict[str, Any]]:
    """AUROC by three measures: errors, and inputs of other data sets."""
    test = datasets.mnist(train=False)
    outside = {name: x for name, x in judged(2 * args.rows).items() if name != "MNIST"}
    outside |= {
        "Semeion, framed": pixels(datasets.semeion(20, pad=4), 2 * args.rows),
        "Semeion, enlarged": pixels(datasets.semeion(28), 2 * args.rows),
    }
    x, y = pixels(test, 4 * args.rows), test.y[: 4 * args.rows]
    found = pyro_opu.detection(fast, network, x, y, outside, seed=seed)
    print(found, flush=True)
    rows = []
    for name in (ERRORS, *outside):
        table = found[name]
        row: dict[str, Any] = {"seed": seed, "against MNIST": name}
        for measure in MEASURES:
            for who, scores in (("teacher", table.teacher), ("student", table.student)):
                row[f"{measure}, {who}"] = 100 * scores[measure].auroc
        if table.trivial:
            row["trivial"] = 100 * max(score.auroc for score in table.trivial.values())
        rows.append(row)
    return rows


@torch.no_grad()
def passes(fast: Any, network: nn.Module, x: Tensor, budget: float) -> dict[str, float]:
    """One pass of a student beside one of the plain network, in turn, within so many seconds."""
    fused = fast.fuse()
    calls = {
        "student": lambda: fast.dirichlet(x),
        "fused": lambda: fused.dirichlet(x),
        "plug-in": lambda: network(x).softmax(-1),
    }
    student, merged, plug_in = (each.median for each in spans(calls, budget=budget).values())
    return {
        "plug-in, ms": 1e3 * plug_in,
        "one pass, ms": 1e3 * student,
        "one pass / plug-in": student / plug_in,
        "fused / plug-in": merged / plug_in,
    }


def judged(rows: int) -> dict[str, Tensor]:
    """The first test rows of each data set, pixels ``(rows, 784)`` in [-1, 1]."""
    sets = {
        "MNIST": datasets.mnist,
        "KMNIST": datasets.kmnist,
        "Fashion-MNIST": datasets.fashion_mnist,
    }
    return {name: pixels(each(train=False), rows) for name, each in sets.items()}


if __name__ == "__main__":
    main()
