"""Is the student as sure as its teacher where the teacher is sure? alpha_0 by class of certainty.

Ratios are the student's alpha_0 over the right one. The teacher of the first table *is* a
Dirichlet, with means up to .9999 and one alpha_0 everywhere or one that goes from 0.5 to 50 with x,
so the right answer is known. That of the second is MC dropout on digits: what its concentration is
there is said by 6,400 draws per input (the one whose Dirichlet has the draws' mean and variance).

    python -m benchmarks.concentration
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pyro_opu
from benchmarks.posteriors import SIZES
from papers.digits import digits
from papers.results import Tables, parser, record_seeds
from pyro_opu.judging.classes import CERTAINTY, class_of
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.objectives.moments import gini_parts

#: Logits of three classes are these times the inputs: largest means from .35 to beyond .9999.
WEIGHTS = torch.tensor([[4.0, -2.0, -2.0], [0.0, 2.0, -2.0]])
#: Logarithm of alpha_0 as a function of x.
ALPHA_0: dict[str, Callable[[Tensor], Tensor]] = {
    "2": lambda x: torch.full(x.shape[:1], math.log(2.0)),
    "0.5 to 50 with x": lambda x: math.log(0.5) + math.log(100.0) * torch.sigmoid(2 * x[:, 0]),
}


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--draws", type=int, nargs="+", default=[2, 4, 32], help="per step")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.draws = 1, [4]
    torch.set_num_threads(1)
    same = ("draws a step", "largest mean")
    means = {
        "A Dirichlet teacher": ("alpha_0", *same),
        "MC dropout on digits": ("inputs of", *same),
    }
    record_seeds(__file__, args, of_seed, means)


def of_seed(seed: int, args) -> Tables:
    """Both teachers, with so many draws a step."""
    steps = {"num_steps": 5} if args.quick else {}
    known, real = [], []
    for count in args.draws:
        for name in ALPHA_0:
            known += dirichlet_rows(name, count, seed, steps)
    data = digits(seed)
    torch.manual_seed(seed)
    teacher = fit_network(dropout_network(SIZES), *data.train, epochs=5 if args.quick else 200)
    draws = 20 if args.quick else 6400
    for count in args.draws[-2:]:
        real += dropout_rows(teacher, data, count, seed, draws, steps)
    return {"A Dirichlet teacher": known, "MC dropout on digits": real}


def dirichlet_teacher(log_alpha_0: Callable[[Tensor], Tensor]) -> Any:
    def teacher(x: Tensor, num_draws: int = 500) -> Tensor:
        log_mean = (x @ WEIGHTS).log_softmax(-1)
        return pyro_opu.PredictiveDirichlet(log_mean, log_alpha_0(x)).sample((num_draws,))

    return teacher


def dirichlet_rows(name: str, count: int, seed: int, steps: dict) -> list[dict]:
    torch.manual_seed(seed)
    x, fresh = torch.randn(2000, 2), torch.randn(4000, 2)
    start = time.process_time()
    training = pyro_opu.Training(num_draws=count, **steps)
    fast = pyro_opu.distill(
        dirichlet_teacher(ALPHA_0[name]), x, seed=seed, progress=False, training=training
    )
    found = {"alpha_0": name, "draws a step": count, "CPU s": time.process_time() - start}
    found["shift"] = fast.report["recalibration"]["shift"]
    mean = (fresh @ WEIGHTS).softmax(-1)
    log_ratio = fast.dirichlet(fresh).log_concentration - ALPHA_0[name](fresh)
    return by_class(found, mean, log_ratio)


def dropout_rows(
    teacher: Any, data: Any, count: int, seed: int, draws: int, steps: dict
) -> list[dict]:
    """At inputs that the student was taught at, and at test rows, which are further off."""
    start = time.process_time()
    training = pyro_opu.Training(num_draws=count, **steps)
    fast = pyro_opu.distill(teacher, data.transfer.x, seed=seed, progress=False, training=training)
    spent = time.process_time() - start
    rows = []
    for where, x in (("taught", data.transfer.x), ("test", data.test.x)):
        torch.manual_seed(1)
        many = pyro_opu.as_teacher(teacher).probs(x, draws)
        between, within = gini_parts(many.double())
        log_ratio = fast.dirichlet(x).log_concentration - (within / between).log()
        found = {"inputs of": where, "draws a step": count, "CPU s": spent}
        found["shift"] = fast.report["recalibration"]["shift"]
        rows += by_class(found, many.mean(0), log_ratio)
    return rows


def by_class(found: dict, mean: Tensor, log_ratio: Tensor) -> list[dict]:
    """One row per class of certainty with ten inputs or more."""
    rows, classes = [], class_of(mean)
    for number, label in enumerate(CERTAINTY):
        here = classes == number
        if here.sum() < 10:
            continue
        quarters = log_ratio[here].double().quantile(torch.tensor([0.25, 0.5, 0.75]).double()).exp()
        rows.append(
            {
                **found,
                "largest mean": label,
                "ratio, median": float(quarters[1]),
                "lower quartile": float(quarters[0]),
                "upper quartile": float(quarters[2]),
                "median before recalibration": float(quarters[1]) * math.exp(-found["shift"]),
            }
        )
    return rows


if __name__ == "__main__":
    main()
