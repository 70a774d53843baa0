"""All students on four teachers: how near, how good out of domain, how dear.

python -m benchmarks.students

Every student has its default settings and the same transfer inputs without labels; prior networks
also get uniform noise as the outside that they need. Rows are written as they come;
``--resume`` keeps those of the results file.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_opu
from benchmarks.digits import no_digits
from benchmarks.known_answers import on_the_line
from benchmarks.posteriors import make
from benchmarks.results import kept, parser, say, spread, write
from benchmarks.richer_guides import COMMON, CORNER_WEIGHTS, CORNERS
from pyro_opu import rivals


class Case(NamedTuple):
    """A teacher with transfer inputs, inputs to judge by, and inputs from elsewhere."""

    source: Any
    transfer: Tensor
    test: Tensor
    elsewhere: Tensor


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--students", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    options.add_argument("--resume", action="store_true", help="keep the rows that are there")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.cases = [0], ["line"]
        args.students = ["distill", "compact_approx", "dark_knowledge", "endd"]
    rows = kept_rows(args)
    for seed in args.seeds:
        for name in args.cases:
            missing = [s for s in args.students if (seed, name, s) not in rows]
            if not missing:
                continue
            case = CASES[name](seed)
            for student in missing:
                rows[seed, name, student] = row(seed, name, student, case, args.quick)
                say({name: [rows[seed, name, student]]})
                if not args.quick:
                    record(rows)


def kept_rows(args) -> dict[tuple[int, str, str], dict]:
    rows = kept("students").get("All runs", []) if args.resume else []
    return {(row["seed"], row["teacher"], row["student"]): row for row in rows}


def record(rows: dict[tuple[int, str, str], dict]) -> None:
    """Write all runs, and for every teacher the mean over seeds beside the nearest student."""
    tables: dict[str, list[dict]] = {}
    for name in CASES:
        means = []
        for student in STUDENTS:
            runs = [r for (_, case, who), r in rows.items() if (case, who) == (name, student)]
            if runs:
                means.append({"student": student, "seeds": len(runs), **over_seeds(runs)})
        if means:
            tables[name] = means
    tables["All runs"] = list(rows.values())
    write("students", "python -m benchmarks.students", {"draws": 500}, tables)


def over_seeds(runs: list[dict]) -> dict[str, Any]:
    numbers = [key for key, value in runs[0].items() if isinstance(value, float)]
    return {key: spread([run[key] for run in runs]) for key in numbers}


def row(seed: int, name: str, student: str, case: Case, quick: bool) -> dict:
    """Make one student and judge it."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = STUDENTS[student](case, seed, QUICK.get(student, {}) if quick else {})
    seconds = time.process_time() - start
    report = pyro_opu.fidelity(fast, case.source, case.test, seed=seed)
    outside = pyro_opu.out_of_domain(fast, case.test, case.elsewhere, seed=seed)
    theirs = pyro_opu.out_of_domain(case.source, case.test, case.elsewhere, seed=seed)
    return {
        "seed": seed,
        "teacher": name,
        "student": student,
        "KL": report.kl,
        "KL floor": report.kl_floor,
        "energy distance": report.energy_distance,
        "best Dirichlet": report.energy_distance_best,
        "W1 excess": report.wasserstein - report.wasserstein_floor,
        "mutual information error": report.mutual_information_error,
        **{
            f"outside, {measure}": 100 * outside[measure].auroc
            for measure in ("entropy", "mutual_information")
        },
        "outside, teacher's best": 100 * max(score.auroc for score in theirs.values()),
        "training, CPU s": seconds,
    }


def digits_dropout(seed: int) -> Case:
    posterior = make("digits-dropout", seed)
    data = posterior.data
    permuted = no_digits(data.test, seed)["permuted digits"]
    return Case(posterior.source, data.transfer, data.test, permuted)


def pima_polya_gamma(seed: int) -> Case:
    posterior = make("pima-polya-gamma", seed)
    test = posterior.data.test
    order = torch.randperm(test.shape[1], generator=torch.Generator().manual_seed(seed))
    return Case(posterior.source, posterior.data.transfer, test, test[:, order])


def line(noise: Tensor) -> Callable[[Tensor], Tensor]:
    """Draws on the edge between two of three classes."""
    return lambda x: on_the_line(x, noise[:, :1])


def corners(noise: Tensor) -> Callable[[Tensor], Tensor]:
    """Four groups of hypotheses, each sure of another class but for a region where all agree."""
    chance = torch.distributions.Normal(0.0, 1.0).cdf(noise[:, :1, None])

    def draws(x: Tensor) -> Tensor:
        shares = (x @ CORNER_WEIGHTS).softmax(-1).cumsum(-1)
        chosen = (chance > shares[:, :-1]).sum(-1)
        apart = torch.sigmoid(3 * ((x - 1).norm(dim=-1) - 1))[:, None, None]
        each = torch.lerp(COMMON, CORNERS, apart)[torch.arange(len(x)), chosen]
        return (each.log() + 0.4 * noise[:, None, 1:]).softmax(-1)

    return draws


def plane(posterior: Callable[[Tensor], Callable[..., Tensor]], seed: int) -> Case:
    """Standard normal inputs in the plane; those from elsewhere are three times as wide.

    The posterior is 400 draws that are held, each five normal numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    source = posterior(torch.randn(400, 5, generator=generator))
    transfer, test, wide = (torch.randn(n, 2, generator=generator) for n in (1000, 500, 500))
    return Case(source, transfer, test, 3 * wide)


CASES: dict[str, Callable[[int], Case]] = {
    "digits, MC dropout": digits_dropout,
    "Pima, Polya-Gamma": pima_polya_gamma,
    "line": lambda seed: plane(line, seed),
    "four corners": lambda seed: plane(corners, seed),
}


def noise(x: Tensor, seed: int) -> Tensor:
    """Uniform noise in the box of three deviations around the transfer inputs."""
    unit = torch.rand(x.shape, generator=torch.Generator().manual_seed(100 + seed))
    return x.mean(0) + 3 * x.std(0) * (2 * unit - 1)


def distilled(**settings: Any) -> Callable[[Case, int, dict], Any]:
    def student(case: Case, seed: int, quick: dict) -> Any:
        settings_now = {**settings, **quick}
        return pyro_opu.distill(
            case.source, case.transfer, seed=seed, progress=False, **settings_now
        )

    return student


def rival(function: Callable[..., Any], **settings: Any) -> Callable[[Case, int, dict], Any]:
    def student(case: Case, seed: int, quick: dict) -> Any:
        settings_now = {**settings, **quick}
        return function(case.source, case.transfer, seed=seed, progress=False, **settings_now)

    return student


def prior_network(form: str) -> Callable[[Case, int, dict], Any]:
    def student(case: Case, seed: int, quick: dict) -> Any:
        outside = noise(case.transfer, seed)
        made = rival(rivals.prior_network, outside=outside, form=form)
        return made(case, seed, quick)

    return student


STUDENTS: dict[str, Callable[[Case, int, dict], Any]] = {
    "distill": distilled(),
    "distill, one Dirichlet": distilled(guide="dirichlet"),
    "distill, moments": distilled(guide="dirichlet", loss="moments"),
    "distill, energy": distilled(guide="dirichlet", loss="energy"),
    "distill, mixture": distilled(guide="mixture"),
    "distill, logistic-normal": distilled(guide="logistic_normal"),
    "endd": rival(rivals.endd),
    "proxy_dirichlet": rival(rivals.proxy_dirichlet),
    "dark_knowledge": rival(rivals.dark_knowledge),
    "dark_knowledge, Dirichlet": rival(rivals.dark_knowledge, form="dirichlet"),
    "prior_network, reverse": prior_network("reverse"),
    "prior_network, forward": prior_network("forward"),
    "compact_approx": rival(rivals.compact_approx),
    "laplace_bridge (not one pass)": rival(rivals.laplace_bridge_predictive),
}
QUICK = {
    "distill": {"num_steps": 40},
    "dark_knowledge": {"num_steps": 40},
    "endd": {"num_steps": 40},
    "compact_approx": {"tries": 200},
}


if __name__ == "__main__":
    main()
