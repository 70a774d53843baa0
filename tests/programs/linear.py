"""Programs with a linear predictor: tutorials of regression, every autoguide, forms of inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import HMC, Predictive, autoguide
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from programs.base import Program, by_guide, by_nuts, drawn, labels, program, whole

N = 300
X, NEW = drawn(N, 3, seed=1), drawn(200, 3, seed=2)
Y = labels(X @ torch.tensor([1.5, -1.0, 0.5]), seed=3)


def countries(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """In Africa or not, ruggedness, and the logarithm of the GDP."""
    africa, rugged = whole(2, rows, seed).float(), drawn(rows, seed=seed + 1).abs() * 1.2
    return africa, rugged, 9.2 - 1.8 * africa - 0.2 * rugged + 0.4 * africa * rugged


def ruggedness(is_cont_africa: Tensor, ruggedness: Tensor, log_gdp: Tensor | None = None) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 10.0))
    b_a = pyro.sample("bA", dist.Normal(0.0, 1.0))
    b_r = pyro.sample("bR", dist.Normal(0.0, 1.0))
    b_ar = pyro.sample("bAR", dist.Normal(0.0, 1.0))
    sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
    mean = a + b_a * is_cont_africa + b_r * ruggedness + b_ar * is_cont_africa * ruggedness
    with pyro.plate("data", len(ruggedness)):
        return pyro.sample("obs", dist.Normal(mean, sigma), obs=log_gdp)


def terrain(infer: Callable[..., Predictive]) -> Program:
    *x, gdp = countries(170, seed=4)
    *new, _ = countries(150, seed=6)
    gdp = gdp + 0.9 * drawn(170, seed=8)
    return Program(infer(ruggedness, *x, gdp), tuple(x), tuple(new))


@program("Bayesian regression, AutoNormal")
def regression() -> Program:
    return terrain(by_guide)


@program("Bayesian regression, NUTS")
def regression_nuts() -> Program:
    return terrain(lambda *call: Predictive(ruggedness, by_nuts(*call)))


class BayesianRegression(PyroModule):
    """A linear layer whose weights have priors; it returns its mean."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](features, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, features]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


@program("PyroModule regression, _RETURN")
def returned() -> Program:
    y = X @ torch.tensor([1.0, -0.5, 0.0]) + 0.5 * drawn(N, seed=5)
    predictive = by_guide(BayesianRegression(3), X, y, return_sites=("obs", "_RETURN"))
    return Program(predictive, X, NEW)


def logistic(data: Tensor, labels: Tensor | None = None) -> None:
    coefs = pyro.sample("coefs", dist.Normal(torch.zeros(data.shape[1]), 2.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(data)):
        pyro.sample("y", dist.Bernoulli(logits=data @ coefs + intercept), obs=labels)


def guide_list(model: Any) -> autoguide.AutoGuideList:
    guides = autoguide.AutoGuideList(model)
    guides.append(autoguide.AutoDiagonalNormal(poutine.block(model, expose=["coefs"])))
    guides.append(autoguide.AutoNormal(poutine.block(model, expose=["intercept"])))
    return guides


GUIDES: dict[str, Callable[[Any], Any]] = {
    "AutoNormal": autoguide.AutoNormal,
    "AutoDiagonalNormal": autoguide.AutoDiagonalNormal,
    "AutoMultivariateNormal": autoguide.AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": autoguide.AutoLowRankMultivariateNormal,
    "AutoIAFNormal": autoguide.AutoIAFNormal,
    "AutoLaplaceApproximation": autoguide.AutoLaplaceApproximation,
    "AutoGuideList": guide_list,
    "AutoDelta": autoguide.AutoDelta,
}
for _name, _guide in GUIDES.items():

    @program(f"logistic regression, {_name}")
    def by_autoguide(guide: Callable[[Any], Any] = _guide) -> Program:
        warning = "no epistemic uncertainty" if guide is GUIDES["AutoDelta"] else ""
        return Program(by_guide(logistic, X, Y, guide=guide), X, NEW, warning=warning)


@program("logistic regression, NUTS")
def logistic_nuts() -> Program:
    return Program(Predictive(logistic, by_nuts(logistic, X, Y)), X, NEW)


@program("logistic regression, HMC")
def logistic_hmc() -> Program:
    kernel = HMC(logistic, step_size=0.1, num_steps=8)
    predictive = Predictive(logistic, by_nuts(logistic, X, Y, kernel=kernel))
    return Program(predictive, X, NEW, warning="has not mixed")


@program("softmax regression")
def softmax() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
        b = pyro.sample("b", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ w + b), obs=y)

    y = (X @ drawn(3, 4, seed=9) + drawn(N, 4, seed=10)).argmax(-1)
    return Program(by_guide(model, X, y), X, NEW)


@program("inputs in one dict")
def one_dict() -> Program:
    def model(batch: dict[str, Tensor]) -> None:
        logits = logits_of(batch["x"], batch["age"])
        with pyro.plate("data", len(logits)):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=batch.get("y"))

    def logits_of(x: Tensor, age: Tensor) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        return x @ w + slope * age

    age = drawn(N, seed=11)
    predictive = by_guide(model, {"x": X, "age": age, "y": Y})
    new = {"x": NEW, "age": drawn(200, seed=12)}
    options = {"inputs": lambda batch: batch, "arguments": lambda x: ((x,), {})}
    return Program(predictive, {"x": X, "age": age}, new, (new,), options)


@program("working memory, one-dimensional design")
def working_memory() -> Program:
    def model(l: Tensor, y: Tensor | None = None) -> None:  # noqa: E741 - the tutorial's name
        theta = pyro.sample("theta", dist.Normal(7.0, 2.0))
        with pyro.plate_stack("plate", l.shape):
            pyro.sample("y", dist.Bernoulli(logits=2.0 * (theta - l)), obs=y)

    length = torch.linspace(1.0, 15.0, 150)
    samples = by_nuts(model, length[::10], labels(2.0 * (7.0 - length[::10]), seed=13))
    return Program(Predictive(model, samples), length, length[:-1] + 0.03)


@program("horseshoe regression")
def horseshoe() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        tau = pyro.sample("tau", dist.HalfCauchy(0.1))
        with pyro.plate("features", x.shape[1]):
            local = pyro.sample("lambda", dist.HalfCauchy(1.0))
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ (w * local * tau), sigma), obs=y)

    x, new = drawn(120, 8, seed=14), drawn(200, 8, seed=15)
    y = 2.0 * x[:, 0] - x[:, 1] + 0.5 * drawn(120, seed=16)
    return Program(by_guide(model, x, y, steps=1000), x, new)
