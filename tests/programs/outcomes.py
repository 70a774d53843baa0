"""Programs that observe something else than one class or one number: orders, counts, several."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from programs.base import Program, by_guide, drawn, labels, program

N = 300
X, NEW = drawn(N, 2, seed=1), drawn(200, 2, seed=2)
SLOPES = torch.tensor([0.8, -0.5])


def linear(features: int = 2) -> tuple[Tensor, Tensor]:
    """Weights and an intercept, from their priors."""
    w = pyro.sample("w", dist.Normal(torch.zeros(features), 1.0).to_event(1))
    return w, pyro.sample("b", dist.Normal(0.0, 1.0))


@program("ordinal regression, OrderedLogistic")
def ordinal() -> Program:
    def model(X: Tensor, Y: Tensor | None = None, nclasses: int = 4) -> None:
        b = pyro.sample("b_X", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        first = pyro.sample("c_first", dist.Normal(0.0, 2.0))
        step = pyro.sample("c_step", dist.LogNormal(torch.zeros(nclasses - 2), 0.5).to_event(1))
        cuts = torch.cat([first.reshape(1), first + step.cumsum(-1)])
        with pyro.plate("obs_plate", len(X)):
            pyro.sample("Y", dist.OrderedLogistic(X @ b, cuts), obs=Y)

    levels = torch.bucketize(X @ SLOPES * 2 + drawn(N, seed=3), torch.tensor([-1.0, 0.0, 1.0]))
    return Program(by_guide(model, X, levels, return_sites=("Y",)), X, NEW)


@program("Poisson regression")
def poisson() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w, b = linear()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Poisson((x @ w + b).exp()), obs=y)

    torch.manual_seed(0)
    y = torch.poisson((X @ SLOPES + 1.0).exp())
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("negative-binomial regression, GammaPoisson")
def negative_binomial() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w, b = linear()
        concentration = pyro.sample("concentration", dist.LogNormal(0.0, 1.0))
        rate = concentration / (x @ w + b).exp()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.GammaPoisson(concentration, rate), obs=y)

    torch.manual_seed(0)
    y = dist.GammaPoisson(2.0, 2.0 / (X @ SLOPES + 1.0).exp()).sample()
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("zero-inflated counts")
def zero_inflated() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w, b = linear()
        gate = pyro.sample("gate", dist.Beta(1.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.ZeroInflatedPoisson((x @ w + b).exp(), gate=gate), obs=y)

    torch.manual_seed(0)
    y = torch.poisson((X @ SLOPES + 1.0).exp()) * (torch.rand(N) > 0.3)
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("multi-label, Bernoulli (N, L)")
def multi_label() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 4), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)

    y = labels(2.0 * X @ drawn(2, 4, seed=4), seed=5)
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("multi-label, a plate of labels")
def label_plate() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 4), 1.0).to_event(2))
        with pyro.plate("labels", 4, dim=-1), pyro.plate("data", len(x), dim=-2):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    y = labels(2.0 * X @ drawn(2, 4, seed=4), seed=5)
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("a vector of normals")
def vector() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
        sigma = pyro.sample("sigma", dist.HalfNormal(torch.ones(3)).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, sigma).to_event(1), obs=y)

    y = X @ drawn(2, 3, seed=6) + 0.5 * drawn(N, 3, seed=7)
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("correlated outcomes, LKJ")
def correlated() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        scale = pyro.sample("scale", dist.HalfCauchy(torch.ones(2)).to_event(1))
        lower = pyro.sample("L_omega", dist.LKJCholesky(2, 1.0))
        with pyro.plate("data", len(x)):
            fn = dist.MultivariateNormal(x @ w, scale_tril=scale[:, None] * lower)
            pyro.sample("y", fn, obs=y)

    y = X @ drawn(2, 2, seed=8) + 0.5 * drawn(N, 2, seed=9)
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)


@program("treatment and outcome, two observed sites")
def two_sites() -> Program:
    def model(x: Tensor, t: Tensor | None = None, y: Tensor | None = None) -> None:
        w, b = linear()
        effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("t", dist.Bernoulli(logits=x @ w + b), obs=t)
            pyro.sample("y", dist.Normal(x @ slope + effect, 1.0), obs=y)

    t = labels(X @ SLOPES, seed=10)
    y = X[:, 0] + 1.0 + drawn(N, seed=11)
    return Program(by_guide(model, X, t, y, return_sites=("t", "y")), X, NEW)


@program("robust regression, StudentT")
def robust() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w, b = linear()
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.StudentT(4.0, x @ w + b, sigma), obs=y)

    y = X @ SLOPES + 0.3 * dist.StudentT(4.0).expand([N]).sample()
    return Program(by_guide(model, X, y, return_sites=("y",)), X, NEW)
