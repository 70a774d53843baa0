"""Every teacher distilled with default settings: one row each.

python -m benchmarks.teachers

The posteriors are those of ``benchmarks/posteriors.py``; what holds draws holds 1,000, so that
two halves of 500 give the floor. ``--only`` makes some rows anew and keeps the others.
"""

from __future__ import annotations

import time
import warnings

import torch
from pyro.infer import Predictive

import pyro_opu
from benchmarks.posteriors import POSTERIORS, Posterior, make
from benchmarks.results import kept, parser, say, write


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=POSTERIORS, default=list(POSTERIORS))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--name", default="teachers", help="of the results file")
    args = options.parse_args()
    if args.quick:
        args.only = ["pima-laplace"]
    rows = kept_rows(args)
    for name in args.only:
        rows[name] = row(name, args)
        say({"teachers": [rows[name]]})
        if not args.quick:
            in_order = [rows[each] for each in POSTERIORS if each in rows]
            settings = {"seed": args.seed, "draws": 500}
            write(args.name, "python -m benchmarks.teachers", settings, {"Teachers": in_order})


def kept_rows(args) -> dict[str, dict]:
    """Rows of the results file that are not made anew."""
    rows = [] if args.quick else kept(args.name).get("Teachers", [])
    return {row["name"]: row for row in rows if row["name"] not in args.only}


def row(name: str, args) -> dict:
    """Make, distill, and compare with the floor on rows that neither has seen."""
    inference, data, _ = POSTERIORS[name]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's, about shapes that do not change
        posterior = make(name, args.seed)
    inferred = time.perf_counter() - start
    start = time.perf_counter()
    quick = {"num_steps": 20} if args.quick else {}
    fast = pyro_opu.distill(
        posterior.source, posterior.data.transfer, seed=args.seed, progress=False, **quick
    )
    distilled = time.perf_counter() - start
    x = posterior.data.test
    report = pyro_opu.fidelity(fast, posterior.source, x, seed=args.seed)
    mixing = fast.report["mixing"]
    return {
        "name": name,
        "teacher": inference,
        "data": data,
        "draws": len_of(posterior),
        "R-hat of its probabilities (90 %)": mixing["r_hat_90"] or "",
        "effective draws (median)": mixing["ess_median"] or "",
        "inference, s": inferred,
        "distill, s": distilled,
        "Predictive, s": time_of(lambda: ask(posterior), 1),
        "one pass, s": time_of(lambda: fast.dirichlet(x), 20),
        "KL": report.kl,
        "KL floor": report.kl_floor,
        "KL / floor": report.kl / report.kl_floor,
        "energy distance": report.energy_distance,
        "its floor": report.energy_distance_floor,
        "best Dirichlet": report.energy_distance_best,
        "mutual information": report.mutual_information,
        "teacher's": report.mutual_information_teacher,
        "rank correlation": report.mutual_information_spearman,
    }


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
