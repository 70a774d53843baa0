"""Does anything improve on the closed-form student? Objectives from where it ends.

python -m benchmarks.refinements

The default student (cross-entropy for h, moments for g, all steps) is made first; then every
objective goes on from its weights for a tenth as many steps, with its own learning rate, and keeps
its best iterate on held-out inputs. Energy distance and KL are those on test rows, which nothing
has seen; "MI" is the mutual information over the teacher's. "Lower by" is the change of the test
energy distance, seed by seed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_opu
from benchmarks.known import KNOWN
from benchmarks.posteriors import Data, make
from papers.results import Tables, over_seeds, parser, record_seeds, spread
from pyro_opu import EnergyDistance, MomentMatching, Objective, WassersteinELBO
from pyro_opu.metrics.distances import energy_distance, kl_divergence
from pyro_opu.metrics.uncertainty import epistemic_uncertainty

REFINEMENTS: dict[str, Callable[[], Objective]] = {
    "closed form, continued": MomentMatching,
    "energy distance": EnergyDistance,
    "Wasserstein, residual critic": WassersteinELBO,
    "Wasserstein, plain critic": lambda: WassersteinELBO(residual=False),
}


class Case(NamedTuple):
    """A posterior of ``benchmarks/posteriors.py`` or the line, and what is not default."""

    posterior: str
    guide: str = "dirichlet"
    num_draws: int | None = None


CASES = {
    "logistic regression, Laplace, Pima": Case("pima-laplace"),
    "logistic regression, Polya-Gamma, Pima": Case("pima-polya-gamma"),
    "Gaussian process, SVGP, Pima": Case("pima-svgp"),
    "MC dropout, digits": Case("digits-dropout"),
    "last layer Gaussian, digits": Case("digits-last-layer"),
    "Gaussian process, SVGP, 16 components": Case("components-svgp"),
    "the line": Case("line"),
    "three groups of hypotheses": Case("groups"),
    "MC dropout, digits, 4 draws a step": Case("digits-dropout", num_draws=4),
    "the line, mixture guide": Case("line", "mixture"),
    "three groups, mixture guide": Case("groups", "mixture"),
    "MC dropout, digits, mixture guide, 4 draws a step": Case("digits-dropout", "mixture", 4),
}
#: Logits of three groups of hypotheses that contradict each other, at inputs of two features.
GROUPS = torch.tensor([[[3.0, 0.0, -1.0], [0.0, 1.0, 0.0]], [[-1.0, 3.0, 0.0], [1.0, 0.0, 0.0]],
                       [[0.0, -1.0, 3.0], [0.0, 0.0, 1.0]]])  # fmt: skip


class Judged(NamedTuple):
    """Test rows and the teacher's draws ``(S, N, C)`` there."""

    x: Tensor
    draws: Tensor


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--steps", type=int, default=3000, help="of the closed form")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.steps = 1, 20
    torch.set_num_threads(1)
    record_seeds(__file__, args, of_seed, tables)


def of_seed(seed: int, args) -> Tables:
    """Every objective of every case."""
    found: list[dict] = []
    for name, case in list(CASES.items())[: 1 if args.quick else None]:
        found += cell(name, *posterior(case.posterior), seed, args)
    return {"Objectives": found}


def tables(rows: Tables) -> Tables:
    found = rows["Objectives"]
    return {
        "Objectives": over_seeds(found, ("posterior", "objective")),
        "Lower by": best(found),
    }


@cache
def posterior(name: str) -> tuple[Any, Data, Judged]:
    """The source, its data, and the rows that judge with draws of their own."""
    if name in ("line", "groups"):
        torch.manual_seed(0)
        x, test = torch.randn(1000, 2), torch.randn(500, 2)
        line = KNOWN["two-class line"]
        source, judge = {"line": (line.teacher, line.judge), "groups": (groups, groups)}[name]
        return source, Data(x, x, x, test), Judged(test, judge(test, 1000))
    made = make(name, 0)
    torch.manual_seed(1)
    test = made.data.test[:500]
    return made.source, made.data, Judged(test, pyro_opu.as_teacher(made.source).probs(test, 1000))


def groups(x: Tensor, num_draws: int = 500) -> Tensor:
    """Draws that gather about three answers, which one is the same for all inputs."""
    weights = GROUPS[torch.arange(num_draws) % 3] + 0.3 * torch.randn(num_draws, 2, 3)
    return (x @ weights).softmax(-1)


def cell(name: str, source: Any, data: Data, judged: Judged, seed: int, args: Any) -> list[dict]:
    """One row per objective, from one closed-form student."""
    case = CASES[name]
    training = pyro_opu.Training(num_draws=case.num_draws, recalibrate=False)
    start = time.process_time()
    first = pyro_opu.distill(
        source,
        data.transfer,
        guide=case.guide,
        num_steps=args.steps,
        seed=seed,
        progress=False,
        training=training,
    )
    spent = time.process_time() - start
    rows = [row(name, "closed form", first, judged, spent)]
    for objective, build in REFINEMENTS.items():
        if objective == "closed form, continued" and case.guide != "dirichlet":
            continue  # its closed form is the energy distance
        start, loss = time.process_time(), build()
        fast = pyro_opu.distill(
            source,
            data.transfer,
            guide=copy.deepcopy(first.guide).requires_grad_(True),
            loss=loss,
            num_steps=args.steps // 10,
            seed=seed,
            progress=False,
            training=replace(
                training, learning_rate=loss.learning_rate, warm_start=False, evaluate_every=50
            ),
        )
        more = time.process_time() - start
        rows.append(row(name, objective, fast, judged, spent + more))
    return rows


@torch.no_grad()
def row(name: str, objective: str, fast: Any, judged: Judged, seconds: float) -> dict:
    """Energy distance, KL and mutual information of a student on the test rows."""
    student, draws = fast.distribution(judged.x), judged.draws
    torch.manual_seed(2)
    kept = fast.report["kept"].split(":")[0]
    mine, theirs = (epistemic_uncertainty(each).mean() for each in (student, draws))
    return {
        "posterior": name,
        "objective": objective,
        "kept": " kept" in kept and "not" not in kept,
        "energy distance": float(energy_distance(draws, student.sample((500,))).mean()),
        "KL": float(kl_divergence(draws.mean(0), student.mean).mean()),
        "MI": float(mine / theirs),
        "CPU s": seconds,
    }


def best(rows: list[dict]) -> list[dict]:
    """Change of the test energy distance by each refinement, seed by seed, per posterior."""
    out = []
    for name in dict.fromkeys(row["posterior"] for row in rows):
        mine = [row for row in rows if row["posterior"] == name]
        before = {row["seed"]: row for row in mine if row["objective"] == "closed form"}
        found: dict[str, Any] = {"posterior": name}
        for objective in REFINEMENTS:
            pairs = [(row, before[row["seed"]]) for row in mine if row["objective"] == objective]
            if pairs:
                gain = [b["energy distance"] - a["energy distance"] for a, b in pairs]
                found[objective] = spread(gain)
        out.append(found)
    return out


if __name__ == "__main__":
    main()
