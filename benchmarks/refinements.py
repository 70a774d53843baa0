"""Does anything improve on the closed-form student? Objectives from where it ends, per posterior.

The default student (cross-entropy for h, moments for g, all steps) is made first; then every
objective goes on from its weights for the same number of steps, with its own learning rate, and
keeps its best iterate on held-out inputs. Energy distance, KL and mutual information are those on
test rows, which nothing has seen. CPU seconds are of one thread.

    python -m benchmarks.refinements [--only NAME ...] [--resume]
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_opu
from benchmarks.known_answers import line_judge, line_teacher
from benchmarks.posteriors import Data, make
from benchmarks.results import kept, parser, say, spread, write
from pyro_opu import EnergyDistance, MomentMatching, Objective, WassersteinELBO
from pyro_opu.metrics.distances import energy_distance, kl_divergence
from pyro_opu.metrics.uncertainty import epistemic_uncertainty
from pyro_opu.reports.certainty import NAMES, class_of

COMMAND = "python -m benchmarks.refinements"
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
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--steps", type=int, default=3000, help="of the closed form")
    options.add_argument("--refine", type=int, default=300, help="steps of each refinement")
    options.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--resume", action="store_true", help="keep the rows already written")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.steps, args.refine = 1, 20, 4
        args.only = ["logistic regression, Laplace, Pima"]
    torch.set_num_threads(1)
    made: dict[str, tuple[Any, Data, Judged]] = {}
    rows = kept("refinements").get("Seeds", []) if args.resume and not args.quick else []
    there = {(row["posterior"], row["seed"]) for row in rows}
    for seed in range(args.seeds):
        for name in args.only:
            if (name, seed) in there:
                continue
            which = CASES[name].posterior
            made[which] = made.get(which) or posterior(which)
            rows += cell(name, *made[which], seed, args)
            tables = {"Objectives": summary(rows), "Best": best(rows), "Seeds": rows}
            if not args.quick:
                settings = {"seeds": seed + 1, "steps": args.steps, "refine": args.refine}
                write("refinements", COMMAND, settings, tables)
    say({"Objectives": summary(rows)})


def posterior(name: str) -> tuple[Any, Data, Judged]:
    """The source, its data, and the rows that judge with draws of their own."""
    if name in ("line", "groups"):
        torch.manual_seed(0)
        x, test = torch.randn(1000, 2), torch.randn(500, 2)
        source, judge = {"line": (line_teacher, line_judge), "groups": (groups, groups)}[name]
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
    common = {"num_draws": case.num_draws, "seed": seed, "recalibrate": False, "progress": False}
    start = time.process_time()
    first = pyro_opu.distill(
        source, data.transfer, guide=case.guide, num_steps=args.steps, **common
    )
    spent = time.process_time() - start
    rows = [row(name, "closed form", seed, first, judged, spent)]
    for objective, build in REFINEMENTS.items():
        if objective == "closed form, continued" and case.guide != "dirichlet":
            continue  # its closed form is the energy distance
        start = time.process_time()
        fast = pyro_opu.distill(
            source,
            data.transfer,
            guide=copy.deepcopy(first.guide).requires_grad_(True),
            loss=build(),
            num_steps=args.refine,
            warm_start=False,
            evaluate_every=50,
            **common,
        )
        more = time.process_time() - start
        rows.append(row(name, objective, seed, fast, judged, spent + more))
    return rows


@torch.no_grad()
def row(name: str, objective: str, seed: int, fast: Any, judged: Judged, seconds: float) -> dict:
    """Energy distance, KL and mutual information of a student on the test rows."""
    student, draws = fast.distribution(judged.x), judged.draws
    torch.manual_seed(2)
    mean = draws.mean(0)
    mine, theirs = epistemic_uncertainty(student), epistemic_uncertainty(draws)
    found = {
        "posterior": name,
        "objective": objective,
        "seed": seed,
        "CPU s": seconds,
        "kept": fast.report["kept"].split(":")[0],
        "energy distance": float(energy_distance(draws, student.sample((500,))).mean()),
        "KL": float(kl_divergence(mean, student.mean).mean()),
    }
    classes = class_of(mean)
    for number, label in enumerate(NAMES):
        here = classes == number
        ratio = float(mine[here].mean() / theirs[here].mean()) if here.sum() >= 10 else None
        found[f"MI / teacher's, {label}"] = "" if ratio is None else ratio
    return found


def summary(rows: list[dict]) -> list[dict]:
    """Mean ± deviation over the seeds, one row per posterior and objective."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for each in rows:
        groups.setdefault((each["posterior"], each["objective"]), []).append(each)
    out = []
    for (name, objective), group in groups.items():
        numbers = [k for k, v in group[0].items() if isinstance(v, float)]
        kept_ones = sum(" kept" in each["kept"] and "not" not in each["kept"] for each in group)
        out.append(
            {
                "posterior": name,
                "objective": objective,
                "kept": "" if objective == "closed form" else f"{kept_ones} of {len(group)}",
                **{k: spread([each[k] for each in group]) for k in numbers},
            }
        )
    return out


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
                found[f"{objective}: lower by"] = spread(gain)
                found[f"{objective}: seconds more"] = spread(
                    [a["CPU s"] - b["CPU s"] for a, b in pairs]
                )
        out.append(found)
    return out


if __name__ == "__main__":
    main()
