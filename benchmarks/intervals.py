"""Intervals of class probabilities: of a student's Dirichlet, and of marginals with normal logits.

Of default students of the posteriors of ``benchmarks.teachers`` at rows that neither has seen, by
the posterior's own draws, 500 or all that it holds: the energy distance, class by class, between
the draws and each law; the mutual information over theirs; and the share of the draws in its
central intervals of 50 and 90 %, where a class counts by its mean probability. Means over inputs,
and by the teacher's largest mean probability. ``fast.marginals(x)`` reads the same mean and
concentration as ``fast.dirichlet(x)``.

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
from pyro_opu.distributions import LogitNormal, PredictiveDirichlet
from pyro_opu.metrics.coverage import central_coverage
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.reports.certainty import NAMES, class_of

DRAWS, LEVELS, INPUTS = 500, (0.5, 0.9), 300
#: Draws of a Dirichlet, and quantiles of a normal logit, that stand for their laws.
SAMPLES, QUANTILES = 2000, 400
#: Classes of certainty of fewer inputs have no row.
FEWEST = 10
SAME = ("name", "teacher", "draws", "law")
LAWS = ("Dirichlet", "normal logits", "best Dirichlet", "best normal logits")


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
        student = fast.dirichlet(x)
    weights = student.mean.double()
    answers = (student, by_moments(draws))
    found = [law for answer in answers for law in of_laws(answer, draws, weights, held)]
    certainty = class_of(draws.mean(0))
    tables: dict[str, list[dict[str, Any]]] = {"Intervals": [], "By certainty": []}
    for law, measured in zip(LAWS, found, strict=True):
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
    mean, variance = draws.mean(0), draws.var(0).sum(-1)
    gini = 1 - mean.square().sum(-1) + variance / len(draws)
    g = ((gini - variance) / variance.clamp_min(1e-12)).clamp_min(1e-3).log()
    return PredictiveDirichlet(mean.clamp_min(1e-30).log(), g.clamp(-8.0, 16.0))


def of_laws(
    answer: PredictiveDirichlet, draws: Tensor, weights: Tensor, held: bool
) -> list[dict[str, Tensor]]:
    """What is measured of an answer, and of its marginals with normal logits, ``(..., N)`` each."""
    answer = PredictiveDirichlet(answer.log_mean.double(), answer.log_concentration.double())
    law, marginals = LogitNormal(answer), Marginals(draws)
    own = marginals.spread / len(draws) if held else 0.0  # of a posterior that is these draws
    shares = (torch.arange(QUANTILES) + 0.5) / QUANTILES
    points = torch.stack([law.quantile(float(share)) for share in shares])
    spread = Marginals(points).spread / QUANTILES  # they stand for the law, and are no draws of it
    # By the other classes, as a probability near one is rounded.
    others = draws @ (1 - torch.eye(draws.shape[-1], dtype=draws.dtype))
    logits = [p.clamp_min(1e-300).log() for p in (draws, others)]
    z = ((logits[0] - logits[1] - law.logit) / law.deviation).abs()
    reach = [float(torch.special.ndtri(torch.tensor((1 + level) / 2))) for level in LEVELS]
    held_by = torch.stack([((z <= end).double().mean(0) * weights).sum(-1) for end in reach])
    return [
        {
            "energy": marginals.energy_distance(answer.sample((SAMPLES,))) + own,
            "information": pyro_opu.mutual_information(answer),
            "inside": central_coverage(answer, draws, weights, LEVELS),
        },
        {
            "energy": marginals.energy_distance(points) + spread + own,
            "information": law.mutual_information,
            "inside": held_by,
        },
    ]


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
