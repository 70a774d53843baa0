"""Pyro models of classes, their posterior samples, and the loop over the draws by hand."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

D = 3
# Rounding of float32 matrix products summed in another order, on logits of size 1.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
# Every kind of observed site: logits (N, C) -> its distribution. Two classes: z = logits[:, 1].
MULTI = {
    "categorical-logits": lambda z: dist.Categorical(logits=z),
    "categorical-probs": lambda z: dist.Categorical(probs=z.softmax(-1)),
    "onehot-logits": lambda z: dist.OneHotCategorical(logits=z),
    "onehot-probs": lambda z: dist.OneHotCategorical(probs=z.softmax(-1)),
    "multinomial-logits": lambda z: dist.Multinomial(1, logits=z),
    "multinomial-probs": lambda z: dist.Multinomial(1, probs=z.softmax(-1)),
}
BINARY = {
    "bernoulli-logits": lambda z: dist.Bernoulli(logits=z[:, 1] - z[:, 0]),
    "bernoulli-probs": lambda z: dist.Bernoulli(probs=torch.sigmoid(z[:, 1] - z[:, 0])),
    "binomial-logits": lambda z: dist.Binomial(1, logits=z[:, 1] - z[:, 0]),
    "binomial-probs": lambda z: dist.Binomial(1, probs=torch.sigmoid(z[:, 1] - z[:, 0])),
}


def _in_plate(fn: dist.Distribution, rows: int) -> None:
    with pyro.plate("data", rows):
        pyro.sample("obs", fn)


def _in_outer_plate(fn: dist.Distribution, rows: int) -> None:
    with pyro.plate("once", 1, dim=-2), pyro.plate("data", rows, dim=-1):
        pyro.sample("obs", fn)


def _handled(handler: Callable, fn: dist.Distribution, rows: int) -> None:
    with handler(torch.arange(rows) % 2 == 0):
        _in_plate(fn, rows)


OBSERVE = {
    "plate": _in_plate,
    "outer-plate": _in_outer_plate,
    "event": lambda fn, rows: pyro.sample("obs", fn.to_event(1)),
    "bare": lambda fn, rows: pyro.sample("obs", fn),
    "poutine-mask": lambda fn, rows: _handled(lambda m: poutine.mask(mask=m), fn, rows),
    "dist-mask": lambda fn, rows: _in_plate(fn.mask(torch.arange(rows) % 2 == 0), rows),
    "dist-mask-event": lambda fn, rows: pyro.sample("obs", fn.mask(False).to_event(1)),
}


def softmax_model(
    classes: int = 3,
    observation: Callable = MULTI["categorical-logits"],
    observe: Callable = _in_plate,
) -> Callable:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(D, classes), 1.0).to_event(2))
        b = pyro.sample("b", dist.Normal(x.new_zeros(classes), 1.0).to_event(1))
        observe(observation(x @ w + b), len(x))

    return model


def softmax_samples(draws: int, classes: int = 3, dtype: torch.dtype = torch.float32) -> dict:
    return {
        "w": torch.randn(draws, D, classes, dtype=dtype),
        "b": torch.randn(draws, classes).to(dtype),
    }


def softmax_loop(samples: dict, x: Tensor) -> Tensor:
    """The answer by hand, one draw after the other."""
    return torch.stack(
        [(x @ w + b).log_softmax(-1) for w, b in zip(samples["w"], samples["b"], strict=True)]
    )


def logit_of(log_probs: Tensor) -> Tensor:
    """log p / (1 - p) of the second of two classes, (S, N)."""
    return log_probs[..., 1] - log_probs[..., 0]


def line_model(x: Tensor) -> None:
    """Two classes; the logit is the latent itself: w times the first feature."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]))


def assert_moments(draws: Tensor, mean: Tensor | float, std: Tensor | float) -> None:
    """Mean and standard deviation of normal draws, within five standard errors of each."""
    count = len(draws)
    assert ((draws.mean(0) - mean).abs() < 5 * torch.as_tensor(std) / count**0.5).all()
    assert ((draws.std(0) - std).abs() < 5 * torch.as_tensor(std) / (2 * count) ** 0.5).all()
