"""CompactApprox: 50 of 5000 draws, by the papers' random search and by greedy selection.

python -m benchmarks.compact

Polya-Gamma posteriors of logistic regressions on Pima and Spambase, standardized; 10 % of the rows
are held out. Subsets are chosen by the divergence at training rows, at most 1,000 of them, and
judged at the rows held out too; both in nats, of the mean of all 5000 draws from the mean of the
subset. Seconds include the evaluation of all draws at the selection inputs. One random subset is a
mean over 200, with the deviation over these. The other deviations are over seeds, each with its
own split, chain and search. "greedy, many at the start" looks for every draw of the first set
among as many candidates as half of the tries allow, 1,000, and not among 8.
"""

from __future__ import annotations

import time
from unittest import mock

import pyro
import torch
from pyro.infer import MCMC, Predictive
from torch import Tensor

from benchmarks.results import parser, say, spread, write
from pyro_opu import PolyaGammaGibbs, as_teacher, datasets
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.rivals import compact_approx, subsets

SIZE, WARMUP, MOST_INPUTS, RANDOM_SUBSETS = 50, 500, 1000, 200
DATA = ("pima", "spambase")
Scores = dict[tuple[str, str], list[dict[str, float]]]


def main() -> None:
    options = parser("CompactApprox: 50 of 5000 draws.")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--draws", type=int, default=5000)
    options.add_argument("--tries", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    args = options.parse_args()
    if args.quick:
        args.seeds, args.draws, args.tries = 2, 200, [100, 1000]
    torch.set_num_threads(1)
    tables: dict[str, list[dict]] = {}
    for name in DATA:
        scores: Scores = {}
        for seed in range(args.seeds):
            for which, found in one_seed(name, seed, args.draws, args.tries).items():
                scores.setdefault(which, []).append(found)
        tables[name] = [row(*which, found) for which, found in scores.items()]
        say({name: tables[name]})
        if not args.quick:
            settings = {
                **vars(args),
                "size": SIZE,
                "warmup": WARMUP,
                "selection inputs, at most": MOST_INPUTS,
                "random subsets": RANDOM_SUBSETS,
            }
            write("compact", "python -m benchmarks.compact", settings, tables)


def one_seed(name: str, seed: int, draws: int, tries: list[int]) -> dict:
    """(way, subsets judged) -> divergences at both sets of inputs, and seconds."""
    predictive, x, test = posterior(name, seed, draws)
    teacher = as_teacher(predictive)
    inside, outside = (teacher.log_probs(rows).double().exp() for rows in (x, test))

    def judged(chosen: list[int] | Tensor) -> dict[str, float]:
        return {"selection": kl(inside, chosen), "held out": kl(outside, chosen)}

    some = [judged(torch.randperm(draws)[:SIZE]) for _ in range(RANDOM_SUBSETS)]
    columns = {key: torch.tensor([each[key] for each in some]) for key in some[0]}
    found = {
        ("one random subset", 1): {key: float(value.mean()) for key, value in columns.items()},
        ("its deviation", 1): {key: float(value.std()) for key, value in columns.items()},
        (f"the last {SIZE}", 1): judged(list(range(draws - SIZE, draws))),
    }
    ways = [(method, count) for count in tries for method in ("random", "greedy")]
    for way, count in [*ways, ("greedy, many at the start", tries[-1])]:
        start = time.perf_counter()
        chosen = searched(predictive, x, way, count, seed)
        seconds = time.perf_counter() - start
        found[way, count] = {**judged(chosen), "seconds": seconds}
    return found


def searched(predictive: Predictive, x: Tensor, way: str, tries: int, seed: int) -> list[int]:
    """The draws that a search has chosen."""
    method, _, many = way.partition(", ")
    candidates = tries if many else subsets.CANDIDATES
    with mock.patch.object(subsets, "CANDIDATES", candidates):
        fast = compact_approx(
            predictive, x, size=SIZE, method=method, tries=tries, seed=seed, progress=False
        )
    return fast.report["indices"]


def posterior(name: str, seed: int, draws: int) -> tuple[Predictive, Tensor, Tensor]:
    """The posterior, selection inputs and held-out inputs."""
    pyro.set_rng_seed(seed)
    train, test = datasets.split(getattr(datasets, name)(), test=0.1, seed=seed)
    train, test = datasets.standardize(train, test)
    model = logistic_regression(2)
    run = MCMC(PolyaGammaGibbs(model), draws, min(WARMUP, draws), disable_progbar=True)
    run.run(train.x, train.y.float())
    rows = torch.randperm(len(train.x))[:MOST_INPUTS]
    return Predictive(model, run.get_samples()), train.x[rows], test.x


def kl(probs: Tensor, chosen: list[int] | Tensor) -> float:
    """Mean over inputs of the divergence of the whole mean from the subset's, ``(S, N, C)``."""
    whole, part = probs.mean(0), probs[chosen].mean(0)
    return float((whole * (whole / part).log()).sum(-1).mean())


def row(way: str, subsets: int, found: list[dict[str, float]]) -> dict:
    """Mean and deviation over seeds."""
    return {
        "way": way,
        "subsets judged": subsets,
        **{f"KL, {key}": spread([one[key] for one in found]) for key in ("selection", "held out")},
        "seconds": spread([one["seconds"] for one in found]) if "seconds" in found[0] else "",
    }


if __name__ == "__main__":
    main()
