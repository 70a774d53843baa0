"""Fidelity and out-of-domain scores of students of MC dropout on digits.

The teacher is a 64-128-128-10 network with p = 0.5; nothing is chosen on the test rows. A student
is the default one, or as wide as the teacher with settings that are the default ones otherwise.

    python -m benchmarks.digits_fidelity
"""

from __future__ import annotations

import time

import torch

import pyro_opu
from benchmarks.digits import Digits, digits, no_digits
from benchmarks.results import over_seeds, parser, say, write
from benchmarks.speed_models import ALIKE, student_name
from pyro_opu import PredictiveGuide
from pyro_opu.models.neural_network import dropout_network, fit_network

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
    options.add_argument("--loss", help="another than the default")
    args = options.parse_args()
    if args.quick:
        args.seeds = 1
    fidelities, scores = [], []
    for seed in range(args.seeds):
        data = digits(seed)
        torch.manual_seed(seed)
        teacher = fit_network(dropout_network(SIZES), *data.train, epochs=5 if args.quick else 200)
        wide = PredictiveGuide.for_inputs(data.transfer.x, 10, hidden=SIZES[1:-1])
        for end, guide in {"": None, ALIKE: wide}.items():
            fidelity, score = of_student(seed, end, guide, teacher, data, args)
            fidelities.append(fidelity)
            scores += score
            say({"Fidelity": fidelities, "Out of domain": scores})
    means = over_seeds(fidelities, ("student",))
    tables = {
        "Fidelity": [*fidelities, *({**row, "seed": "mean"} for row in means)],
        "Out of domain": scores,
        "Out of domain, mean": over_seeds(scores, ("student", "outside")),
    }
    say(tables)
    if not args.quick:
        asked = f" --loss {args.loss}" if args.loss else ""
        name = "digits_fidelity" + (f"_{args.loss}" if args.loss else "")
        write(name, f"python -m benchmarks.digits_fidelity{asked}", vars(args), tables)


def of_student(seed: int, end: str, guide, teacher, data: Digits, args) -> tuple[dict, list[dict]]:
    """Distill a teacher, judge the student on test rows and on three outside sets."""
    start = time.perf_counter()
    fast = pyro_opu.distill(
        teacher,
        data.transfer.x,
        guide=guide,
        seed=seed,
        progress=False,
        **({"num_steps": 40} if args.quick else {}),
        **({"loss": args.loss} if args.loss else {}),
    )
    named = {"student": student_name(end, fast.guide), "seed": seed}
    seconds = time.perf_counter() - start
    outside = no_digits(data.test.x, seed)
    report = pyro_opu.fidelity(fast, teacher, data.test.x, extra=outside, seed=seed)
    print(report, flush=True)
    row = {
        **named,
        "KL": report.kl,
        "KL attainable": report.kl_attainable,
        "KL / attainable": report.kl_ratio,
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
        "faithful": "yes" if report.faithful else "no",
        "g shifted by": fast.report["recalibration"]["shift"],
        "seconds": seconds,
        "kept": fast.report["kept"],
    }
    found = pyro_opu.detection(fast, teacher, *data.test, outside, seed=seed)
    print(found, flush=True)
    return row, [of_pair(named, name, found) for name in outside]


def of_pair(named: dict, name: str, found) -> dict:
    """AUROC of every measure for the student, and the best of the teacher's."""
    table = found[name]
    student = {m: 100 * table.student[m].auroc for m in EPISTEMIC}
    best_measure, best = found.best("teacher", name)
    trivial = max(100 * score.auroc for score in table.trivial.values())
    return {
        **named,
        "outside": name,
        "teacher's best": 100 * best.auroc,
        "by": best_measure,
        "student's best epistemic": max(student.values()),
        "margin": max(student.values()) - 100 * best.auroc,
        **{f"student {m}": value for m, value in student.items()},
        "trivial": trivial,
    }


if __name__ == "__main__":
    main()
