"""Bayesian Dark Knowledge on its toy problem in the plane, and the memory of its online loop.

python -m benchmarks.dark_knowledge

Korattikara et al. 2015, section 3.1, Table 2 and Figure 1: a 2-10-2 network on 20 points, and
KL(NUTS || other) of the class probabilities averaged over a grid on [-10, 10]^2. The paper does not
give its data, its prior, nor its step sizes. Here the prior of all weights is N(0, 1). SGLD takes
100,000 steps of 0.02 with all 20 rows, of which 2,000 are burn-in, and keeps every 100th. A student
learns from every 10th step of such a chain at 100 uniform inputs, by plain gradient steps whose
rate falls from 0.3 along a cosine; it has no prior. Step size, rate and the 10 were chosen on
another data set (seed 101), among 0.003 to 0.03, 0.1 and 0.3 (Adam: 0.003 and 0.01), and 5 to 20.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings

import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size, gelman_rubin
from torch import Tensor

import pyro_opu
from benchmarks.dark_knowledge_picture import draw
from benchmarks.results import FOLDER, finished, kept, parser, say, spread, write
from pyro_opu import datasets
from pyro_opu.guides import PointGuide
from pyro_opu.guides.networks import default_trunk_config
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.rivals.online import online_dark_knowledge
from pyro_opu.samplers import SGLD
from pyro_opu.transfer import Box, HeldOut

COMMAND = "python -m benchmarks.dark_knowledge"
MODEL = bayesian_network(perceptron((2, 10, 2)))
STEP, RATE, THINNING = 0.02, 0.3, 10
SIZES = {"2-10-2": (10,), "2-100-2": (100,), "2-10-10-2": (10, 10)}
PAPER = {
    "SGD": 0.246,
    "SGLD": 0.007,
    "distilled 2-10-2": 0.031,
    "distilled 2-100-2": 0.014,
    "distilled 2-10-10-2": 0.009,
}
#: What NUTS itself leaves; and the ways of every seed, those of the paper and ``distill``.
HALVES, WAYS = "NUTS, one half against the other", len(PAPER) + 1


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--data-seed", type=int, default=0, help="another one: nothing is written")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--steps", type=int, default=100_000, help="of SGLD")
    options.add_argument("--nuts", type=int, default=2500, help="draws of each of 4 chains")
    options.add_argument("--resume", action="store_true", help="keep the seeds that are there")
    options.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.memory_of:
        return one_memory(*args.memory_of.split(","))
    if args.quick:
        args.seeds, args.steps, args.nuts = 1, 4000, 20
    old = kept("dark_knowledge") if args.resume and not (args.quick or args.data_seed) else {}
    title = "Peak memory, network 64-100-10"
    tables = {title: old[title] if old else memory(args.quick)}
    say(tables)
    toy(args, tables, old.get("Seeds", []))


def toy(args, tables: dict[str, list[dict]], old: list[dict]) -> None:
    """The table of KLs; it is written after every row, the picture with the first seed."""
    train = datasets.toy_classification(args.data_seed)
    axis = torch.linspace(-10, 10, 41)
    grid = torch.cartesian_prod(axis, axis)
    truth, chains, tables["Ground truth, NUTS"] = nuts(train, grid, args.nuts)
    say(tables)
    rows, panels = [{"model": HALVES, "seed": 0, "KL": chains}], {"NUTS": truth}
    whole = finished([row for row in old if row["model"] != HALVES], WAYS)
    rows += whole
    for seed in sorted(set(range(args.seeds)) - {row["seed"] for row in whole}):
        for name, probs, seconds in methods(args, train, grid, seed):
            panels.setdefault(name, probs)
            rows.append({"model": name, "seed": seed, "KL": kl(truth, probs), "s": seconds})
            say({"so far": rows[-1:]})
            tables["KL(NUTS || model), mean over the grid"] = summary(rows)
            tables["Seeds"] = rows
            if not args.quick and args.data_seed == 0:
                settings = {
                    "seeds": args.seeds,
                    "steps": args.steps,
                    "draws of NUTS": 4 * args.nuts,
                }
                write("dark_knowledge", COMMAND, settings, tables)
                if seed == 0:
                    draw(FOLDER / "dark_knowledge.png", panels, axis, train)
    say({"KL(NUTS || model), mean over the grid": summary(rows)})


def kl(p: Tensor, q: Tensor) -> float:
    """Of two tables of P(y = 1) at the grid, in nats, a mean over the grid."""
    p, q = (torch.stack([1 - each.double(), each.double()]).clamp_min(1e-30) for each in (p, q))
    return float((p * (p / q).log()).sum(0).mean())


def nuts(train, grid: Tensor, draws: int) -> tuple[Tensor, float, list[dict]]:
    """P(y = 1) at the grid, the KL between halves, and how well four chains agree."""
    warnings.filterwarnings("ignore", "`torch.jit.trace` is deprecated", FutureWarning)
    chains, start, divergences = [], time.process_time(), 0
    for chain in range(4):
        torch.manual_seed(1000 + chain)
        kernel = NUTS(MODEL, jit_compile=True, ignore_jit_warnings=True)
        mcmc = MCMC(kernel, draws, max(10, draws // 8), disable_progbar=True)
        mcmc.run(train.x, train.y)
        divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
        chains.append(at_grid(mcmc.get_samples(), grid))
    probs = torch.stack(chains)
    row = {
        "draws": 4 * draws,
        "R-hat of the probabilities, largest": float(gelman_rubin(probs, 0, 1).max()),
        "ESS of the probabilities, smallest": float(effective_sample_size(probs, 0, 1).min()),
        "divergences": divergences,
        "s": time.process_time() - start,
    }
    halves = kl(probs[:2].mean((0, 1)), probs[2:].mean((0, 1)))
    return probs.mean((0, 1)), halves, [row]


def at_grid(samples: dict[str, Tensor], grid: Tensor) -> Tensor:
    """P(y = 1) of every draw, ``(S, N)``."""
    return pyro_opu.as_teacher(Predictive(MODEL, samples)).probs(grid)[..., 1]


def methods(args, train, grid: Tensor, seed: int):
    """Name, P(y = 1) at the grid, and seconds of processor time of each way."""
    data, burn_in = (train.x, train.y), args.steps // 50
    start = time.process_time()
    torch.manual_seed(seed)
    descent = SGLD(MODEL, step_size=STEP, temperature=0.0, thinning=args.steps // 10)
    (point,) = descent.stream(*data, num_samples=1)
    probs = at_grid({name: value[None] for name, value in point.items()}, grid)
    yield "SGD", probs[0], time.process_time() - start

    start = time.process_time()
    kernel = SGLD(MODEL, step_size=STEP, thinning=100)
    kept, warm = (args.steps - burn_in) // 100, burn_in // 100
    stored = list(kernel.stream(*data, num_samples=kept, warmup_steps=warm))
    samples = {name: torch.stack([each[name] for each in stored]) for name in stored[0]}
    probs = at_grid(samples, grid).mean(0)
    chain_seconds = time.process_time() - start
    yield "SGLD", probs, chain_seconds

    x = 20 * torch.rand(1000, 2) - 10
    for name, hidden in SIZES.items():
        start = time.process_time()
        fast = online_dark_knowledge(
            SGLD(MODEL, step_size=STEP, thinning=THINNING),
            data,
            x,
            guide=student(x, hidden),
            transfer=Box(expand=0.0),
            num_draws=(args.steps - burn_in) // THINNING,
            warmup_steps=burn_in // THINNING,
            learning_rate=RATE,
            optimizer=torch.optim.SGD,
            seed=seed,
            progress=False,
        )
        probs = fast.distribution(grid).mean[:, 1]
        yield f"distilled {name}", probs, time.process_time() - start

    start = time.process_time()
    fast = pyro_opu.distill(
        Predictive(MODEL, samples),
        x,
        transfer=Box(expand=0.0),
        num_steps=50 if args.quick else 3000,
        seed=seed,
        progress=False,
    )
    seconds = chain_seconds + time.process_time() - start
    yield "pyro_opu.distill of these draws of SGLD", fast.dirichlet(grid).mean[:, 1], seconds


def student(x: Tensor, hidden: tuple[int, ...]) -> PointGuide:
    """A ReLU network that sees the inputs in units of the box."""
    trunk = {**default_trunk_config(x, hidden), "activation": "relu"}
    guide = PointGuide.from_config({"trunk": trunk, "num_classes": 2})
    guide.trunk.fit_scale(x)
    return guide


def summary(rows: list[dict]) -> list[dict]:
    """Mean ± deviation over seeds, beside the paper's."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == name]
        line = {"model": name, "KL": spread([row["KL"] for row in mine])}
        timed = [row["s"] for row in mine if "s" in row]
        line |= {"paper": PAPER.get(name, ""), "s": spread(timed) if timed else ""}
        found.append(line)
    return found


def memory(quick: bool) -> list[dict]:
    """Peak memory of a process that distils online, and of one that stores its draws."""
    few = 20 if quick else 400
    rows = []
    for way in ("online", "stored"):
        peaks = []
        for draws in (few, 10 * few):
            command = [sys.executable, "-m", "benchmarks.dark_knowledge"]
            run = subprocess.run(
                [*command, "--memory-of", f"{way},{draws}"],
                capture_output=True,
                text=True,
                check=True,
            )
            peaks.append(float(run.stdout.split()[-1]))
        row = {"way": way, f"MB at {few} draws": peaks[0], f"MB at {10 * few} draws": peaks[1]}
        rows.append({**row, "ratio": peaks[1] / peaks[0]})
    return rows


def one_memory(way: str, draws: str) -> None:
    """In a process of its own: distil so many draws, and print the peak."""
    torch.manual_seed(0)
    x, y = torch.randn(1000, 64), torch.randint(10, (1000,))
    kernel = SGLD(bayesian_network(perceptron((64, 100, 10))), step_size=1e-4, batch_size=100)
    if way == "stored":
        held = list(kernel.stream(x, y, num_samples=int(draws)))
        assert len(held) == int(draws)
    else:
        online_dark_knowledge(
            kernel, (x, y), x, transfer=HeldOut(), num_draws=int(draws), warmup_steps=0,
            learning_rate=1e-3, seed=0, progress=False,
        )  # fmt: skip
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
