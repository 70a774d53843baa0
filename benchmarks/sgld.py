"""SGLD on posteriors that are known, what a step costs, and what the preconditioner gains.

python -m benchmarks.sgld
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.results import parser, say, write
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.samplers.sgld import SGLD

DOUBLE = torch.float64
COPIES = 400  # independent chains of one posterior, as columns of one latent


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    tables = {
        "Linear regression, 500 rows": regression(3 if args.quick else 20),
        "Milliseconds per step, network 784-400-400-10, 100 of 50,000 rows, one thread": (
            overhead(3 if args.quick else 100)
        ),
        "Gaussian with deviations 0.1 and 10": preconditioned(100 if args.quick else 2000),
    }
    say(tables)
    if not args.quick:
        write("sgld", "python -m benchmarks.sgld", {"copies": COPIES}, tables)


def linear_regression(x: Tensor, y: Tensor) -> None:
    """A posterior N(m, P^-1) for each column of targets."""
    zeros = torch.zeros(x.shape[1], y.shape[1], dtype=x.dtype)
    weight = pyro.sample("weight", dist.Normal(zeros, 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weight, 0.5).to_event(1), obs=y)


def regression(draws: int) -> list[dict]:
    """Mean, covariance and noise at step sizes eta, eta lambda_max = 1, 0.1 and 0.02."""
    torch.manual_seed(0)
    x = torch.randn(500, 2, dtype=DOUBLE)
    x[:, 1] += 0.5 * x[:, 0]
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(500, 1, dtype=DOUBLE)
    precision = torch.eye(2, dtype=DOUBLE) + 4 * x.mT @ x
    mean = torch.linalg.solve(precision, 4 * x.mT @ y)
    values = torch.linalg.eigvalsh(precision)
    rows = []
    for relative, batch_size in ((1.0, None), (0.1, None), (0.02, None), (0.02, 100)):
        eta = relative / float(values[-1])
        thinning = int(2 / (eta * float(values[0]))) + 1  # correlation between draws about 1 / e
        kernel = SGLD(
            linear_regression,
            step_size=eta,
            batch_size=batch_size,
            thinning=thinning,
            initial_params={"weight": torch.zeros(2, COPIES, dtype=DOUBLE)},
        )
        stream = kernel.stream(x, y.expand(-1, COPIES), num_samples=draws, warmup_steps=6)
        got = torch.stack([draw["weight"] for draw in stream])
        rows.append(
            {
                "eta x largest precision": relative,
                "rows per step": batch_size or 500,
                "draws": draws * COPIES,
                "steps": (6 + draws) * thinning,
                **compared(got, mean, precision, eta, 500 / (batch_size or 500)),
                "increments' variance / eta": increments(eta, x, y, mean, precision),
            }
        )
        say({"regression": rows[-1:]})
    return rows


def compared(got: Tensor, mean: Tensor, precision: Tensor, eta: float, ratio: float) -> dict:
    """Errors of mean and variance, in those of the posterior, the largest over directions.

    The law of the discretised chain is known with all rows; minibatches add about N / M - 1 times
    its excess over the posterior. Monte Carlo counts a draw as (1 - 1/e) / (1 + 1/e) of one.
    """
    values, vectors = torch.linalg.eigh(precision)
    along = torch.einsum("de,sdr->ser", vectors, got - mean) * values.sqrt()[:, None]
    biased = 1 / (1 - eta * values / 4)
    expected = biased + (ratio - 1) * (biased - 1)
    variance = along.square().mean((0, 2))
    count = along[:, 0].numel() * 0.46
    # minibatches are common to all copies, so their part of the mean's error is of draws alone
    shared = (ratio - 1) * (biased - 1) / (0.46 * len(got))
    return {
        "mean, error": float(along.mean((0, 2)).abs().max()),
        "its Monte Carlo deviation": float((biased / count + shared).max().sqrt()),
        "variance / posterior": float(variance[-1]),
        "expected": float(expected[-1]),
        "variance / expected - 1": float((variance / expected - 1).abs().max()),
        "its Monte Carlo deviation ": (2 / count) ** 0.5,
    }


def increments(eta: float, x: Tensor, y: Tensor, mean: Tensor, precision: Tensor) -> str:
    """Of 50 steps with all rows, less the drift; the deviation is that of a chi-square."""
    start = {"weight": mean.expand(-1, COPIES)}
    kernel = SGLD(linear_regression, step_size=eta, initial_params=start)
    z, total = start["weight"], 0.0
    for draw in kernel.stream(x, y.expand(-1, COPIES), num_samples=50):
        new = draw["weight"]
        total += float((new - z - eta / 2 * precision @ (mean - z)).square().mean()) / eta / 50
        z = new
    return f"{total:.4f} ± {(2 / (50 * 2 * COPIES)) ** 0.5:.4f}"


def overhead(rounds: int) -> list[dict]:
    """Ten steps of SGLD and of a loop without Pyro in turn; medians and tenths over rounds."""
    torch.manual_seed(0)
    x, y = torch.rand(50_000, 784), torch.randint(10, (50_000,))
    network = perceptron((784, 400, 400, 10))
    bare = bare_loop(network, x, y)
    ways: dict[str, Callable[[], object]] = {"bare loop": lambda: [next(bare) for _ in range(10)]}
    for name, model in (("bayesian_network", bayesian_network(network)), ("Normal", plain_normal)):
        kernel = SGLD(
            model,
            step_size=1e-9,
            batch_size=100,
            thinning=10,
            initial_params={k: p.detach() for k, p in network.named_parameters()},
        )
        ways[f"SGLD, {name}"] = kernel.stream(x, y).__next__
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            taken[name].append(1e3 / 10 * (time.perf_counter() - start))
    base = statistics.median(taken["bare loop"])
    return [
        {
            "way": name,
            "median": statistics.median(values),
            "fastest tenth": statistics.quantiles(values, n=10)[0],
            "over the bare loop": statistics.median(values) - base,
            "ratio": statistics.median(values) / base,
        }
        for name, values in taken.items()
    ]


def plain_normal(x: Tensor, y: Tensor | None = None) -> Tensor:
    """The network with ``dist.Normal`` priors, as one would write it by hand."""
    for layer, (before, after) in enumerate(((784, 400), (400, 400), (400, 10))):
        weight_prior = dist.Normal(torch.zeros(after, before), 1.0).to_event(2)
        weight = pyro.sample(f"{2 * layer}.weight", weight_prior)
        bias = pyro.sample(f"{2 * layer}.bias", dist.Normal(torch.zeros(after), 1.0).to_event(1))
        x = torch.nn.functional.linear(x, weight, bias)
        x = x.relu() if layer < 2 else x
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=x), obs=y)


def bare_loop(network: torch.nn.Module, x: Tensor, y: Tensor, eta: float = 1e-9) -> Iterator[None]:
    """The same update in torch alone: minibatch, gradient, prior, noise."""
    weights = [p.detach().clone().requires_grad_() for p in network.parameters()]
    noise = [torch.empty_like(p) for p in weights]
    names = [name for name, _ in network.named_parameters()]
    while True:
        for rows in torch.randperm(len(x)).split(100):
            named = dict(zip(names, weights, strict=True))
            logits = torch.func.functional_call(network, named, (x[rows],))
            loss = len(x) / 100 * cross_entropy(logits, y[rows], reduction="sum")
            grads = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for p, grad, z in zip(weights, grads, noise, strict=True):
                    p.add_(grad.add_(p), alpha=-eta / 2)
                    p.add_(z.normal_(), alpha=eta**0.5)
            yield


def preconditioned(steps: int) -> list[dict]:
    """A start five deviations off, and how far off it is after so many steps."""
    scales, copies = torch.tensor([0.1, 10.0], dtype=DOUBLE), 200

    def model(y: Tensor) -> None:
        zeros = torch.zeros(copies, 2, dtype=DOUBLE)
        mean = pyro.sample("mean", dist.Normal(zeros, 100.0).to_event(2))
        with pyro.plate("data", len(y)):
            pyro.sample("obs", dist.Normal(mean, scales).to_event(2), obs=y)

    torch.manual_seed(0)
    y = scales * torch.randn(100, 1, 2, dtype=DOUBLE)
    deviations = scales / 10
    start = {"mean": (y.mean(0) + 5 * deviations).expand(copies, 2)}
    rows = []
    for name, eta in ((None, 1e-4), ("rmsprop", 5e-5)):
        kernel = SGLD(
            model,
            step_size=eta,
            batch_size=50,
            thinning=max(1, steps // 4),
            preconditioner=name,
            initial_params=start,
        )
        for quarter, draw in enumerate(islice(kernel.stream(y), 4)):
            off = (draw["mean"].mean(0) - y.mean((0, 1))) / deviations
            spread = draw["mean"].std(0) / deviations
            rows.append(
                {
                    "preconditioner": name or "none",
                    "steps": (quarter + 1) * kernel.thinning,
                    "steep direction, off (deviations)": float(off[0]),
                    "flat direction, off": float(off[1]),
                    "steep, spread / posterior's": float(spread[0]),
                    "flat, spread": float(spread[1]),
                }
            )
    return rows


if __name__ == "__main__":
    main()
