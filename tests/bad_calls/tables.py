"""Bad models of several numbers, and bad calls of their students."""

import functools
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from bad_calls.distilling import INPUTS, X, draws, predictive, short
from bad_calls.table import arguments, calls, values
from pyro_opu import OnePassPredictive, as_teacher, fidelity
from pyro_opu.distributions import PredictiveCount, PredictiveTrials
from pyro_opu.parts import Outcome

WEIGHTS = {"w": torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0))}


def source(of: Callable[[Tensor], Any], plate: bool = True) -> Predictive:
    """A model whose site has this distribution, of two linear predictors ``(N, 2)``."""

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        if plate:
            with pyro.plate("data", len(x), dim=-2), pyro.plate("two", 2, dim=-1):
                pyro.sample("obs", of(x @ w))
        else:
            pyro.sample("obs", of(x @ w))

    return Predictive(model, WEIGHTS, return_sites=("obs",))


def labels(logits: Tensor) -> Any:
    return dist.Bernoulli(logits=logits)


@functools.cache
def student() -> Any:
    return short(source(labels))


#: Distributions that no student is made of, or whose parameters are wrong.
SITES: dict[str, Callable[[Tensor], Any]] = {
    "a rate of NaN": lambda z: dist.Poisson(z.exp() * torch.nan),
    "a rate of 0": lambda z: dist.Poisson(torch.zeros_like(z)),
    "a negative rate": lambda z: dist.Poisson(-z.exp()),
    "a scale of 0": lambda z: dist.Normal(z, 0.0),
    "a scale of NaN": lambda z: dist.Normal(z, torch.nan),
    "probabilities above 1": lambda z: dist.Bernoulli(probs=2 + z.exp()),
    "logits of NaN": lambda z: dist.Bernoulli(logits=z * torch.nan),
    "Student's t without a variance": lambda z: dist.StudentT(2.0, z, 1.0),
    "a Cauchy": lambda z: dist.Cauchy(z, 1.0),
    "an angle": lambda z: dist.VonMises(z, 1.0),
    "a composition": lambda z: dist.Dirichlet(torch.stack([z.exp(), (-z).exp()], -1)),
    "trials of a multinomial": lambda z: dist.Multinomial(5, logits=torch.stack([z, -z], -1)),
    "trials by inputs": lambda z: dist.Binomial((1 + 9 * z.sigmoid()).round(), logits=z),
}


def one_vector(z: Tensor) -> Any:
    return dist.Normal(z.mean(0), 1.0).to_event(1)


# fmt: off
values("distill, table", lambda of: short(source(of)), of=SITES)
values("as_teacher, table", lambda of: as_teacher(source(of)).probs(X), of=SITES)
calls("distill, table", {"one vector": lambda: short(source(one_vector, plate=False))})
calls("as_teacher, table", {
    "one vector": lambda: as_teacher(source(one_vector, plate=False)).probs(X)})
values("distill, table", lambda **given: short(source(labels), **given),
    loss=["wasserstein", "crps", "energy", 3],
    guide=["dirichlet", "mixture", "gaussian", 3, nn.Linear(3, 4)],
    return_sites=[("w",), ("nothing",), "obs", 3], site=["w", "nothing", 3])
for method in ("__call__", "distribution", "dirichlet", "uncertainty", "answer"):
    values(f"OnePassPredictive, table.{method}",
        lambda x, m=method: getattr(student(), m)(x), x=INPUTS)
calls("OnePassPredictive, table", {
    "a normal of labels": lambda: student().normal(X),
    "no parts": lambda: Outcome(()),
    "guide=None": lambda: OnePassPredictive(None, (3,), student().outcome),
    "an unknown site of an answer": lambda: student().answer(X)["nothing"]})
calls("fidelity, table", {
    "a student of one label": lambda: fidelity(draws, source(labels), X),
    "another teacher": lambda: fidelity(student(), predictive(), X)})
arguments(PredictiveCount, {
    "shapes that differ": (torch.zeros(3), torch.zeros(2), torch.zeros(3)),
    "lists": ([0.0], [0.0], [0.0]),
    "integers": (torch.ones(3).long(),) * 3})
arguments(PredictiveTrials, {
    "a normal": (torch.ones(3), torch.ones(3)),
    "three classes": (dist.Dirichlet(torch.ones(4, 3)), torch.ones(4))})
calls("PredictiveTrials", {
    "other rows": lambda: PredictiveTrials(student().distribution(X), torch.ones(2))})
