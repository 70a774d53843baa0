"""How often a verdict is right: students whose distance from their teacher is known.

python -m benchmarks.verdicts    # a quarter of an hour

Teachers draw afresh from known distributions at every input, or hold draws of a linear model, and
a perfect student answers with just that. The others err in one way: the mean as that of so many
draws, the epistemic part at single inputs by a factor whose average is right, or the shape, where
one Dirichlet stands for two groups of draws with their moments. Each run has a posterior of its own
and 200 rows, unless its name says otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_opu
from papers.results import finish, parser
from pyro_opu.distributions import Empirical, PredictiveDirichlet
from pyro_opu.distributions.dirichlet import moment_matched
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.metrics.uncertainty import moment_concentration

#: Columns of the inputs, classes, and rows.
D, C, ROWS = 5, 3, 200
WORDS = {"faithful": True, "not faithful": False, "undecided": None}


class Pair(NamedTuple):
    """A student and its teacher."""

    student: Callable[[Tensor], Any]
    teacher: Callable[..., Any]


class Answers:
    """A student by a function ``x -> distribution``."""

    def __init__(self, distribution: Callable[[Tensor], Any]) -> None:
        self.distribution = distribution


def dirichlets(
    generator: torch.Generator,
    scale: float = 2.0,
    log_concentration: float = 2.0,
    mean_of: float = math.inf,
    factor: float = 1.0,
) -> Pair:
    """A Dirichlet at every input; the student's mean errs as that of ``mean_of`` draws.

    Its epistemic part is off by a factor, up at one half of the inputs and down at the others.
    """
    slope = scale * torch.randn(D, C, generator=generator)

    def truth(x: Tensor) -> PredictiveDirichlet:
        return PredictiveDirichlet((x @ slope).log_softmax(-1), log_concentration + x[:, 0])

    def student(x: Tensor) -> PredictiveDirichlet:
        law = truth(x)
        mean = law.log_mean
        if math.isfinite(mean_of):
            torch.manual_seed(len(x))
            off = law.sample((1000,)).mean(0) - mean.exp()  # as large as of 1,000 draws
            moved = mean.exp() + off * math.sqrt(1000 / mean_of)
            mean = moved.clamp_min(1e-3 * mean.exp()).log().log_softmax(-1)
        up = (x[:, 1] > 0).double().to(x) * 2 - 1
        return PredictiveDirichlet(mean, law.log_concentration - up * math.log(factor))

    return Pair(Answers(student), lambda x, num_draws: truth(x).sample((num_draws,)))


def linear(generator: torch.Generator, held: int | None) -> Pair:
    """Linear classifiers, whose draws are joint over inputs; the student answers with 4,000."""
    center = torch.randn(D, C, generator=generator)

    def draws(count: int, seed: int | None) -> Tensor:
        own = None if seed is None else torch.Generator().manual_seed(seed)
        return center + 0.4 * torch.randn(count, D, C, generator=own)

    seed = int(torch.randint(2**31, (), generator=generator))
    weights = draws(held or 4000, seed)

    def student(x: Tensor) -> Empirical:
        return Empirical((x @ weights).log_softmax(-1))

    if held is not None:
        return Pair(Answers(student), lambda x: (x @ weights).softmax(-1))
    return Pair(Answers(student), lambda x, num_draws: (x @ draws(num_draws, None)).softmax(-1))


def groups(generator: torch.Generator, apart: float = 1.5) -> Pair:
    """Two groups of draws; the student has the Dirichlet of their moments."""
    center = torch.randn(D, C, generator=generator)
    away = apart * torch.tensor([1.0, -1.0, 0.0])

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        side = 2.0 * torch.randint(2, (num_draws, len(x), 1)) - 1
        noise = 0.15 * torch.randn(num_draws, len(x), C)
        return (0.3 * x @ center + side * away + noise).softmax(-1)

    def student(x: Tensor) -> PredictiveDirichlet:
        draws = teacher(x, 4000)
        return moment_matched(draws.mean(0), moment_concentration(draws))

    return Pair(Answers(student), teacher)


def reals(generator: torch.Generator, mean_of: float = math.inf, factor: float = 1.0) -> Pair:
    """A normal mean and known noise."""
    slope = torch.randn(D, generator=generator)

    def student(x: Tensor) -> PredictiveNormal:
        mean, log_epistemic = x @ slope, x[:, 1] - 1
        if math.isfinite(mean_of):
            own = torch.Generator().manual_seed(len(x))
            off = torch.randn(len(x), generator=own) * (log_epistemic / 2).exp()
            mean = mean + off / math.sqrt(mean_of)
        up = (x[:, 0] > 0).to(x) * 2 - 1
        return PredictiveNormal(mean, 0 * mean, log_epistemic + up * math.log(factor))

    def teacher(x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
        deviation = ((x[:, 1] - 1) / 2).exp()
        f = x @ slope + deviation * torch.randn(num_draws, len(x))
        return f, torch.ones_like(f)

    return Pair(Answers(student), teacher)


class Kind(NamedTuple):
    """A kind of student, and how many rows judge it."""

    make: Callable[[torch.Generator], Pair]
    expected: bool | None
    rows: int = ROWS
    options: dict[str, Any] = {}


KINDS: dict[str, Kind] = {
    "perfect, unsure": Kind(lambda g: dirichlets(g, 0.5), True),
    "perfect, mixed": Kind(lambda g: dirichlets(g, 2.0), True),
    "perfect, sure": Kind(lambda g: dirichlets(g, 6.0, 3.0), True),
    "perfect, very sure": Kind(lambda g: dirichlets(g, 8.0, 0.5), True),
    "perfect, mixed, 100 draws judge": Kind(
        lambda g: dirichlets(g, 2.0), True, options={"num_draws": 100}
    ),
    "perfect, joint draws": Kind(lambda g: linear(g, None), True),
    "perfect, 300 held draws": Kind(lambda g: linear(g, 300), True),
    "perfect, 40 held draws": Kind(lambda g: linear(g, 40), True),
    "perfect, real y": Kind(lambda g: reals(g), True),
    "epistemic part off by 1.5 at single inputs": Kind(
        lambda g: dirichlets(g, 2.0, factor=1.5), False
    ),
    "one Dirichlet for two groups": Kind(lambda g: groups(g), False),
    "mean as near as 30 draws": Kind(lambda g: dirichlets(g, 2.0, mean_of=30.0), False),
    "real y, epistemic part off by 1.5": Kind(lambda g: reals(g, factor=1.5), False),
    "real y, mean as near as 30 draws": Kind(lambda g: reals(g, mean_of=30.0), False),
    "perfect, 8 rows": Kind(lambda g: dirichlets(g, 2.0), None, 8),
    "mean as near as 30 draws, 8 rows": Kind(lambda g: dirichlets(g, 2.0, mean_of=30.0), None, 8),
}


def judged(name: str, seed: int) -> pyro_opu.FidelityReport:
    """The report on one student of a kind."""
    kind, generator = KINDS[name], torch.Generator().manual_seed(seed)
    pair = kind.make(generator)
    x = torch.randn(kind.rows, D, generator=generator)
    options = {"wasserstein_inputs": 0, "seed": seed, **kind.options}
    return pyro_opu.fidelity(pair.student, pair.teacher, x, **options)


def counts(name: str, runs: int) -> Counter[bool | None]:
    """Verdicts of so many students of a kind."""
    return Counter(judged(name, seed).faithful for seed in range(runs))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=100)
    args = options.parse_args()
    if args.quick:
        args.runs = 1
    torch.set_num_threads(1)
    rows = []
    for name in list(KINDS)[: 2 if args.quick else None]:
        found = counts(name, args.runs)
        rows.append({"student": name, **{word: found[value] for word, value in WORDS.items()}})
        print(rows[-1], flush=True)
    finish(__file__, args, {"Verdicts": rows})


if __name__ == "__main__":
    main()
