"""Programs with networks: Bayesian ones, dropout, sequences, Gaussian processes, deep kernels."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from programs.base import DRAWS, Program, by_guide, drawn, learnt, program, whole


def moons(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two half circles, and which of them."""
    y = whole(2, rows, seed)
    angle = torch.pi * (torch.linspace(0, 1, rows) + y)
    x = torch.stack([angle.cos() + y - 0.5, angle.sin() + 0.5 * y], -1)
    return x + 0.15 * drawn(rows, 2, seed=seed + 1), y


X, Y = moons(300, seed=1)
NEW = moons(200, seed=3)[0]


def priors(module: Any, scale: float = 1.0) -> Any:
    """The network as a PyroModule whose parameters have normal priors."""
    to_pyro_module_(module)
    for part in module.modules():
        for name, value in list(part.named_parameters(recurse=False)):
            prior = dist.Normal(torch.zeros_like(value), scale).to_event(value.ndim)
            setattr(part, name, PyroSample(prior))
    return module


class Classifier(PyroModule):
    """A network of logits ``(N, C)`` under a categorical likelihood, in a plate of the data."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = self.network(x)
        with pyro.plate("data", len(logits)):
            pyro.sample("obs", dist.Categorical(logits=logits), obs=y)
        return logits


def layers(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        parts += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*parts[:-1])


@program("BNN regression, PyroSample")
def bnn_regression() -> Program:
    class BNN(PyroModule):
        def __init__(self, hidden: int = 10) -> None:
            super().__init__()
            self.network = priors(layers(1, hidden, 1))

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            mu = self.network(x.reshape(-1, 1)).squeeze(-1)
            sigma = pyro.sample("sigma", dist.Gamma(2.0, 4.0))
            with pyro.plate("data", x.shape[0]):
                pyro.sample("obs", dist.Normal(mu, sigma), obs=y)
            return mu

    x = torch.linspace(-2.0, 2.0, 120)
    y = (1.5 * x).sin() + 0.2 * drawn(120, seed=5)
    return Program(by_guide(BNN(), x, y, steps=800, return_sites=("obs",)), x, x + 0.01)


@program("BNN classification, PyroSample")
def bnn_classification() -> Program:
    model = Classifier(priors(layers(2, 16, 2)))
    return Program(by_guide(model, X, Y, steps=800, return_sites=("obs",)), X, NEW)


@program("random module, model(x_data, y_data)")
def random_module() -> Program:
    network = layers(2, 8, 2)

    def model(x_data: Tensor, y_data: Tensor | None) -> None:
        found = {
            name: dist.Normal(torch.zeros_like(value), 1.0).to_event(value.ndim)
            for name, value in network.named_parameters()
        }
        logits = pyro.random_module("module", network, found)()(x_data)
        with pyro.plate("data", len(x_data)):
            pyro.sample("obs", dist.Categorical(logits=logits), obs=y_data)

    predictive = by_guide(model, X, Y, steps=600, return_sites=("obs",))
    return Program(predictive, X, NEW, (NEW, None))


@program("TyXe-like: minibatches, scaled likelihood, ResNet block")
def tyxe() -> Program:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).relu()
            return self.last(h + self.inner(h).relu())

    network = priors(Residual())

    def model(x: Tensor, obs: Tensor | None = None) -> Tensor:
        logits = network(x)
        with poutine.scale(scale=300 / len(x)), pyro.plate("data", len(x)):
            return pyro.sample("likelihood.data", dist.Categorical(logits=logits), obs=obs)

    guide = pyro.infer.autoguide.AutoNormal(model, init_scale=0.1)
    for epoch in range(60):
        for rows in torch.randperm(300, generator=torch.Generator().manual_seed(epoch)).split(100):
            learnt(model, guide, X[rows], Y[rows], steps=1)
    sites = ("likelihood.data",)
    return Program(Predictive(model, guide=guide, num_samples=DRAWS, return_sites=sites), X, NEW)


@program("MC dropout, masks as latents")
def dropout() -> Program:
    torch.manual_seed(0)
    first, last = nn.Linear(2, 32), nn.Linear(32, 2)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("first", first), pyro.module("last", last)
        keep = pyro.sample("keep", dist.Bernoulli(torch.full((32,), 0.8)).to_event(1))
        logits = last(first(x).relu() * keep / 0.8)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=logits), obs=y)

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("keep", dist.Bernoulli(torch.full((32,), 0.8)).to_event(1))

    learnt(model, guide, X, Y, steps=400)
    predictive = Predictive(model, guide=guide, num_samples=DRAWS, return_sites=("obs",))
    return Program(predictive, X, NEW)


@program("network left in training mode, dropout and batch norm")
def training_mode() -> Program:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
            )
            self.head = priors(nn.Linear(16, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    model = Classifier(PyroModule[Features]())
    guide = learnt(model, pyro.infer.autoguide.AutoNormal(model), X, Y)
    model.train()
    predictive = Predictive(model, guide=guide, num_samples=DRAWS, return_sites=("obs",))
    return Program(predictive, X, NEW, warning="in training mode")


def first_token(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences of 6 of 12 tokens; the class is that of the more frequent half."""
    tokens = torch.randint(12, (rows, 6), generator=torch.Generator().manual_seed(seed))
    return tokens, ((tokens < 6).sum(-1) >= 3).long()


class Recurrent(PyroModule):
    """A recurrent network whose head has a prior, on tokens ``(N, T)`` or vectors ``(N, T, D)``."""

    def __init__(self, kind: Any, tokens: int | None, features: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Identity() if tokens is None else nn.Embedding(tokens, features)
        self.encode = kind(features, 12, batch_first=True)
        self.head = priors(nn.Linear(12, 2))

    def forward(self, tokens: Tensor, y: Tensor | None = None) -> None:
        encoded, _ = self.encode(self.embed(tokens))
        logits = self.head(encoded[:, -1])
        with pyro.plate("data", len(tokens)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


@program("GRU on tokens")
def gru() -> Program:
    x, y = first_token(600, seed=7)
    model = Recurrent(nn.GRU, 12, 8)
    predictive = by_guide(model, x, y, steps=300, return_sites=("y",))
    return Program(predictive, x, first_token(200, seed=8)[0])


@program("LSTM on vectors")
def lstm() -> Program:
    x = drawn(400, 5, 3, seed=9)
    model = Recurrent(nn.LSTM, None, 3)
    y = (x[..., 0].mean(1) > 0).long()
    predictive = by_guide(model, x, y, steps=300, return_sites=("y",))
    return Program(predictive, x, drawn(200, 5, 3, seed=10))


@program("contrib.gp, the module itself")
def gp_module() -> Program:
    return Program(sparse_process(gp.kernels.RBF(2)), X, NEW, cure="def model(x, y=None)")


def sparse_process(kernel: Any, classes: int = 2) -> Any:
    """A sparse variational process of ``pyro.contrib.gp``, two or more classes, taught by SVI."""
    torch.manual_seed(0)
    binary = classes == 2
    likelihood = gp.likelihoods.Binary() if binary else gp.likelihoods.MultiClass(classes)
    y = Y if binary else Y + (X[:, 0] > 0.5)
    process = gp.models.VariationalSparseGP(
        X,
        y.float() if binary else y,
        kernel,
        X[::15].clone(),
        likelihood,
        latent_shape=torch.Size([] if binary else [classes]),
        whiten=True,
    )
    gp.util.train(process, torch.optim.Adam(process.parameters(), lr=0.02), num_steps=200)
    return process.eval()


@program("contrib.gp, sparse classification")
def gp_binary() -> Program:
    process = sparse_process(gp.kernels.RBF(2))

    def model(x: Tensor) -> Tensor:
        return process.likelihood(*process(x))

    return Program(Predictive(model, num_samples=DRAWS), X, NEW)


@program("contrib.gp, regression")
def gp_regression() -> Program:
    torch.manual_seed(0)
    x = torch.linspace(-2.0, 2.0, 60)[:, None]
    y = (2.0 * x[:, 0]).sin() + 0.2 * drawn(60, seed=11)
    process = gp.models.GPRegression(x, y, gp.kernels.RBF(1), noise=torch.tensor(0.1))
    gp.util.train(process, num_steps=100)

    def model(x: Tensor) -> Tensor:
        loc, variance = process(x)
        with pyro.plate("data", len(x)):
            f = pyro.sample("f", dist.Normal(loc, variance.sqrt()))
            return pyro.sample("y", dist.Normal(f, process.noise.sqrt()))

    predictive = Predictive(model, num_samples=DRAWS, return_sites=("y",))
    return Program(predictive, x, x + 0.01)


@program("deep kernel learning, three classes")
def deep_kernel() -> Program:
    torch.manual_seed(0)
    kernel = gp.kernels.Warping(gp.kernels.RBF(2), iwarping_fn=layers(2, 16, 2))
    process = sparse_process(kernel, classes=3)

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        loc, variance = process(x)
        with pyro.plate("data", len(x)):
            f = pyro.sample("f", dist.Normal(loc.mT, variance.mT.sqrt()).to_event(1))
            return pyro.sample("y", dist.Categorical(logits=f), obs=y)

    return Program(Predictive(model, num_samples=DRAWS, return_sites=("y",)), X, NEW)
