"""A student that follows its posterior: ``distill(..., start=fast)`` beside ``distill`` anew.

A posterior of some labelled rows has a student, by default settings. Then come a twentieth or half
as many rows more, and the posterior changes: "moved" is the KL of the student as it was, judged by
the new posterior on test rows, as a multiple of what a perfect student has; beside it the same of
one that is distilled anew, and of one that begins at the earlier student. Seconds are those of
``distill`` alone, on one thread, one after the other in one process. Aimed at were the KL within
10 % in a tenth of the time.

The family of the answers is chosen anew: where the earlier draws were just in groups enough for a
mixture, those of now may suit a single Dirichlet.

Transfer inputs are rows without labels, the same for all, and test rows others.

    python -m benchmarks.following
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import pyro_opu
from papers import datasets
from papers.digits import digits
from papers.results import parser, record_seeds
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import (
    bayesian_network,
    dropout_network,
    fit_network,
    perceptron,
)
from pyro_opu.models.variational import fit_svi
from pyro_opu.samplers import PolyaGammaGibbs

#: Rows more, as a share of those before.
MORE = (0.05, 0.5)
#: Rows before.
ROWS = 400
#: A posterior of so many rows.
Posterior = Callable[[int], Any]


def main() -> None:
    args = parser(__doc__, seeds=3).parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds = 1
    record_seeds(__file__, args, of_seed, {"Following": ("posterior", "rows more")})


def gibbs(x: Tensor, y: Tensor, quick: bool) -> Posterior:
    """Logistic regression by Polya-Gamma variables: 500 draws."""
    model = logistic_regression(2)

    def posterior(rows: int) -> Predictive:
        run = MCMC(PolyaGammaGibbs(model), 20 if quick else 500, 100, disable_progbar=True)
        run.run(x[:rows], y[:rows].float())
        return Predictive(model, run.get_samples())

    return posterior


def dropout(x: Tensor, y: Tensor, quick: bool) -> Posterior:
    """A dropout network that is trained on with the new rows."""
    network = dropout_network((64, 128, 128, 10))

    def posterior(rows: int) -> torch.nn.Module:
        trained = fit_network(copy.deepcopy(network), x[:rows], y[:rows], epochs=2 if quick else 60)
        network.load_state_dict(trained.state_dict())
        return trained

    return posterior


def variational(x: Tensor, y: Tensor, quick: bool) -> Posterior:
    """A network whose guide is trained on with the new rows."""
    model = bayesian_network(perceptron((64, 50, 10)), prior=0.3)
    guide = AutoNormal(model, init_scale=0.02)

    def posterior(rows: int) -> Predictive:
        fitted = fit_svi(model, guide, x[:rows], y[:rows], steps=20 if quick else 1000).guide
        return Predictive(
            model, guide=copy.deepcopy(fitted), num_samples=500, return_sites=("obs",)
        )

    return posterior


def spambase(seed: int) -> tuple[Tensor, Tensor]:
    (rows,) = datasets.standardize(datasets.spambase())
    order = torch.randperm(len(rows.x), generator=torch.Generator().manual_seed(seed))
    return rows.x[order], rows.y[order]


def shuffled_digits(seed: int) -> tuple[Tensor, Tensor]:
    parts = digits(seed)
    return torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])


CASES: dict[str, tuple[Callable[[int], tuple[Tensor, Tensor]], Callable[..., Posterior]]] = {
    "Polya-Gamma, Spambase": (spambase, gibbs),
    "MC dropout, digits": (shuffled_digits, dropout),
    "variational network, digits": (shuffled_digits, variational),
}


def of_seed(seed: int, args: Any) -> dict[str, list[dict]]:
    """Every posterior before and after the new rows."""
    rows = []
    for name, (data, kind) in list(CASES.items())[: 1 if args.quick else None]:
        x, y = data(seed)
        most = ROWS + round(max(MORE) * ROWS)
        transfer, test = x[most:].split(40 if args.quick else 500)[:2]
        options = {"num_steps": 5} if args.quick else {}
        taught = partial(pyro_opu.distill, x=transfer, seed=seed, progress=False, **options)
        for more in MORE[: 1 if args.quick else 2]:
            torch.manual_seed(seed)
            posterior = kind(x, y, args.quick)
            before = taught(posterior(ROWS))
            now = posterior(ROWS + round(more * ROWS))
            found = {}
            for way, start in (("anew", None), ("following", before)):
                begun = time.perf_counter()
                student = taught(now, start=start)
                found[way] = student, time.perf_counter() - begun
            rows.append(
                {"posterior": name, "rows more": f"{100 * more:g} %"}
                | compared(found, before, now, test, seed)
            )
    return {"Following": rows}


def compared(
    found: dict[str, Any], before: Any, now: Any, x: Tensor, seed: int
) -> dict[str, float]:
    """Nearness of the students to the new posterior, and the seconds of ``distill``."""
    (anew, all_seconds), (following, seconds) = found["anew"], found["following"]
    reports = [
        pyro_opu.fidelity(student, now, x, seed=seed, wasserstein_inputs=0)
        for student in (before, anew, following)
    ]
    moved, scratch, near = (report.kl_ratio for report in reports)
    errors = [report.mutual_information / report.mutual_information_teacher for report in reports]
    return {
        "same family": before.report["family"] == following.report["family"],
        "moved": moved,
        "anew": scratch,
        "following": near,
        "following / anew": near / scratch,
        "MI anew": errors[1],
        "MI following": errors[2],
        "anew, s": all_seconds,
        "following, s": seconds,
        "share of the time": seconds / all_seconds,
    }


if __name__ == "__main__":
    main()
