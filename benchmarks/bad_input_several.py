"""Bad models of several numbers, and bad calls of their students, for ``bad_input``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from benchmarks.bad_input import Cases
from benchmarks.bad_input_distill import X, draws, predictive, short
from benchmarks.bad_input_student import INPUTS
from pyro_opu import OnePassSeveral, as_teacher, fidelity
from pyro_opu.distributions import PredictiveCount, PredictiveTrials

WEIGHTS = {"w": torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0))}


def source(of: Callable[[Tensor], dist.Distribution], plate: bool = True) -> Predictive:
    """A model whose site has this distribution, of two linear predictors ``(N, 2)``."""

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        if plate:
            with pyro.plate("data", len(x), dim=-2), pyro.plate("two", 2, dim=-1):
                pyro.sample("obs", of(x @ w))
        else:
            pyro.sample("obs", of(x @ w))

    return Predictive(model, WEIGHTS, return_sites=("obs",))


def labels(logits: Tensor) -> dist.Distribution:
    return dist.Bernoulli(logits=logits)


@functools.cache
def student() -> OnePassSeveral:
    found: Any = short(source(labels))
    return found


#: Models that no student is made of, or whose parameters are wrong.
MODELS: dict[str, Callable[[], Any]] = {
    "a rate of NaN": lambda: source(lambda z: dist.Poisson(z.exp() * torch.nan)),
    "a rate of 0": lambda: source(lambda z: dist.Poisson(torch.zeros_like(z))),
    "a negative rate": lambda: source(lambda z: dist.Poisson(-z.exp())),
    "a scale of 0": lambda: source(lambda z: dist.Normal(z, 0.0)),
    "a scale of NaN": lambda: source(lambda z: dist.Normal(z, torch.nan)),
    "probabilities above 1": lambda: source(lambda z: dist.Bernoulli(probs=2 + z.exp())),
    "logits of NaN": lambda: source(lambda z: dist.Bernoulli(logits=z * torch.nan)),
    "Student's t": lambda: source(lambda z: dist.StudentT(3.0, z, 1.0)),
    "a Gamma": lambda: source(lambda z: dist.Gamma(z.exp(), 1.0)),
    "a zero-inflated count": lambda: source(
        lambda z: dist.ZeroInflatedPoisson(z.exp(), gate=torch.tensor(0.2))
    ),
    "several trials of a multinomial": lambda: source(
        lambda z: dist.Multinomial(5, logits=torch.stack([z, -z], -1))
    ),
    "trials that follow the inputs": lambda: source(
        lambda z: dist.Binomial((1 + 9 * z.sigmoid()).round(), logits=z)
    ),
    "one vector for all rows": lambda: source(
        lambda z: dist.Normal(z.mean(0), 1.0).to_event(1), plate=False
    ),
}

CASES = Cases()
add = CASES.add
for _what, _make in MODELS.items():
    add("distill", f"several: {_what}", lambda make=_make: short(make()))
    add("as_teacher", f"several: {_what}", lambda make=_make: as_teacher(make()).probs(X))
for _name, _values in {
    "loss": ("wasserstein", "crps", "energy", 3),
    "guide": ("dirichlet", "mixture", "gaussian", 3, nn.Linear(3, 4)),
    "return_sites": (("w",), ("nothing",), "obs", 3),
    "site": ("w", "nothing", 3),
}.items():
    for _value in _values:
        add(
            "distill",
            f"several: {_name}={_value!r}"[:60],
            lambda n=_name, v=_value: short(source(labels), **{n: v}),
        )
for _method in ("__call__", "distribution", "dirichlet", "uncertainty", "answer"):
    for _what, _x in INPUTS.items():
        add(
            f"OnePassSeveral.{_method}",
            f"x {_what}",
            lambda m=_method, x=_x: getattr(student(), m)(x),
        )
add("OnePassSeveral.normal", "a student of labels", lambda: student().normal(X))
add("OnePassSeveral", "no parts", lambda: OnePassSeveral(student().guide, (3,), (), []))
add("OnePassSeveral", "guide=None", lambda: OnePassSeveral(None, (3,), student().parts, []))
add("SeveralAnswer", "an unknown site", lambda: student().answer(X)["nothing"])
add("fidelity", "several, a student of one label", lambda: fidelity(draws, source(labels), X))
add("fidelity", "several, another teacher", lambda: fidelity(student(), predictive(), X))
for _what, _tensors in {
    "shapes that differ": (torch.zeros(3), torch.zeros(2), torch.zeros(3)),
    "lists": ([0.0], [0.0], [0.0]),
    "integers": (torch.ones(3).long(),) * 3,
}.items():
    add("PredictiveCount", _what, lambda t=_tensors: PredictiveCount(*t))
add("PredictiveTrials", "a normal", lambda: PredictiveTrials(torch.ones(3), torch.ones(3)))
add(
    "PredictiveTrials",
    "another number of rows",
    lambda: PredictiveTrials(student().distribution(X), torch.ones(2)),
)
add(
    "PredictiveTrials",
    "three classes",
    lambda: PredictiveTrials(dist.Dirichlet(torch.ones(4, 3)), torch.ones(4)),
)
