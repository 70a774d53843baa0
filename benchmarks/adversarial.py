"""Is the adversarial path real? The meta-critic from a warm start and from a cold one, on digits.

Warm: the closed-form warm start is stopped early, then each objective gets the same number of
steps from the same weights. Cold: the paper's own objective from fresh weights, with what it takes
for the concentration not to collapse.

    python -m benchmarks.adversarial
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from sklearn.metrics import roc_auc_score

import pyro_opu
from benchmarks.digits import Digits, digits, no_digits
from benchmarks.results import parser, say, shown, spread, write
from models.neural_network import dropout_network, fit_network
from pyro_opu import EnergyDistance, MomentMatching, Objective, WassersteinELBO
from pyro_opu.distances import energy_distance, kl_divergence

SIZES = (64, 128, 128, 10)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--warm-steps", type=int, default=600)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--cold-steps", type=int, default=1000)
    args = options.parse_args()
    if args.quick:
        args.seeds, args.warm_steps, args.steps, args.cold_steps = 1, 40, 6, 6
    tables = {"From a warm start": [], "From a cold start": [], "Curve of the cold starts": []}
    for seed in range(args.seeds):
        data = digits(seed)
        torch.manual_seed(seed)
        teacher = fit_network(dropout_network(SIZES), *data.train, epochs=5 if args.quick else 200)
        tables["From a warm start"] += from_warm(teacher, data, seed, args)
        if seed == 0:
            rows, curve = from_cold(teacher, data, args)
            tables["From a cold start"] += rows
            tables["Curve of the cold starts"] += curve
        say({"From a warm start": tables["From a warm start"]})
    tables["From a warm start"] = over_seeds(tables["From a warm start"])
    say(tables)
    if not args.quick:
        write("adversarial", "python -m benchmarks.adversarial", vars(args), tables)


REFINEMENTS: dict[str, Callable[[], Objective]] = {
    "moments, continued": MomentMatching,
    "WassersteinELBO, residual critic": WassersteinELBO,
    "WassersteinELBO, plain critic": lambda: WassersteinELBO(residual=False),
    "energy distance": EnergyDistance,
}


def from_warm(teacher: torch.nn.Module, data: Digits, seed: int, args: Any) -> list[dict]:
    """One row per objective: held-out energy distance before and after, test numbers after."""
    warm = pyro_opu.distill(
        teacher,
        data.transfer.x,
        loss="moments",
        num_steps=args.warm_steps,
        seed=seed,
        progress=False,
    )
    rows = [row("warm start alone", warm, teacher, data, 0.0)]
    for name, make in REFINEMENTS.items():
        objective = make()
        if isinstance(objective, MomentMatching):
            objective.learning_rate = 3e-4
        start = time.perf_counter()
        fast = pyro_opu.distill(
            teacher,
            data.transfer.x,
            guide=copy.deepcopy(warm.guide).requires_grad_(True),
            loss=objective,
            num_steps=args.steps,
            warm_start=False,
            evaluate_every=50,
            seed=seed,
            progress=False,
        )
        rows.append(row(name, fast, teacher, data, time.perf_counter() - start))
    return rows


def row(name: str, fast: Any, teacher: torch.nn.Module, data: Digits, seconds: float) -> dict:
    """Fidelity of a student: on the held-out transfer inputs it was kept by, and on test."""
    torch.manual_seed(1)
    draws = pyro_opu.as_teacher(teacher).probs(data.test.x, 500)
    student = fast.dirichlet(data.test.x)
    information = pyro_opu.uncertainty(student).epistemic.mean()
    return {
        "objective": name,
        "held-out energy": fast.report["energy_distance"],
        "test energy": float(energy_distance(draws, student.sample((500,))).mean()),
        "test KL": float(kl_divergence(draws.mean(0), student.mean).mean()),
        "mutual information / teacher's": float(
            information / pyro_opu.uncertainty(draws).epistemic.mean()
        ),
        "seconds": seconds,
    }


def over_seeds(rows: list[dict]) -> list[dict]:
    """Mean ± deviation of each column over the seeds, one row per objective."""
    names = dict.fromkeys(each["objective"] for each in rows)
    same = {name: [each for each in rows if each["objective"] == name] for name in names}
    return [
        {key: name if key == "objective" else spread([r[key] for r in group]) for key in group[0]}
        for name, group in same.items()
    ]


def _cold(rate: float, **settings: Any) -> Callable[[], WassersteinELBO]:
    def make() -> WassersteinELBO:
        objective = WassersteinELBO(likelihood=0.0, **settings)
        objective.learning_rate = rate
        return objective

    return make


COLD: dict[str, Callable[[], WassersteinELBO]] = {
    "paper's: two-sided penalty 10, no critic rounds first": _cold(
        1e-3, residual=False, two_sided=True, penalty=10.0, critic_steps=1, critic_warmup=1
    ),
    "two-sided penalty 1, 150 critic rounds first": _cold(1e-3, residual=False, two_sided=True),
    "one-sided penalty 1, 150 critic rounds first": _cold(1e-3, residual=False),
    "the same, residual critic": _cold(1e-3),
}


def from_cold(teacher: torch.nn.Module, data: Digits, args: Any) -> tuple[list[dict], list[dict]]:
    """Outcome and curve of each cold start."""
    outcomes, curve = [], []
    outside = no_digits(data.test.x, 0)
    for name, make in COLD.items():
        start = time.perf_counter()
        fast = pyro_opu.distill(
            teacher,
            data.transfer.x,
            loss=make(),
            num_steps=args.cold_steps,
            warm_start=False,
            evaluate_every=max(1, args.cold_steps // 10),
            seed=0,
            progress=False,
        )
        outcome = row(name, fast, teacher, data, time.perf_counter() - start)
        for place, x in outside.items():
            g_in, g_out = (fast.dirichlet(each).log_concentration for each in (data.test.x, x))
            truth = torch.cat([torch.zeros(len(g_in)), torch.ones(len(g_out))])
            outcome[f"AUROC of CM, {place}"] = 100 * roc_auc_score(truth, -torch.cat([g_in, g_out]))
        outcomes.append(outcome)
        for record in fast.report["history"]:
            keys = ("step", "energy_distance", "kl", "log_concentration", "concentration_rank")
            curve.append({"objective": name, **{key: shown(record[key]) for key in keys}})
        say({"cold": [outcome], "curve": [c for c in curve if c["objective"] == name]})
    return outcomes, curve


if __name__ == "__main__":
    main()
