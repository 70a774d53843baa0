"""The posteriors of ``benchmarks.golden``, one of every kind, and students briefly taught."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

import pyro_opu
from pyro_opu import OnePassPredictive
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, perceptron
from pyro_opu.models.sgpmc import svgp


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


N, D, C, S = 60, 3, 3, 24
X, NEW, OUTSIDE = drawn(N, D, seed=1), drawn(7, D, seed=2), 4 * drawn(30, D, seed=3)
Y = (X @ drawn(D, C, seed=4)).argmax(-1)
WEIGHTS = drawn(S, D, C, seed=5)
IMAGES = drawn(N, 1, 8, 8, seed=6).sigmoid()
QUICK: dict[str, Any] = {
    "num_steps": 40, "batch_size": 16, "evaluate_every": 10, "seed": 0, "progress": False,
}  # fmt: skip


def samples() -> dict[str, Tensor]:
    return {"weight": WEIGHTS, "bias": drawn(S, C, seed=7)}


def logistic() -> Predictive:
    return Predictive(logistic_regression(C), samples())


def logits(classes: int) -> Predictive:
    """Of another number of classes; two have one logit."""
    outputs = 1 if classes == 2 else classes
    weight = drawn(S, D, outputs, seed=9)
    samples = {"weight": weight, "bias": torch.zeros(S, outputs)}
    return Predictive(logistic_regression(classes), samples)


def logistic_guide() -> Predictive:
    pyro.clear_param_store()
    torch.manual_seed(0)
    model = logistic_regression(C)
    guide = AutoNormal(poutine.block(model, hide=["obs"]), init_scale=0.3)
    guide(X)
    return Predictive(model, guide=guide, num_samples=S)


def dropout() -> nn.Module:
    torch.manual_seed(0)
    return dropout_network((D, 8, C), p=0.3)


def ensemble() -> list[nn.Module]:
    torch.manual_seed(0)
    return [perceptron((D, 8, C)) for _ in range(6)]


def function(x: Tensor) -> Tensor:
    return (x @ WEIGHTS).softmax(-1)


def two_groups(x: Tensor) -> Tensor:
    """Draws of which one half contradicts the other, which a mixture follows."""
    signs = torch.where(torch.arange(S) % 2 == 0, 1.0, -1.0)[:, None, None]
    return (x @ (0.1 * WEIGHTS) + signs * torch.arange(C)).softmax(-1)


def process() -> Predictive:
    torch.manual_seed(0)
    model = gaussian_process(X[::10], 2, joint_rows=0)
    return Predictive(model, guide=svgp(model, X, (Y > 0).float(), num_steps=3), num_samples=S)


def linear(x: Tensor, y: Tensor | None = None) -> Tensor:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Normal(x @ weight, scale), obs=y)


def regression() -> Predictive:
    return Predictive(linear, {"weight": WEIGHTS[..., 0], "scale": WEIGHTS[:, 0, 1].exp()})


def means_and_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    return WEIGHTS[..., 1] @ x.sin().T, WEIGHTS[:, 0, 2:].exp().expand(S, len(x))


#: Name -> the source made anew, and arguments of ``distill``.
POSTERIORS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "logistic": (logistic, {}),
    "logistic_guide": (logistic_guide, {}),
    "dropout": (dropout, {"num_samples": S}),
    "ensemble": (ensemble, {}),
    "function": (lambda: function, {}),
    "gaussian_process": (process, {}),
    "mixture": (lambda: two_groups, {"guide": "mixture"}),
    "regression": (regression, {}),
    "regression_function": (lambda: means_and_scales, {}),
}
REAL = ("regression", "regression_function")


def taught(name: str, **changes: Any) -> OnePassPredictive:
    """A student of this posterior, briefly taught."""
    source, own = POSTERIORS[name]
    return pyro_opu.distill(source(), changes.pop("x", X), **{**QUICK, **own, **changes})


student = cache(taught)
