"""``batched(predictive)`` against ``Predictive``: seconds of a call, and that both give the same.

python -m benchmarks.batched

All in one process and one thread, the ways of a row in turn: medians, and as spread the distance
between the quartiles. The rows of the inputs are those of the data's test set, or one of them; S
is 500. Weights are random, of a size at which activations neither die nor explode: the time of a
call does not depend on what they were inferred from.

"Largest difference" is that of the class probabilities, a deterministic site added to the model,
between both under the same posterior draws. A guide draws afresh, so there it is that under draws
held.

The first call compares with the loop and measures what a draw takes; that of the first row also
loads torch's vmap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import torch
from pyro.infer import Predictive
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import pyro_opu
from benchmarks.posteriors import SIZES, Data, PatchTransformer, as_images, images, table
from benchmarks.results import parser, say, write
from benchmarks.speed_models import weights, with_probs
from benchmarks.timing import spans
from pyro_opu.models.dropout import DropoutGuide
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import (
    bayesian_network,
    convolutional_network,
    dropout_network,
    perceptron,
)
from pyro_opu.models.variational import mean_field

COMMAND = "python -m benchmarks.batched"
S, SECONDS = 500, 12.0
#: How many times as fast as ``Predictive`` a posterior has to be.
LEAST = {
    "logistic regression, two classes": 20.0,
    "logistic regression, ten classes": 20.0,
    "network": 1.0,
}


class Case(NamedTuple):
    """A posterior: of a kind, on which inputs, by held draws or by a guide."""

    kind: str
    x: Tensor
    model: Callable[..., Any]
    samples: dict[str, Tensor] | None = None
    guide: Callable[..., Any] | None = None

    def predictive(self, draws: int) -> Predictive:
        if self.samples is None:
            options: Any = {"guide": self.guide, "num_samples": draws, "return_sites": ("obs",)}
            return Predictive(self.model, **options)
        return Predictive(self.model, {k: value[:draws] for k, value in self.samples.items()})


def regression(x: Tensor, classes: int = 2) -> Case:
    outputs, kind = (1, "two") if classes == 2 else (classes, "ten")
    shapes = {"weight": (S, x.shape[1], outputs), "bias": (S, outputs)}
    samples = {name: weights(shape, x.device) for name, shape in shapes.items()}
    kind = f"logistic regression, {kind} classes"
    return Case(kind, x, logistic_regression(classes), samples)


def breast_cancer() -> Tensor:
    x = torch.tensor(load_breast_cancer().data, dtype=torch.float32)
    return ((x - x.mean(0)) / x.std(0))[450:]


def dropout() -> Case:
    network = dropout_network(SIZES)
    model = bayesian_network(network)
    return Case("network", images().test, model, guide=DropoutGuide(network, "batched"))


def held(make: Callable[[], nn.Module], x: Tensor) -> Case:
    """A network with the weights of as many fresh ones."""
    draws = [dict(make().named_parameters()) for _ in range(S)]
    samples = {name: torch.stack([d[name].detach() for d in draws]) for name in draws[0]}
    return Case("network", x, bayesian_network(make()), samples)


def sgld() -> Case:
    return held(lambda: perceptron(SIZES), images().test)


def convolutions() -> Case:
    x = images().test.unflatten(1, (8, 8))
    return held(lambda: convolutional_network((8, 8), 10), x)


def variational(network: nn.Module, data: Data) -> Case:
    model = bayesian_network(network, prior=0.3)
    guide = mean_field(model, network)
    guide(data.x, data.y)  # at its first call it sees which sites are observed
    return Case("network", data.test, model, guide=guide)


CASES: dict[str, Callable[[], Case]] = {
    "logistic regression, Pima": lambda: regression(table("pima").test),
    "logistic regression, Spambase": lambda: regression(table("spambase").test),
    "logistic regression, breast cancer": lambda: regression(breast_cancer()),
    "logistic regression, digits": lambda: regression(images().test, 10),
    "network 64-128-128-10, SGLD, digits": sgld,
    "two convolutions, SGLD, digits": convolutions,
    "network 64-128-128-10, MC dropout, digits": dropout,
    "network 64-128-128-10, mean field, digits": lambda: variational(perceptron(SIZES), images()),
    "two convolutions, mean field, digits": lambda: variational(
        convolutional_network((8, 8), 10), as_images(images())
    ),
    "transformer on patches, mean field, digits": lambda: variational(
        PatchTransformer(), as_images(images())
    ),
}


def measured(name: str, case: Case, rows: int, draws: int, seconds: float) -> dict[str, Any]:
    """A row of the table."""
    x = case.x[:rows]
    loop = case.predictive(draws)
    exact = pyro_opu.batched(loop)
    start = time.perf_counter()
    exact(x)
    first = time.perf_counter() - start
    took = spans({"loop": lambda: loop(x), "exact": lambda: exact(x)}, seconds, warm=True)
    return {
        "posterior": name,
        "kind": case.kind,
        "N": rows,
        "Predictive, ms": 1e3 * took["loop"].median,
        "batched, ms": 1e3 * took["exact"].median,
        "Predictive / batched": took["loop"].median / took["exact"].median,
        "first call, ms": 1e3 * first,
        "IQR of Predictive, ms": 1e3 * took["loop"].iqr,
        "IQR of batched, ms": 1e3 * took["exact"].iqr,
        "runs": took["loop"].runs,
        "largest difference": difference(case, x, draws),
    }


def difference(case: Case, x: Tensor, draws: int) -> float:
    """Between the class probabilities that ``Predictive`` and ``batched`` give for held draws."""
    samples = case.samples
    if samples is None:
        samples = Predictive(case.guide, num_samples=draws, return_sites=None)(x)
    held = {name: value[:draws] for name, value in samples.items()}
    told = Predictive(with_probs(case.model), held, return_sites=("probs",))
    return float((told(x)["probs"] - pyro_opu.batched(told)(x)["probs"]).abs().max())


def bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The least ratio of every kind of posterior, beside what is demanded of it."""
    found = []
    for kind, least in LEAST.items():
        ratio = min(row["Predictive / batched"] for row in rows if row["kind"] == kind)
        met = "yes" if ratio >= least else "no"
        found.append({"bar": kind, "demanded": f">= {least:g}", "measured": ratio, "met": met})
    return found


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    draws, seconds = (20, 0.05) if args.quick else (S, SECONDS)
    rows = []
    for name, make in CASES.items():
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        case = make()
        for count in (1, len(case.x)):
            rows.append(measured(name, case, count, draws, seconds))
            say({"": rows[-1:]})
    tables = {"Calls": rows, "Bars": bars(rows)}
    say(tables)
    if not args.quick:
        write("batched", COMMAND, {"S": draws, "seconds of a row": seconds}, tables)


if __name__ == "__main__":
    main()
