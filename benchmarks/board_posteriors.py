"""The scoreboard's ten posteriors: how each is made, once, and what ``distill`` is given of it.

    python -m benchmarks.board_posteriors [names]      # makes draws again; bands go with them

Draws and weights are small files in ``benchmarks/draws``, named by their own hash, so that every
machine measures students of the very same posterior.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, Predictive
from safetensors.torch import load, save
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import Tensor, nn

from benchmarks.posteriors import Data, as_images, components, images, table
from pyro_opu import PolyaGammaGibbs
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network, perceptron
from pyro_opu.models.sgpmc import sgpmc

FOLDER = Path(__file__).parent / "draws"
#: Draws of a chain, and networks of the ensemble.
DRAWS, MEMBERS = 500, 20
SIZES = (64, 128, 128, 10)
Values = dict[str, Tensor]


class Kept(NamedTuple):
    """A posterior of the scoreboard.

    Attributes:
        what: Model, inference and data, in words.
        rows: Its data.
        make: Data -> draws or weights, slowly.
        source: Data, draws -> what ``distill`` takes.
        options: Of ``distill``, beside its defaults.
    """

    what: str
    rows: Callable[[], Data]
    make: Callable[[Data], Values]
    source: Callable[[Data, Values], Any]
    options: dict[str, Any]


class Task(NamedTuple):
    """What ``distill`` is given, and the inputs that its student is judged at."""

    what: str
    source: Any
    transfer: Tensor
    test: Tensor
    options: dict[str, Any]


def standardized(x: Any, y: Any, sizes: tuple[int, int]) -> Data:
    """A table in random order: so many rows to infer from, to transfer, and the rest to judge."""
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in (x, y))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, transfer, test = order.tensor_split([sizes[0], sum(sizes)])
    x = (x - x[train].mean(0)) / x[train].std(0)
    return Data(x[train], y[train], x[transfer], x[test])


def cancer() -> Data:
    return standardized(*load_breast_cancer(return_X_y=True), (250, 200))


def diabetes() -> Data:
    x, y = load_diabetes(return_X_y=True)
    return standardized(x, (y - y.mean()) / y.std(), (200, 120))


def counted() -> Data:
    """Counts from 4 features, by a model that is known."""
    x = torch.randn(900, 4, generator=torch.Generator().manual_seed(0))
    y = torch.poisson(log_rate(x), generator=torch.Generator().manual_seed(1))
    return Data(x[:200], y[:200], x[200:500], x[500:])


def log_rate(x: Tensor) -> Tensor:
    return (0.5 + x @ torch.tensor([0.6, -0.4, 0.2, 0.0])).exp()


def linear(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Normal regression with an unknown scale."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Normal(x @ weight + bias, scale), obs=y)


def poisson(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Counts whose log rate is linear."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Poisson((x @ weight + bias).exp()), obs=y)


def nuts(model: Callable[..., Any]) -> Callable[[Data], Values]:
    def make(rows: Data) -> Values:
        kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True, max_tree_depth=7)
        run = MCMC(kernel, DRAWS, 300, disable_progbar=True)
        run.run(rows.x, rows.y)
        return run.get_samples()

    return make


def polya_gamma(rows: Data) -> Values:
    run = MCMC(PolyaGammaGibbs(logistic_regression(2)), 10 * DRAWS, 200, disable_progbar=True)
    run.run(rows.x, rows.y)
    return {name: value[::10] for name, value in run.get_samples().items()}


def process(rows: Data) -> Callable[..., Any]:
    return gaussian_process(inducing_points(rows.x), 2, joint_rows=0)


def process_draws(rows: Data) -> Values:
    return sgpmc(process(rows), rows.x, rows.y, num_samples=DRAWS // 2, num_chains=2).samples


def small_network() -> nn.Module:
    return perceptron((64, 32, 10))


def convolutions() -> nn.Module:
    """Two convolutions of an 8 x 8 image, and dropout before the head."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def fitted(build: Callable[[], nn.Module]) -> Callable[[Data], Values]:
    return lambda rows: fit_network(build(), rows.x, rows.y).state_dict()


def network(build: Callable[[], nn.Module]) -> Callable[[Data, Values], nn.Module]:
    def source(rows: Data, values: Values) -> nn.Module:
        made = build()
        made.load_state_dict(values)
        return made.eval()

    return source


def members(rows: Data) -> Values:
    """Networks from unlike starts, each on its bootstrap of the rows."""
    found = []
    for _ in range(MEMBERS):
        some = torch.randint(len(rows.x), (len(rows.x),))
        found.append(fit_network(small_network(), rows.x[some], rows.y[some]).state_dict())
    return {name: torch.stack([each[name] for each in found]) for name in found[0]}


def ensemble(rows: Data, values: Values) -> list[nn.Module]:
    each = [{name: value[k] for name, value in values.items()} for k in range(MEMBERS)]
    return [network(small_network)(rows, state) for state in each]


def draws_of(model: Callable[..., Any]) -> Callable[[Data, Values], Predictive]:
    return lambda rows, values: Predictive(model, values)


POSTERIORS: dict[str, Kept] = {
    "cancer": Kept(
        "logistic regression, NUTS, breast cancer",
        cancer, nuts(logistic_regression(2)), draws_of(logistic_regression(2)), {},
    ),
    "digits": Kept(
        "logistic regression of 10 classes, NUTS, digits",
        components, nuts(logistic_regression(10)), draws_of(logistic_regression(10)), {},
    ),
    "dropout": Kept(
        "network 64-128-128-10, MC dropout, digits",
        images, fitted(lambda: dropout_network(SIZES)), network(lambda: dropout_network(SIZES)), {},
    ),
    "ensemble": Kept("20 networks 64-32-10, digits", images, members, ensemble, {}),
    "convolution": Kept(
        "two convolutions, dropout before the head, digits",
        lambda: as_images(images()), fitted(convolutions), network(convolutions), {},
    ),
    "spambase": Kept(
        "logistic regression, Polya-Gamma, Spambase",
        lambda: table("spambase"), polya_gamma, draws_of(logistic_regression(2)), {},
    ),
    "process": Kept(
        "sparse Gaussian process, MCMC, Pima",
        lambda: table("pima"), process_draws,
        lambda rows, values: Predictive(process(rows), values), {},
    ),
    "normal": Kept(
        "normal regression, NUTS, diabetes", diabetes, nuts(linear), draws_of(linear), {}
    ),
    "counts": Kept(
        "Poisson regression, NUTS, made counts", counted, nuts(poisson), draws_of(poisson), {}
    ),
    "joint": Kept(
        'logistic regression of 10 classes, NUTS, digits, guide="joint"',
        components, nuts(logistic_regression(10)), draws_of(logistic_regression(10)),
        {"guide": "joint"},
    ),
}  # fmt: skip
#: Posteriors whose draws are another's.
SHARED = {"joint": "digits"}


def task(name: str) -> Task:
    """A posterior from its kept draws."""
    kept = POSTERIORS[name]
    rows = kept.rows()
    source = kept.source(rows, values_of(SHARED.get(name, name)))
    return Task(kept.what, source, rows.transfer, rows.test, kept.options)


def values_of(name: str) -> Values:
    """The kept draws or weights of a posterior, verified.

    Raises:
        ValueError: When a file was changed.
    """
    (path,) = FOLDER.glob(f"{name}-*.safetensors")
    content = path.read_bytes()
    if digest(content) != path.stem.split("-")[1]:
        raise ValueError(f"{path} is not what it was made as; check it out again.")
    return load(content)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def make(name: str) -> Path:
    """Make a posterior anew and keep it."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    kept = POSTERIORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's, about shapes that do not change
        values = kept.make(kept.rows())
    content = save({key: value.detach().float().contiguous() for key, value in values.items()})
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob(f"{name}-*.safetensors"):
        old.unlink()
    path = FOLDER / f"{name}-{digest(content)}.safetensors"
    path.write_bytes(content)
    return path


if __name__ == "__main__":
    for each in sys.argv[1:] or [name for name in POSTERIORS if name not in SHARED]:
        print(make(each), flush=True)
