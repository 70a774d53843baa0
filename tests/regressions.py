"""Pyro models of a real y, their posterior samples, the loop by hand, and short distillations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from flat import distill_flat
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor

D = 3
# Rounding of float32 matrix products summed in another order, on means of size 1.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
# How the observed site is put: (mean (N,), scale) -> the site "obs".
Observe = Callable[[Tensor, Tensor], Any]


def _plate(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean)):
        pyro.sample("obs", dist.Normal(mean, scale))


def _outer_plate(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("once", 1, dim=-2), pyro.plate("data", len(mean), dim=-1):
        pyro.sample("obs", dist.Normal(mean, scale))


def _column_plate(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean), dim=-2):
        pyro.sample("obs", dist.Normal(mean[:, None], scale))


def _masked(mean: Tensor, scale: Tensor) -> None:
    with poutine.mask(mask=torch.arange(len(mean)) % 2 == 0):
        _plate(mean, scale)


def _deterministic(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean)):
        f = pyro.deterministic("f", mean)
        pyro.sample("obs", dist.Normal(f, scale))


def _renamed(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean)):
        pyro.sample("y", dist.Normal(mean, scale))


OBSERVE: dict[str, Observe] = {
    "plate": _plate,
    "outer-plate": _outer_plate,
    "column-plate": _column_plate,
    "bare": lambda m, s: pyro.sample("obs", dist.Normal(m, s)),
    "event": lambda m, s: pyro.sample("obs", dist.Normal(m, s).to_event(1)),
    "column": lambda m, s: pyro.sample("obs", dist.Normal(m[:, None], s).to_event(2)),
    "dist-mask": lambda m, s: pyro.sample("obs", dist.Normal(m, s).mask(False).to_event(1)),
    "poutine-mask": _masked,
    "deterministic": _deterministic,
    "renamed": _renamed,
}


def linear(observe: Observe = _plate, dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D, dtype=dtype), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros((), dtype=dtype), 0.3))
        observe(x @ w, scale)

    return model


def samples(draws: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"w": torch.randn(draws, D, dtype=dtype), "scale": torch.rand(draws, dtype=dtype) + 0.1}


def by_hand(values: dict[str, Tensor], x: Tensor) -> Tensor:
    """The answer one draw after the other."""
    pairs = zip(values["w"], values["scale"], strict=True)
    return torch.stack([torch.stack([x @ w, scale.log().expand(len(x))], -1) for w, scale in pairs])


def predictive(draws: int = 30, observe: Observe = _plate, **options: Any) -> Predictive:
    return Predictive(linear(observe), samples(draws), **options)


QUICK: dict[str, Any] = {
    "num_steps": 12,
    "batch_size": 16,
    "evaluate_every": 5,
    "seed": 0,
    "progress": False,
}


def quick(source: Any = None, x: Tensor | None = None, **changes: Any) -> Any:
    return distill_flat(
        predictive() if source is None else source,
        torch.randn(60, D) if x is None else x,
        **{**QUICK, **changes},
    )
