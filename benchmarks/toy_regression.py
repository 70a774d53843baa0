"""A cubic with noise, after Figure 2 of Bayesian Dark Knowledge: NUTS, SGD, SGLD, distilled SGLD.

python -m benchmarks.toy_regression

Korattikara et al. 2015, section 3.3: 20 points of y = x^3 + noise of deviation 3, a network with 10
ReLU units, and the predictive's mean and 3 deviations on [-6, 6]. x and y are standardised, the
prior of all weights is N(0, 1), and the noise is known. NUTS has 4 chains. SGLD takes all 20 rows
in each of its steps of 1e-4, of which a tenth is burn-in, and keeps every 100th; SGD is the same
without noise. The student has 10 ReLU units too (and a second one 50), and learns from every 20th
step of another chain at uniform inputs. Step size and rate were chosen on another data set (seed
101). Only the models of the teacher and the students are small; the deviations include the noise.
"""

from __future__ import annotations

import time
import warnings

import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size, gelman_rubin
from torch import Tensor

import pyro_opu
from benchmarks.results import FOLDER, finished, kept, parser, say, spread, write
from benchmarks.toy_regression_picture import draw
from pyro_opu import datasets
from pyro_opu.guides.networks import default_trunk_config
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.regression import GaussianGuide, RegressionTeacher
from pyro_opu.rivals.online import online_dark_knowledge
from pyro_opu.samplers import SGLD
from pyro_opu.transfer import Box

COMMAND = "python -m benchmarks.toy_regression"
STEP, RATE, THINNING = 1e-4, 1e-2, 20
HIDDEN = {"10": (10,), "50": (50,)}
#: What NUTS itself leaves; and the ways of every seed: SGD, SGLD, the students and ``distill``.
HALVES, WAYS = "NUTS, half against half", len(HIDDEN) + 3


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--data-seed", type=int, default=0, help="another one: nothing is written")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--steps", type=int, default=200_000, help="of SGLD")
    options.add_argument("--nuts", type=int, default=250, help="draws of each of 4 chains")
    options.add_argument("--resume", action="store_true", help="keep the seeds that are there")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.steps, args.nuts = 1, 4000, 20
    old = kept("toy_regression") if args.resume and not (args.quick or args.data_seed) else {}
    problem = Problem(args.data_seed)
    truth, halves, found = nuts(problem, args.nuts)
    tables = {"Ground truth, NUTS": found}
    say(tables)
    rows, panels = [{"model": HALVES, "seed": 0, **halves}], {"NUTS": truth}
    whole = finished([r for r in old.get("Seeds", []) if r["model"] != HALVES], WAYS)
    rows += whole
    for seed in sorted(set(range(args.seeds)) - {row["seed"] for row in whole}):
        for name, answer, seconds in methods(args, problem, seed):
            panels.setdefault(name, answer)
            rows.append({"model": name, "seed": seed, **gaps(truth, answer), "s": seconds})
            say({"so far": rows[-1:]})
            tables["Gaps to NUTS on the grid, in units of y"] = summary(rows)
            tables["Seeds"] = rows
            if not args.quick and args.data_seed == 0:
                settings = {
                    "seeds": args.seeds,
                    "steps": args.steps,
                    "draws of NUTS": 4 * args.nuts,
                }
                write("toy_regression", COMMAND, settings, tables)
                if seed == 0:
                    draw(FOLDER / "toy_regression.png", panels, problem)
    say({"Gaps to NUTS on the grid, in units of y": summary(rows)})


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

    def of_samples(self, samples: dict[str, Tensor]) -> Tensor:
        """Of posterior draws."""
        draws = RegressionTeacher(Predictive(self.model, samples)).draws(self.grid)
        f, noise = draws[..., 0], (2 * draws[..., 1]).exp()
        return self.answer(f.mean(0), f.var(0, correction=0) + noise.mean(0))


def gaps(truth: Tensor, answer: Tensor) -> dict[str, float]:
    """Root mean squares over the grid."""
    mean, deviation = (truth - answer).square().mean(1).sqrt().tolist()
    return {"mean": mean, "deviation": deviation}


def nuts(problem: Problem, draws: int) -> tuple[Tensor, dict[str, float], list[dict]]:
    """Mean and deviation on the grid, the gaps between halves, and how well chains agree."""
    warnings.filterwarnings("ignore", "`torch.jit.trace` is deprecated", FutureWarning)
    chains, start, divergences = [], time.process_time(), 0
    for chain in range(4):
        torch.manual_seed(1000 + chain)
        kernel = NUTS(problem.model, jit_compile=True, ignore_jit_warnings=True)
        mcmc = MCMC(kernel, draws, max(10, draws // 3), disable_progbar=True)
        mcmc.run(problem.x, problem.y)
        divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
        chains.append(mcmc.get_samples())
    f = torch.stack(
        [
            RegressionTeacher(Predictive(problem.model, samples)).draws(problem.grid)[..., 0]
            for samples in chains
        ]
    )
    row = {
        "draws": 4 * draws,
        "R-hat of f, largest": float(gelman_rubin(f, 0, 1).max()),
        "ESS of f, smallest": float(effective_sample_size(f, 0, 1).min()),
        "divergences": divergences,
        "s": time.process_time() - start,
    }
    whole, first, second = (
        problem.of_samples({k: torch.cat([c[k] for c in part]) for k in chains[0]})
        for part in (chains, chains[:2], chains[2:])
    )
    return whole, gaps(first, second), [row]


def methods(args, problem: Problem, seed: int):
    """Name, mean and deviation on the grid, and seconds of processor time of each way."""
    data, burn_in = (problem.x, problem.y), args.steps // 10
    start = time.process_time()
    torch.manual_seed(seed)
    descent = SGLD(problem.model, step_size=STEP, temperature=0.0, thinning=args.steps // 4)
    (point,) = descent.stream(*data, num_samples=1)
    answer = problem.of_samples({name: value[None] for name, value in point.items()})
    yield "SGD", answer, time.process_time() - start

    start = time.process_time()
    kernel = SGLD(problem.model, step_size=STEP, thinning=100)
    kept, warm = (args.steps - burn_in) // 100, burn_in // 100
    stored = list(kernel.stream(*data, num_samples=kept, warmup_steps=warm))
    samples = {name: torch.stack([each[name] for each in stored]) for name in stored[0]}
    answer = problem.of_samples(samples)
    chain_seconds = time.process_time() - start
    yield "SGLD", answer, chain_seconds

    ends = problem.grid[[0, -1]]
    for name, hidden in HIDDEN.items():
        start = time.process_time()
        fast = online_dark_knowledge(
            SGLD(problem.model, step_size=STEP, thinning=THINNING),
            data,
            ends,
            form="normal",
            guide=student(problem, hidden),
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
        num_steps=50 if args.quick else 3000,
        seed=seed,
        progress=False,
    )
    found = fast.normal(problem.grid)
    seconds = chain_seconds + time.process_time() - start
    yield "pyro_opu.distill", problem.answer(found.mean, found.variance), seconds


def student(problem: Problem, hidden: tuple[int, ...]) -> GaussianGuide:
    """A ReLU network that sees the inputs in units of the grid."""
    trunk = {**default_trunk_config(problem.grid, hidden), "activation": "relu"}
    guide = GaussianGuide.from_config({"trunk": trunk})
    guide.trunk.fit_scale(problem.grid)
    return guide


def summary(rows: list[dict]) -> list[dict]:
    """Mean ± deviation over seeds."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == name]
        line = {"model": name}
        for key in ("mean", "deviation", "s"):
            values = [row[key] for row in mine if key in row]
            line[key if key == "s" else f"{key}, RMS gap"] = spread(values) if values else ""
        found.append(line)
    return found


if __name__ == "__main__":
    main()
