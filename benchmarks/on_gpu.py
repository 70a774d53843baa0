"""What a GPU makes of default students of MC dropout on MNIST, and of batched teachers.

- "Students": of MC dropout on MNIST, 784-400-400-10, taught on the GPU at its training rows by
  default: seconds of ``distill``, of the first call in the process and of the next with the same
  arguments, and how near they are.
- "Passes": replays of the captured student beside those of the plain network's own graph.
- "Teachers": all 500 draws at 1,000 inputs: ``as_teacher(source).probs`` and ``batched(source)``
  beside ``Predictive`` with ``parallel=True``, where that is right, and beside the bare products.
  "TF32" is with ``torch.backends.cuda.matmul.allow_tf32``, and how far its probabilities are off.

    python -m benchmarks.on_gpu
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import nn

import pyro_opu
from benchmarks.judging import nearness
from benchmarks.speed import Call, Kit, subject
from papers.mnist import images, judged, trained
from papers.results import Tables, finish, over_seeds, parser
from papers.timing import spans
from pyro_opu.export.capture import GraphPass

DRAWS, ROWS, MANY = 500, 1000, 100_000
#: Seconds of calls that are timed in turn.
BUDGET = 1.5


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--epochs", type=int, default=10)
    args = options.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing has been run, and nothing is written.")
        return
    if args.quick:
        args.seeds, args.epochs = 1, 1
    found: Tables = {"Teachers": teachers()}
    for seed in range(args.seeds):
        for title, rows in of_seed(seed, args).items():
            found.setdefault(title, []).extend(rows)
    tables = {
        "Students": over_seeds(found["Students"], ("rows",)),
        "Passes": over_seeds(found["Passes"], ("N",)),
        "Teachers": found["Teachers"],
    }
    finish(__file__, args, tables, device=torch.cuda.get_device_name(), cuda=torch.version.cuda)


def of_seed(seed: int, args: Any) -> dict[str, list[dict[str, Any]]]:
    """Train, teach, judge and time on the GPU."""
    x, y = (each.to("cuda") for each in images(train=True))
    with torch.device("cuda"):
        network = trained(seed, (x, y), args.epochs)
    took = []
    for _ in range(2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        fast = pyro_opu.distill(network, x, seed=seed, progress=False)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begun)
    students = []
    for name, rows in judged(500).items():
        report = pyro_opu.fidelity(fast, network, rows.to("cuda"), seed=seed)
        row = {"rows": name, "first distill, s": took[0], "distill, s": took[1]}
        students.append({**row, **nearness(report)})
    return {"Students": students, "Passes": passes(fast, network, x)}


def passes(fast: Any, network: nn.Module, x: torch.Tensor) -> list[dict[str, Any]]:
    """Replays alone, and whole calls with input and answer copied."""
    rows = []
    for count in (1, ROWS, MANY):
        some = x.repeat(2, 1)[:count].contiguous()
        plug_in = GraphPass(lambda y: (network(y).softmax(-1),), some)
        captured = fast.capture(some)
        calls: dict[str, Call] = {
            "plug-in": plug_in.replay,
            "student": captured._run.replay,
            "plug-in, whole call": lambda graph=plug_in, some=some: graph(some),
            "student, whole call": lambda graph=captured, some=some: graph(some),
        }
        us = {name: 1e6 * value for name, value in timed_there(calls, BUDGET).items()}
        row = {"N": count, **{f"{name}, us": value for name, value in us.items()}}
        row["student / plug-in"] = us["student"] / us["plug-in"]
        row["whole calls"] = us["student, whole call"] / us["plug-in, whole call"]
        rows.append(row)
    return rows


@torch.no_grad()
def teachers() -> list[dict[str, Any]]:
    """Milliseconds of every way, and as multiples of ``Predictive(parallel=True)``."""
    rows = []
    for name, classes in (("mlp", 10), ("logistic", 2), ("logistic", 10), ("convolution", 10)):
        kit = Kit(subject(name, classes), DRAWS, "cuda")
        source, x = kit.predictive(DRAWS), kit.inputs(ROWS)
        teacher, exact = pyro_opu.as_teacher(source), pyro_opu.batched(source)
        calls: dict[str, Call] = {
            "teacher": lambda teacher=teacher, x=x: teacher.probs(x),
            "batched": lambda exact=exact, x=x: exact(x),
        }
        if kit.of.parallel:
            parallel = kit.parallel(DRAWS)
            calls["parallel"] = lambda parallel=parallel, x=x: parallel(x)
        if name == "mlp":
            calls["bare products"] = lambda kit=kit, x=x: bare(kit.samples, x)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pyro")
            ms = {name: 1e3 * value for name, value in timed_there(calls, BUDGET).items()}
        probs = teacher.probs(x)
        torch.backends.cuda.matmul.allow_tf32 = True
        quick = timed_there({"": calls["teacher"]}, BUDGET / 3)[""]
        off = (teacher.probs(x) - probs).abs().max()
        torch.backends.cuda.matmul.allow_tf32 = False
        row = {"model": kit.of.name, "classes": classes, "S": DRAWS, "N": ROWS}
        row |= {f"{name}, ms": value for name, value in ms.items()}
        if "parallel" in ms:
            row["parallel / teacher"] = ms["parallel"] / ms["teacher"]
        rows.append({**row, "teacher, TF32, ms": 1e3 * quick, "off by at most": float(off)})
    return rows


@torch.no_grad()
def timed_there(ways: dict[str, Call], budget: float) -> dict[str, float]:
    """Median seconds of each until the device has done it."""
    return {way: took.median for way, took in spans(ways, budget, torch.cuda.synchronize).items()}


def bare(samples: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The products of the perceptron and its softmax, by hand."""
    hidden = (x @ samples["w0"] + samples["b0"][:, None]).relu_()
    hidden = torch.baddbmm(samples["b1"][:, None], hidden, samples["w1"]).relu_()
    return torch.baddbmm(samples["b2"][:, None], hidden, samples["w2"]).softmax(-1)


if __name__ == "__main__":
    main()
