"""Fidelity and out-of-domain scores of the default ``distill`` on digits with MC dropout.

The teacher is a 64-128-128-10 network with p = 0.5; nothing is chosen on the test rows.

    python -m benchmarks.digits_fidelity
"""

from __future__ import annotations

import time

import torch

import pyro_opu
from benchmarks.digits import digits, no_digits
from benchmarks.results import parser, say, spread, write
from models.neural_network import dropout_network, fit_network

SIZES = (64, 128, 128, 10)
EPISTEMIC = (
    "mutual_information",
    "variance",
    "concentration",
    "expected_pairwise_kl",
    "differential_entropy",
)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--loss", default="wasserstein")
    args = options.parse_args()
    if args.quick:
        args.seeds = 1
    fidelities, scores = [], []
    for seed in range(args.seeds):
        fidelity, score = one_seed(seed, args)
        fidelities.append(fidelity)
        scores += score
        say({"Fidelity": fidelities, "Out of domain": scores})
    fidelities.append(
        {
            key: "mean"
            if key == "seed"
            else ""
            if key == "kept"
            else spread([f[key] for f in fidelities])
            for key in fidelities[0]
        }
    )
    tables = {"Fidelity": fidelities, "Out of domain": scores, "Out of domain, mean": mean(scores)}
    say(tables)
    if not args.quick:
        name = "digits_fidelity" + ("" if args.loss == "wasserstein" else f"_{args.loss}")
        write(name, f"python -m benchmarks.digits_fidelity --loss {args.loss}", vars(args), tables)


def one_seed(seed: int, args) -> tuple[dict, list[dict]]:
    """Train a teacher, distill it, judge the student on test rows and on three outside sets."""
    data = digits(seed)
    torch.manual_seed(seed)
    teacher = fit_network(dropout_network(SIZES), *data.train, epochs=5 if args.quick else 200)
    start = time.perf_counter()
    fast = pyro_opu.distill(
        teacher,
        data.transfer.x,
        loss=args.loss,
        seed=seed,
        progress=False,
        **({"num_steps": 40} if args.quick else {}),
    )
    seconds = time.perf_counter() - start
    outside = no_digits(data.test.x, seed)
    report = pyro_opu.fidelity(fast, teacher, data.test.x, extra=outside, seed=seed)
    print(report, flush=True)
    row = {
        "seed": seed,
        "KL": report.kl,
        "KL floor": report.kl_floor,
        "energy distance": report.energy_distance,
        "teacher against itself": report.energy_distance_floor,
        "best per-input Dirichlet": report.energy_distance_best,
        "W1": report.wasserstein,
        "W1 floor": report.wasserstein_floor,
        "mutual information": report.mutual_information,
        "teacher's": report.mutual_information_teacher,
        "relative error": report.mutual_information_error,
        "Spearman": report.mutual_information_spearman,
        "g shifted by": fast.report["recalibration"]["shift"],
        "seconds": seconds,
        "kept": fast.report["kept"],
    }
    found = pyro_opu.detection(fast, teacher, *data.test, outside, seed=seed)
    print(found, flush=True)
    return row, [of_pair(seed, name, found) for name in outside]


def of_pair(seed: int, name: str, found) -> dict:
    """AUROC of every measure for the student, and the best of the teacher's."""
    table = found[name]
    student = {m: 100 * table.student[m].auroc for m in EPISTEMIC}
    best_measure, best = found.best("teacher", name)
    trivial = max(100 * score.auroc for score in table.trivial.values())
    return {
        "seed": seed,
        "outside": name,
        "teacher's best": 100 * best.auroc,
        "by": best_measure,
        "student's best epistemic": max(student.values()),
        "margin": max(student.values()) - 100 * best.auroc,
        **{f"student {m}": value for m, value in student.items()},
        "trivial": trivial,
    }


def mean(scores: list[dict]) -> list[dict]:
    """Mean ± deviation over seeds, one row per outside set."""
    names = dict.fromkeys(score["outside"] for score in scores)
    groups = {name: [s for s in scores if s["outside"] == name] for name in names}
    return [
        {
            "outside": name,
            **{
                k: spread([g[k] for g in group])
                for k in group[0]
                if k not in ("seed", "outside", "by")
            },
        }
        for name, group in groups.items()
    ]


if __name__ == "__main__":
    main()
