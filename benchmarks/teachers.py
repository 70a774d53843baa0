"""Every teacher distilled with default settings: one row each.

python -m benchmarks.teachers

The posteriors are those of ``benchmarks/posteriors.py``; what holds draws holds 1,000, so that
two halves of 500 give the floor. A KL is read as a multiple of what is attainable, the KL of a
perfect student of the draws that were taught. Means hide the sure inputs, so there is a row for
every class of certainty of the teacher too. ``--only`` makes some rows anew and keeps the others.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict
from typing import Any

import torch
from pyro.infer import Predictive

import pyro_opu
from benchmarks.posteriors import POSTERIORS, Posterior, make
from benchmarks.results import kept, parser, say, write
from pyro_opu.utils.tables import json_ready


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=POSTERIORS, default=list(POSTERIORS))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--name", default="teachers", help="of the results file")
    args = options.parse_args()
    if args.quick:
        args.only = ["pima-laplace"]
    tables = {} if args.quick or args.only == list(POSTERIORS) else kept(args.name)
    for name in args.only:
        new = rows_of(name, args)
        say(new)
        tables = {title: in_order(tables.get(title, []), rows) for title, rows in new.items()}
        if not args.quick:
            settings = {"seed": args.seed, "draws": 500}
            write(args.name, "python -m benchmarks.teachers", settings, tables)


def in_order(old: list[dict], new: list[dict]) -> list[dict]:
    """The rows of a table, those of one posterior made anew."""
    rows = [row for row in old if row["name"] != new[0]["name"]] + new
    return [row for name in POSTERIORS for row in rows if row["name"] == name]


def rows_of(name: str, args) -> dict[str, list[dict]]:
    """Make, distill, and compare on rows that neither has seen: a row for each table or more."""
    inference, data, _ = POSTERIORS[name]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's, about shapes that do not change
        posterior = make(name, args.seed)
    inferred = time.perf_counter() - start
    start, begun = time.perf_counter(), time.process_time()
    quick = {"num_steps": 20} if args.quick else {}
    fast = pyro_opu.distill(
        posterior.source, posterior.data.transfer, seed=args.seed, progress=False, **quick
    )
    distilled, processor = time.perf_counter() - start, time.process_time() - begun
    x = posterior.data.test
    report = pyro_opu.fidelity(fast, posterior.source, x, seed=args.seed)
    mixing = fast.report["mixing"]
    same = {"name": name, "teacher": inference, "data": data}
    row = {
        **same,
        "draws": len_of(posterior),
        "R-hat of its probabilities (90 %)": mixing["r_hat_90"] or "",
        "effective draws (median)": mixing["ess_median"] or "",
        "inference, s": inferred,
        "distill, s": distilled,
        "distill, CPU s": processor,
        "Predictive, s": time_of(lambda: ask(posterior), 1),
        "one pass, s": time_of(lambda: fast.dirichlet(x), 20),
        **nearness(report),
        "kept": fast.report["kept"],
    }
    return {"Teachers": [row], "By certainty": certainty_rows(same, report)}


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
    }


def certainty_rows(same: dict[str, Any], report: pyro_opu.FidelityReport) -> list[dict[str, Any]]:
    """The report by the teacher's certainty, a row for every class that has inputs."""
    return [{**same, **json_ready(asdict(each))} for each in report.by_certainty if each.num_inputs]


def len_of(posterior: Posterior) -> str:
    held = pyro_opu.as_teacher(posterior.source).max_draws
    return "afresh" if held is None else str(held)


def ask(posterior: Posterior) -> None:
    """500 draws of the labels by Pyro, from one posterior or in turn from several."""
    for each in posterior.predictives:
        draws = 500 // len(posterior.predictives)
        if each.guide is None:
            samples = {name: value[:draws] for name, value in each.posterior_samples.items()}
            again = Predictive(each.model, samples)
        else:
            again = Predictive(each.model, guide=each.guide, num_samples=draws)
        again(posterior.data.test)


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
