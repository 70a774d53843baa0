"""One pass against ``Predictive``, the batched teacher and the plug-in network, in one run.

python -m benchmarks.speed
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from benchmarks.results import parser, say, write
from models.logistic_regression import logistic_regression
from pyro_opu import PredictiveGuide
from pyro_opu.networks import Perceptron

SIZES = (784, 400, 400, 10)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--draws", type=int, default=500)
    args = options.parse_args()
    torch.set_num_threads(2)
    draws = 10 if args.quick else args.draws
    rows = [network(rows, draws) for rows in (1, 1000)]
    rows.append(regression(1000, draws))
    tables = {"Time": rows}
    say(tables)
    if not args.quick:
        write("speed", "python -m benchmarks.speed", vars(args), tables)


def bayesian_network(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A 784-400-400-10 classifier with a normal prior on every weight."""
    hidden = x
    for layer, (before, after) in enumerate(zip(SIZES, SIZES[1:], strict=False)):
        weight = pyro.sample(f"w{layer}", dist.Normal(torch.zeros(before, after), 1.0).to_event(2))
        bias = pyro.sample(f"b{layer}", dist.Normal(torch.zeros(after), 1.0).to_event(1))
        hidden = hidden @ weight + bias
        hidden = hidden.relu() if layer < 2 else hidden
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=hidden), obs=y)


def network(rows: int, draws: int) -> dict:
    """The multilayer perceptron: weights as a posterior has them, widths as the paper's."""
    torch.manual_seed(0)
    samples = {}
    for layer, (before, after) in enumerate(zip(SIZES, SIZES[1:], strict=False)):
        samples[f"w{layer}"] = torch.randn(draws, before, after) / before**0.5
        samples[f"b{layer}"] = torch.zeros(draws, after)
    plug_in = nn.Sequential(
        nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)
    )
    plug_in.requires_grad_(False)
    x = torch.randn(rows, 784)
    return compare(
        "MLP 784-400-400-10", Predictive(bayesian_network, samples), plug_in, x, SIZES[1:3]
    )


def regression(rows: int, draws: int) -> dict:
    """Logistic regression of Spambase's size, 57 features and two classes."""
    torch.manual_seed(0)
    samples = {"weight": torch.randn(draws, 57, 1), "bias": torch.randn(draws, 1)}
    plug_in = nn.Linear(57, 2).requires_grad_(False)
    predictive = Predictive(logistic_regression(2), samples)
    return compare(
        "logistic regression, 57 features", predictive, plug_in, torch.randn(rows, 57), None
    )


def compare(
    name: str, predictive: Predictive, plug_in: nn.Module, x: Tensor, hidden: tuple[int, ...] | None
) -> dict:
    """Median times of all ways in turn, and their ratios.

    The student has fresh weights: its time does not depend on what it has learnt.
    """
    teacher = pyro_opu.as_teacher(predictive)
    classes = teacher.probs(x[:1], 2).shape[-1]
    guide = PredictiveGuide.for_inputs(
        x if len(x) > 1 else torch.randn(9, *x.shape[1:]), classes, hidden=hidden
    )
    assert isinstance(guide.trunk, Perceptron)
    sites = pyro_opu.layout.read_layouts(teacher, x, None)
    guide.requires_grad_(False).eval()
    fast = pyro_opu.OnePassPredictive(guide, x.shape[1:], classes, sites, predictive.num_samples)
    quick = {
        "plug-in": lambda: plug_in(x).softmax(-1),
        "one pass": lambda: fast.dirichlet(x).concentration,
        "drop-in call": lambda: fast(x),
    }
    slow = {"Predictive": lambda: predictive(x), "batched teacher": lambda: teacher.probs(x)}
    with torch.no_grad():
        short = timed(quick, 5.0 if len(x) > 1 else 2.0)
        long = timed(slow, 20.0)
    seconds = {**short, **long}
    return {
        "model": name,
        "S": predictive.num_samples,
        "N": len(x),
        **{f"{way}, ms": 1e3 * value for way, value in seconds.items()},
        "one pass / plug-in": seconds["one pass"] / seconds["plug-in"],
        "Predictive / one pass": seconds["Predictive"] / seconds["one pass"],
        "Predictive / drop-in call": seconds["Predictive"] / seconds["drop-in call"],
        "Predictive / batched teacher": seconds["Predictive"] / seconds["batched teacher"],
    }


def timed(ways: dict[str, Callable[[], object]], budget: float) -> dict[str, float]:
    """Median seconds of each, taken in turn for ``budget`` seconds and at least three rounds."""
    for way in ways.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(next(iter(taken.values()))) < 3:
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


if __name__ == "__main__":
    main()
