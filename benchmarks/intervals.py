"""Intervals of class probabilities: of the laws that a student's two moments are read as.

Of default students of the posteriors of ``benchmarks.teachers`` at rows that neither has seen, by
the posterior's own draws, 500 or all that it holds: the energy distance, class by class, between
the draws and each law; the mutual information over theirs; and the share of the draws in its
central intervals of 50 and 90 %, where a class counts by its mean probability. Means over inputs,
and by the teacher's largest mean probability. "default" is ``fast.distribution(x)``, beside it the
other law of its mean and concentration; "best" are both by the moments of the draws themselves.

    python -m benchmarks.intervals
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import pyro_opu
from benchmarks.posteriors import POSTERIORS, make
from benchmarks.results import over_seeds, parser, record_seeds, say
from pyro_opu.distributions import DirichletMixture, NormalSticks, PredictiveDirichlet
from pyro_opu.distributions.dirichlet import moment_matched
from pyro_opu.metrics.coverage import central_coverage, central_coverage_of_draws
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import moment_concentration
from pyro_opu.reports.certainty import NAMES, class_of

DRAWS, LEVELS, INPUTS = 500, (0.5, 0.9), 300
#: Draws that stand for a law.
SAMPLES = 2000
#: Classes of certainty of fewer inputs have no row.
FEWEST = 10
SAME = ("name", "teacher", "draws", "law")


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--only", nargs="+", choices=POSTERIORS, default=list(POSTERIORS))
    args = options.parse_args()
    if args.quick:
        args.seeds, args.only = 1, ["pima-laplace"]
    averages = {"Intervals": SAME, "By certainty": (*SAME, "certainty")}
    record_seeds("intervals", args, of_seed, averages)


def of_seed(seed: int, args: Any) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {"Intervals": [], "By certainty": []}
    for name in args.only:
        for title, rows in of_posterior(name, seed, args.quick).items():
            tables[title] += rows
        say({"Intervals": over_seeds(tables["Intervals"], SAME)})
    return tables


def of_posterior(name: str, seed: int, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """Rows of every law of one posterior: over all inputs, and by certainty."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's
        posterior = make(name, seed)
    fewer = {"num_steps": 20} if quick else {}
    fast = pyro_opu.distill(
        posterior.source, posterior.data.transfer, seed=seed, progress=False, **fewer
    )
    x = posterior.data.test[:INPUTS]
    teacher = pyro_opu.as_teacher(posterior.source)
    torch.manual_seed(seed)
    draws = teacher.probs(x, min(DRAWS, teacher.max_draws or DRAWS)).double()
    held = teacher.max_draws is not None and len(draws) == teacher.max_draws
    with torch.no_grad():
        answer = fast.distribution(x)
    weights = answer.mean.double()
    matched, best = answer.matched(), by_moments(draws)
    laws: dict[str, Any] = {"Dirichlet": matched, "sticks": as_sticks(matched)}
    if isinstance(answer, DirichletMixture):
        laws["mixture"] = answer
    default = next(name for name, law in laws.items() if type(law) is type(answer))
    laws[f"{default}, default"] = laws.pop(default)
    laws |= {"best Dirichlet": best, "best sticks": as_sticks(best)}
    certainty = class_of(draws.mean(0))
    tables: dict[str, list[dict[str, Any]]] = {"Intervals": [], "By certainty": []}
    for law, each in laws.items():
        measured = of_law(each, draws, weights, held)
        own = {"name": name, "teacher": POSTERIORS[name][0], "draws": len(draws), "law": law}
        tables["Intervals"].append({**own, "seed": seed, **row_of(measured, draws)})
        for number, title in enumerate(NAMES):
            here = certainty == number
            if here.sum() >= FEWEST:
                row = row_of({k: v[..., here] for k, v in measured.items()}, draws[:, here])
                tables["By certainty"].append({**own, "certainty": title, "seed": seed, **row})
    return tables


def by_moments(draws: Tensor) -> PredictiveDirichlet:
    """Mean of the draws, and the concentration of their summed variance, unbiased."""
    return moment_matched(draws.mean(0), moment_concentration(draws))


def as_sticks(dirichlet: PredictiveDirichlet) -> NormalSticks:
    return NormalSticks.from_tensors(dirichlet.as_tensors())


def of_law(answer: Any, draws: Tensor, weights: Tensor, held: bool) -> dict[str, Tensor]:
    """What is measured of an answer, ``(..., N)`` each."""
    tensors = {name: value.double() for name, value in answer.as_tensors().items()}
    answer, marginals = answer.from_tensors(tensors), Marginals(draws)
    own = marginals.spread / len(draws) if held else 0.0  # of a posterior that is these draws
    samples = answer.sample((SAMPLES,))
    if isinstance(answer, PredictiveDirichlet):
        inside = central_coverage(answer, draws, weights, LEVELS)
    else:
        inside = central_coverage_of_draws(samples, draws, weights, LEVELS)
    return {
        "energy": marginals.energy_distance(samples) + own,
        "information": answer.measures().epistemic,
        "inside": inside,
    }


def row_of(measured: dict[str, Tensor], draws: Tensor) -> dict[str, Any]:
    """Means over inputs."""
    theirs = pyro_opu.mutual_information(draws).mean()
    row = {
        "inputs": draws.shape[1],
        "energy distance": float(measured["energy"].mean()),
        "mutual information / teacher's": float(measured["information"].mean() / theirs),
    }
    inside = measured["inside"].mean(-1).tolist()
    return row | {f"central {100 * k:g} %": v for k, v in zip(LEVELS, inside, strict=True)}


if __name__ == "__main__":
    main()
