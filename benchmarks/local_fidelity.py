"""Where a student is wrong, ``fidelity(..., where="inputs")``: false alarms, and what is found.

The teacher is a Dirichlet whose mean and concentration depend on two inputs of the x, of 2 or 8.
The perfect student is that Dirichlet; its false alarms are reports that call it wrong anywhere, of
which 5 % are allowed. Others are wrong for x0 > 1 alone, a sixth of the rows: alpha_0 is larger
there by a factor, or the mean is moved. "Found" are reports that call a region there wrong;
"elsewhere" those that call one wrong which has no row with x0 > 1. Rows are halved: one half finds
the regions.

    python -m benchmarks.local_fidelity
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

import pyro_opu
from benchmarks.results import parser, write
from pyro_opu import PredictiveDirichlet

#: Name -> what the student adds to log alpha_0, and to the first logit of its mean, for x0 > 1.
STUDENTS = {
    "perfect": (0.0, 0.0),
    "alpha_0 x 1.5": (math.log(1.5), 0.0),
    "alpha_0 x 3": (math.log(3.0), 0.0),
    "mean moved by 0.1": (0.0, 0.1),
    "mean moved by 0.3": (0.0, 0.3),
}


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--reports", type=int, default=100)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.reports = 2
    rows = []
    for columns in (2,) if args.quick else (2, 8):
        for name, (g, logit) in STUDENTS.items():
            for inputs in (100,) if args.quick else (200, 600):
                count = args.reports if name == "perfect" else max(2, args.reports // 5)
                rows.append(of_many(name, g, logit, columns, inputs, count))
                print(rows[-1], flush=True)
    if not args.quick:
        tables = {"Reports": rows}
        write("local_fidelity", "python -m benchmarks.local_fidelity", vars(args), tables)


def truth(x: Tensor, g: float = 0.0, logit: float = 0.0) -> PredictiveDirichlet:
    """The teacher's Dirichlet, or one that is wrong for x0 > 1."""
    there = (x[:, 0] > 1).float()
    logits = torch.stack([x[:, 0] + logit * there, -x[:, 1], 0.5 * x[:, 0] * x[:, 1]], -1)
    return PredictiveDirichlet(logits.log_softmax(-1), math.log(20.0) + x[:, 1] + g * there)


def of_many(name: str, g: float, logit: float, columns: int, inputs: int, count: int) -> dict:
    """Shares of reports on inputs of their own."""
    alarms = found = elsewhere = 0
    begun = time.perf_counter()
    for seed in range(count):
        x = torch.randn(inputs, columns, generator=torch.Generator().manual_seed(seed))
        wrong = [region for region in report(x, g, logit, seed).where if region.wrong]
        there = [region for region in wrong if reaches(region.region)]
        alarms += bool(wrong)
        found += bool(there)
        elsewhere += len(wrong) > len(there)
    share = alarms / count
    return {
        "student": name,
        "columns": columns,
        "rows": inputs,
        "reports": count,
        "called wrong": share,
        "+-": math.sqrt(share * (1 - share) / count),
        "found": math.nan if name == "perfect" else found / count,
        "elsewhere": math.nan if name == "perfect" else elsewhere / count,
        "s a report": (time.perf_counter() - begun) / count,
    }


def report(x: Tensor, g: float, logit: float, seed: int) -> Any:
    def teacher(x: Tensor, num_draws: int) -> Tensor:
        return truth(x).sample((num_draws,))

    def student(x: Tensor) -> PredictiveDirichlet:
        return truth(x, g, logit)

    few = {"num_draws": 10, "wasserstein_inputs": 0}
    return pyro_opu.fidelity(student, teacher, x, where="inputs", seed=seed, **few)


def reaches(region: str) -> bool:
    """Whether a region has inputs with x0 > 1."""
    bounds = [part for part in region.split(", ") if "x[0] <= " in part]
    return all(float(part.split(" <= ")[1]) > 1 for part in bounds)


if __name__ == "__main__":
    main()
