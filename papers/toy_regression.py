"""Figure 2 of Bayesian Dark Knowledge: a cubic with noise by NUTS, SGD, SGLD and distilled SGLD.

python -m papers.toy_regression

Korattikara et al. 2015, section 3.3: 20 points of y = x^3 + noise of deviation 3, a network with 10
ReLU units, and the predictive's mean and 3 deviations (noise included) on [-6, 6]. x and y are
standardised, the prior of all weights is N(0, 1), and the noise is known. SGLD takes all 20 rows in
each of 200,000 steps of 1e-4, of which a tenth is burn-in, and keeps every 100th; SGD is the same
without noise. The online student has 10 ReLU units too (and a second one 50), and learns from every
20th step of another chain at uniform inputs. Step size and rate were chosen on another data set
(seed 101). The last row is `distill` of SGLD's draws. Gaps to NUTS are root mean squares over the
grid, in units of y. The picture is `toy_regression.png`.

Misses. The online students follow their own chain less closely, as in the paper's figure but not by
a number that it gives.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from papers import datasets
from papers.chains import Samples, descended, four_chains, relu_student, sgld
from papers.pictures import cubics
from papers.results import Tables, over_seeds, parser, record_seeds, say
from pyro_opu.guides.normal import GaussianGuide
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.rivals.online import online_dark_knowledge
from pyro_opu.samplers import SGLD
from pyro_opu.teachers import PredictiveTeacher
from pyro_opu.transfer import Box

STEP, RATE, THINNING = 1e-4, 1e-2, 20
HIDDEN = {"10": (10,), "50": (50,)}


def main() -> None:
    options = parser(__doc__, seeds=5)
    options.add_argument("--steps", type=int, default=200_000, help="of SGLD")
    options.add_argument("--nuts", type=int, default=250, help="draws of each of 4 chains")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.steps, args.nuts = 1, 500, 4
    problem = Problem(0)
    data = problem.x, problem.y
    chains, _, row = four_chains(
        problem.model, data, args.nuts, args.nuts // 3, lambda some: problem.draws(some)[..., 0]
    )
    truth, first, second = (
        problem.of_samples({k: torch.cat([c[k] for c in part]) for k in chains[0]})
        for part in (chains, chains[:2], chains[2:])
    )
    say({"NUTS": [row]})

    def of_seed(seed: int, args) -> Tables:
        found, rows = {"NUTS": truth}, []
        for name, answer, seconds in ways(args, problem, seed):
            found[name] = answer
            rows.append({"model": name, **gaps(truth, answer), "CPU s": seconds})
        if seed == 0 and args.write and not args.quick:
            path = Path(__file__).parent / "results" / "toy_regression.png"
            cubics(path, found, problem.raw_grid, problem.points)
        return {"Gaps": rows}

    def tables(rows: Tables) -> Tables:
        halves = {"model": "NUTS, half against half", **gaps(first, second)}
        return {"Gaps to NUTS": [halves, *over_seeds(rows["Gaps"], ("model",))], "NUTS": [row]}

    record_seeds(__file__, args, of_seed, tables)


class Problem:
    """The points, standardised, and the model of them."""

    def __init__(self, seed: int) -> None:
        points = datasets.toy_regression(seed=seed)
        self.points = points
        self.centre, self.spread = points.x.mean(), points.x.std(correction=0)
        self.mean, self.scale = points.y.mean(), points.y.std(correction=0)
        self.x = (points.x - self.centre) / self.spread
        self.y = (points.y - self.mean) / self.scale
        self.raw_grid = torch.linspace(-6, 6, 121)
        self.grid = (self.raw_grid[:, None] - self.centre) / self.spread
        precision = float((self.scale / 3) ** 2)
        self.model = bayesian_network(perceptron((1, 10, 1)), likelihood=regression(precision))

    def answer(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Mean and deviation of y ``(2, N)`` in its units."""
        return torch.stack([self.mean + self.scale * mean, self.scale * variance.sqrt()])

    def draws(self, samples: Samples) -> Tensor:
        """f and the logarithm of the noise on the grid, ``(S, N, 2)``."""
        return PredictiveTeacher(Predictive(self.model, samples)).draws(self.grid)

    def of_samples(self, samples: Samples) -> Tensor:
        """The answer of posterior draws."""
        f, log_noise = self.draws(samples).unbind(-1)
        noise = (2 * log_noise).exp()
        return self.answer(f.mean(0), f.var(0, correction=0) + noise.mean(0))


def gaps(truth: Tensor, answer: Tensor) -> dict[str, float]:
    """Root mean squares over the grid."""
    mean, deviation = (truth - answer).square().mean(1).sqrt().tolist()
    return {"mean, RMS gap": mean, "deviation, RMS gap": deviation}


def ways(args, problem: Problem, seed: int):
    """Name, mean and deviation on the grid, and seconds of processor time of each way."""
    data, burn_in = (problem.x, problem.y), args.steps // 10
    start = time.process_time()
    torch.manual_seed(seed)
    point = descended(problem.model, data, STEP, args.steps // 4)
    yield "SGD", problem.of_samples(point), time.process_time() - start

    start = time.process_time()
    samples = sgld(problem.model, data, STEP, args.steps, burn_in)
    answer = problem.of_samples(samples)
    chain_seconds = time.process_time() - start
    yield "SGLD", answer, chain_seconds

    for name, hidden in HIDDEN.items():
        start = time.process_time()
        fast = online_dark_knowledge(
            SGLD(problem.model, step_size=STEP, thinning=THINNING),
            data,
            problem.grid[[0, -1]],
            form="normal",
            guide=relu_student(GaussianGuide, problem.grid, hidden),
            transfer=Box(expand=0.0),
            num_draws=(args.steps - burn_in) // THINNING,
            warmup_steps=burn_in // THINNING,
            learning_rate=RATE,
            seed=seed,
            progress=False,
        )
        found = fast.normal(problem.grid)
        answer = problem.answer(found.mean, found.variance)
        yield f"distilled, {name} units", answer, time.process_time() - start

    start = time.process_time()
    fast = pyro_opu.distill(
        Predictive(problem.model, samples),
        problem.grid[0] + (problem.grid[-1] - problem.grid[0]) * torch.rand(500, 1),
        transfer=Box(expand=0.0),
        num_steps=5 if args.quick else 3000,
        seed=seed,
        progress=False,
    )
    found = fast.normal(problem.grid)
    seconds = chain_seconds + time.process_time() - start
    yield "distill of SGLD's draws", problem.answer(found.mean, found.variance), seconds


if __name__ == "__main__":
    main()
