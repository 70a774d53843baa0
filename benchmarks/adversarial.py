"""The paper's own objective from a cold start, on digits: what the concentration does.

Wasserstein without a likelihood and without a warm start, from fresh weights, with what it takes
for the concentration not to collapse. From the closed-form student: ``benchmarks/refinements.py``.

    python -m benchmarks.adversarial
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from sklearn.metrics import roc_auc_score

import pyro_opu
from benchmarks.digits import Digits, digits, no_digits
from benchmarks.results import parser, say, shown, write
from pyro_opu import WassersteinELBO
from pyro_opu.metrics.distances import energy_distance, kl_divergence
from pyro_opu.models.neural_network import dropout_network, fit_network

SIZES = (64, 128, 128, 10)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=1000)
    args = options.parse_args()
    if args.quick:
        args.steps = 6
    data = digits(0)
    torch.manual_seed(0)
    teacher = fit_network(dropout_network(SIZES), *data.train, epochs=5 if args.quick else 200)
    outcomes, curve = from_cold(teacher, data, args.steps)
    tables = {"From a cold start": outcomes, "Curve of the cold starts": curve}
    if not args.quick:
        write("adversarial", "python -m benchmarks.adversarial", vars(args), tables)


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


def from_cold(teacher: torch.nn.Module, data: Digits, steps: int) -> tuple[list[dict], list[dict]]:
    """Outcome and curve of each cold start."""
    outcomes, curve = [], []
    outside = no_digits(data.test.x, 0)
    for name, make in COLD.items():
        start = time.perf_counter()
        fast = pyro_opu.distill(
            teacher,
            data.transfer.x,
            guide="network",  # the default begins at the teacher's weights
            loss=make(),
            num_steps=steps,
            warm_start=False,
            evaluate_every=max(1, steps // 10),
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
