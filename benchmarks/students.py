"""All students on four teachers: how near, how good out of domain, how dear.

python -m benchmarks.students

Every student has its default settings and the same transfer inputs without labels; prior networks
also get uniform noise as the outside that they need. Energy distances are those of test inputs;
"outside" are AUROCs in per cent of permuted digits or columns, or of inputs in the plane three
times as wide, by the student's entropy and mutual information, and the best of the teacher's
measures.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_opu
from benchmarks.known import CORNER_WEIGHTS, CORNERS, chosen, line
from benchmarks.posteriors import make
from papers.digits import no_digits
from papers.results import Tables, over_seeds, parser, record_seeds
from pyro_opu import rivals


class Case(NamedTuple):
    """A teacher with transfer inputs, inputs to judge by, and inputs from elsewhere."""

    source: Any
    transfer: Tensor
    test: Tensor
    elsewhere: Tensor


def main() -> None:
    args = parser(__doc__, seeds=3).parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds = 1
    record_seeds(__file__, args, of_seed, tables)


def of_seed(seed: int, args) -> Tables:
    """Make and judge all students of all teachers."""
    found: Tables = {}
    for name in ("line",) if args.quick else CASES:
        case = CASES[name](seed)
        for student in QUICK if args.quick else STUDENTS:
            settings = QUICK[student] if args.quick else {}
            found.setdefault(name, []).append(row(seed, student, case, settings))
    return found


def tables(rows: Tables) -> Tables:
    return {name: over_seeds(mine, ("student",)) for name, mine in rows.items()}


def row(seed: int, student: str, case: Case, settings: dict) -> dict:
    """Make one student and judge it."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = STUDENTS[student](case, seed, settings)
    seconds = time.process_time() - start
    report = pyro_opu.fidelity(fast, case.source, case.test, seed=seed)
    outside = pyro_opu.out_of_domain(fast, case.test, case.elsewhere, seed=seed)
    theirs = pyro_opu.out_of_domain(case.source, case.test, case.elsewhere, seed=seed)
    return {
        "student": student,
        "KL": report.kl,
        "KL floor": report.kl_floor,
        "energy distance": report.energy_distance,
        "best Dirichlet": report.energy_distance_best,
        "mutual information error": report.mutual_information_error,
        "outside, entropy": 100 * outside["entropy"].auroc,
        "outside, MI": 100 * outside["mutual_information"].auroc,
        "outside, teacher's best": 100 * max(score.auroc for score in theirs.values()),
        "CPU s": seconds,
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


def on_the_line(noise: Tensor) -> Callable[[Tensor], Tensor]:
    """Draws on the edge between two of three classes."""
    return lambda x: line(x, noise, noise[:, None, :1])


def corners(noise: Tensor) -> Callable[[Tensor], Tensor]:
    """Four groups of hypotheses, each sure of another class but for a region where all agree."""
    chance = torch.distributions.Normal(0.0, 1.0).cdf(noise[:, :1])

    def draws(x: Tensor) -> Tensor:
        each = chosen(x, CORNERS, (x @ CORNER_WEIGHTS).softmax(-1), chance)
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
    "line": lambda seed: plane(on_the_line, seed),
    "four corners": lambda seed: plane(corners, seed),
}


def noise(x: Tensor, seed: int) -> Tensor:
    """Uniform noise in the box of three deviations around the transfer inputs."""
    unit = torch.rand(x.shape, generator=torch.Generator().manual_seed(100 + seed))
    return x.mean(0) + 3 * x.std(0) * (2 * unit - 1)


def made(function: Callable[..., Any], **settings: Any) -> Callable[[Case, int, dict], Any]:
    """What a function makes of a case, with fewer steps where quick."""

    def student(case: Case, seed: int, quick: dict) -> Any:
        changed = {**settings, **quick, "seed": seed, "progress": False}
        return function(case.source, case.transfer, **changed)

    return student


def prior_network(form: str) -> Callable[[Case, int, dict], Any]:
    def student(case: Case, seed: int, quick: dict) -> Any:
        outside = noise(case.transfer, seed)
        return made(rivals.prior_network, outside=outside, form=form)(case, seed, quick)

    return student


STUDENTS: dict[str, Callable[[Case, int, dict], Any]] = {
    "distill": made(pyro_opu.distill),
    "distill, one Dirichlet": made(pyro_opu.distill, guide="dirichlet"),
    "distill, moments": made(pyro_opu.distill, guide="dirichlet", loss="moments"),
    "distill, energy": made(pyro_opu.distill, guide="dirichlet", loss="energy"),
    "distill, mixture": made(pyro_opu.distill, guide="mixture"),
    "distill, logistic-normal": made(pyro_opu.distill, guide="logistic_normal"),
    "endd": made(rivals.endd),
    "proxy_dirichlet": made(rivals.proxy_dirichlet),
    "dark_knowledge": made(rivals.dark_knowledge),
    "dark_knowledge, Dirichlet": made(rivals.dark_knowledge, form="dirichlet"),
    "prior_network, reverse": prior_network("reverse"),
    "prior_network, forward": prior_network("forward"),
    "compact_approx": made(rivals.compact_approx),
    "laplace_bridge (not one pass)": made(rivals.laplace_bridge_predictive),
}
QUICK = {
    "distill": {"num_steps": 5},
    "endd": {"num_steps": 5},
    "compact_approx": {"tries": 200},
}


if __name__ == "__main__":
    main()
