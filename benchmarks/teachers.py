"""Every teacher distilled with default settings: one row each.

python -m benchmarks.teachers

The posteriors are those of ``benchmarks/posteriors.py``; what holds draws holds 1,000, so that
two halves of 500 give the floor. A KL is read as a multiple of what is attainable, the KL of a
perfect student of the draws that were taught. Means hide the sure inputs, so there is a row for
every class of certainty of the teacher too. Numbers are means over seeds, of which each makes a
posterior of its own. ``--only`` and ``--seeds`` make some rows anew and keep the others.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict
from typing import Any

import torch

import pyro_opu
from benchmarks.paying import of_draws
from benchmarks.posteriors import POSTERIORS, Posterior, make
from benchmarks.results import kept, over_seeds, parser, say, write
from pyro_opu.utils.tables import json_ready

#: Columns that are the same for all seeds of a posterior.
SAME = ("name", "teacher", "data", "draws")
BY_SEED, CERTAINTY_BY_SEED = "By seed", "By seed and certainty"


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=POSTERIORS, default=list(POSTERIORS))
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = options.parse_args()
    if args.quick:
        args.only, args.seeds = ["pima-laplace"], [0]
    whole = kept("teachers") if not args.quick else {}
    found = [whole.get(title, []) for title in (BY_SEED, CERTAINTY_BY_SEED)]
    for seed in args.seeds:
        for name in args.only:
            new = rows_of(name, seed, args.quick)
            say(dict(zip((BY_SEED, CERTAINTY_BY_SEED), new, strict=True)))
            found = [in_order(*pair) for pair in zip(found, new, strict=True)]
            tables = {
                "Teachers": over_seeds(found[0], SAME),
                "By certainty": over_seeds(found[1], (*SAME, "certainty")),
                BY_SEED: found[0],
                CERTAINTY_BY_SEED: found[1],
            }
            if not args.quick:
                write("teachers", "python -m benchmarks.teachers", {"draws": 500}, tables)
    say({title: tables[title] for title in ("Teachers", "By certainty")})


def in_order(old: list[dict], new: list[dict]) -> list[dict]:
    """The rows of a table, those of one posterior and seed made anew."""
    one = new[0]["name"], new[0]["seed"]
    rows = [row for row in old if (row["name"], row["seed"]) != one] + new
    return sorted(rows, key=lambda row: (row["seed"], list(POSTERIORS).index(row["name"])))


def rows_of(name: str, seed: int, quick: bool) -> tuple[list[dict], list[dict]]:
    """Make, distill, and compare on rows that neither has seen: a row, and those by certainty."""
    inference, data, _ = POSTERIORS[name]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's, about shapes that do not change
        posterior = make(name, seed)
    inferred = time.perf_counter() - start
    start, begun = time.perf_counter(), time.process_time()
    fewer = {"num_steps": 20} if quick else {}
    fast = pyro_opu.distill(
        posterior.source, posterior.data.transfer, seed=seed, progress=False, **fewer
    )
    distilled, processor = time.perf_counter() - start, time.process_time() - begun
    x = posterior.data.test
    report = pyro_opu.fidelity(fast, posterior.source, x, seed=seed)
    mixing = fast.report["mixing"]
    same = {"name": name, "teacher": inference, "data": data, "seed": seed}
    row = {
        **same,
        "draws": len_of(posterior),
        "R-hat of its probabilities (90 %)": mixing["r_hat_90"] or "",
        "effective draws (median)": mixing["ess_median"] or "",
        "inference, s": inferred,
        "distill, s": distilled,
        "distill, CPU s": processor,
        "Predictive, s": time_of(lambda: [loop(x) for loop in of_draws(posterior, 500)], 1),
        "one pass, s": time_of(lambda: fast.dirichlet(x), 20),
        **nearness(report),
        "answers with sticks": fast.report["family"] == "NormalSticks",
        "kept": fast.report["kept"],
    }
    return [row], certainty_rows(same, report)


def nearness(report: pyro_opu.FidelityReport) -> dict[str, Any]:
    """How near a student is to its teacher, as the tables show it."""
    return {
        "KL": report.kl,
        "KL attainable": report.kl_attainable,
        "KL / attainable": report.kl_ratio,
        "KL floor": report.kl_floor,
        "KL / floor": report.kl / report.kl_floor,
        "energy distance": report.energy_distance,
        "energy distance attainable": report.energy_distance_attainable,
        "its floor": report.energy_distance_floor,
        "best Dirichlet": report.energy_distance_best,
        "mutual information": report.mutual_information,
        "teacher's": report.mutual_information_teacher,
        "rank correlation": report.mutual_information_spearman,
        "faithful": "yes" if report.faithful else "no",
        "central 50 %": report.coverage_50,
        "central 90 %": report.coverage_90,
    }


def certainty_rows(same: dict[str, Any], report: pyro_opu.FidelityReport) -> list[dict[str, Any]]:
    """The report by the teacher's certainty, a row for every class that has inputs."""
    return [{**same, **json_ready(asdict(each))} for each in report.by_certainty if each.num_inputs]


def len_of(posterior: Posterior) -> str:
    held = pyro_opu.as_teacher(posterior.source).max_draws
    return "afresh" if held is None else str(held)


def time_of(work, repeats: int) -> float:
    """Shortest time of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.no_grad():
            work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
