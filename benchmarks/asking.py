"""What a student's uncertainty costs over one pass, in Python and as an ONNX file.

python -m benchmarks.asking

Medians of calls in turn on one thread, over that of ``fast.distribution(x)``, or of a file that
has mean and concentration alone: of one field, of all of them, and of novelty. Then the most memory
that fields of a million rows take above the inputs, in a process of its own as in
``benchmarks.memory``. The students are of a logistic regression of 57 features and two classes, and
of a network 64-256-256-10 with dropout, with the two laws that a default student may have. Weights
are random: no time depends on what they were inferred from.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyro_opu
from benchmarks.memory import in_a_process, peak_of
from benchmarks.speed import absent
from papers.results import finish, parser, say
from papers.timing import timed
from pyro_opu.distributions.measures import ClassMeasures
from pyro_opu.export.formats import open_onnx

ROWS, MANY = (1, 1000, 100_000), 1_000_000
SIZES = {"logistic": (57, 2), "network": (64, 256, 256, 10)}
SUBJECTS = (("logistic", "dirichlet"), ("network", "dirichlet"), ("network", "sticks"))
#: What is asked of the table of a million rows.
FIELDS = ("epistemic", "all but novelty", "novelty")


def student(name: str, law: str) -> Any:
    """A default student after one step."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(SIZES[name]):
        layers += [nn.ReLU(), nn.Dropout(0.2)] if layers else []
        layers.append(nn.Linear(before, after))
    x = torch.randn(256, SIZES[name][0])
    if name == "logistic":
        weight = torch.randn(500, *SIZES[name]) / SIZES[name][0] ** 0.5
        source: Any = lambda x: (x @ weight).softmax(-1)  # noqa: E731
    else:
        source = nn.Sequential(*layers)
    fast = pyro_opu.distill(source, x, num_steps=1, seed=0, progress=False)
    fast.guide.read_as(law)
    return fast.requires_grad_(False)


def in_python(fast: Any, x: Tensor) -> dict[str, Callable[[], object]]:
    """Calls by what is asked."""
    return {
        "one pass": lambda: fast.distribution(x),
        "epistemic": lambda: fast.uncertainty(x).epistemic,
        "all": lambda: fast.uncertainty(x).to_dict(),
        "novelty": lambda: fast.uncertainty(x).novelty,
    }


def as_files(fast: Any) -> dict[str, Any]:
    """Sessions of files by what is asked."""
    everything = [*ClassMeasures.units, "novelty"]
    wanted = {"one pass": everything[:2], "default": None, "all": everything}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, outputs in wanted.items():
            path = Path(folder) / "student.onnx"
            fast.export(path, outputs=outputs)
            found[name] = open_onnx(path.read_bytes())[0]
    return found


def of_a_million(name: str, law: str, field: str, rows: int = MANY) -> float:
    """Megabytes above the inputs, after a small call has loaded what is loaded but once."""
    fast = student(name, law)
    x = torch.randn(rows, SIZES[name][0])

    def ask(x: Tensor) -> object:
        table = fast.uncertainty(x)
        if field != "all but novelty":
            return table[field]
        return [table[key] for key in table.keys() if key != "novelty"]  # noqa: SIM118

    ask(x[:8])
    return peak_of(partial(ask, x))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=float, default=10.0, help="seconds of each comparison")
    options.add_argument("--of", nargs=3, help=argparse.SUPPRESS)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.of:
        print(of_a_million(*args.of))
        return
    budget = 0.01 if args.quick else args.budget
    tables: dict[str, list[dict]] = {}
    for name, law in SUBJECTS[2:] if args.quick else SUBJECTS:
        fast = student(name, law)
        files = {} if absent("onnxruntime") or args.quick else as_files(fast)
        for count in ROWS[:2] if args.quick else ROWS:
            x = torch.randn(count, SIZES[name][0])
            ways = {"In Python": in_python(fast, x)}
            if files:
                given = {"x": x.numpy()}
                ways["ONNX"] = {key: partial(file.run, None, given) for key, file in files.items()}
            for kind, calls in ways.items():
                found = timed(calls, budget)
                one = found.pop("one pass")
                row = {"student": f"{name}, {law}", "N": count, "one pass, ms": 1e3 * one}
                row |= {f"{key} / pass": taken / one for key, taken in found.items()}
                tables.setdefault(kind, []).append(row)
                say({kind: [row]})
    for name, law in () if args.quick else SUBJECTS:
        row = {"student": f"{name}, {law}", "rows": MANY}
        for field in FIELDS:
            row[f"{field}, MB"] = in_a_process("benchmarks.asking", "--of", name, law, field)
        tables.setdefault("Peak memory", []).append(row)
        say({"Peak memory": [row]})
    del args.of
    finish(__file__, args, tables)


if __name__ == "__main__":
    main()
