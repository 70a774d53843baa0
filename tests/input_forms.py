"""Inputs of every form, and a hierarchical posterior of numbers and a group."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from flat import distill_flat
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu import OnePassPredictive

N, G, S = 60, 5, 30
torch.manual_seed(0)
NUMBERS, GROUP = torch.randn(N, 2), torch.arange(N) % G
ALPHA, BETA = torch.randn(S, G), torch.randn(S, 2)


def hierarchical(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("groups", G):
        alpha = pyro.sample("alpha", dist.Normal(0.0, 1.0))
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=alpha[group] + x @ beta), obs=y)


class TwoInputs(nn.Module):
    """A network of numbers and an index."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.drop = nn.Embedding(G, 3), nn.Linear(5, 2), nn.Dropout()

    def forward(self, x: Tensor, group: Tensor) -> Tensor:
        logits = self.layer(self.drop(torch.cat([x, self.table(group)], 1)))
        return logits.log_softmax(-1)  # so that they are known for two classes


def probs() -> Tensor:
    p = torch.sigmoid(ALPHA[:, GROUP] + torch.einsum("nd,sd->sn", NUMBERS, BETA))
    return torch.stack([1 - p, p], -1)


def posterior() -> Predictive:
    return Predictive(hierarchical, {"alpha": ALPHA, "beta": BETA})


FORMS: dict[str, Any] = {
    "tuple": (NUMBERS, GROUP),
    "list": [NUMBERS, GROUP],
    "dict": {"x": NUMBERS, "group": GROUP},
    "one number": NUMBERS[:, 0],
    "index": GROUP,
    "tokens": torch.randint(9, (N, 4)),
    "image and flag": (torch.randn(N, 3, 4), GROUP > 2),
    "float64": {"time": 1.7e12 + 1e4 * torch.randn(N, dtype=torch.float64), "group": GROUP},
    "large index": {"group": 2**24 + 1 + GROUP, "x": NUMBERS},
}


def quick(source: Any, x: Any, **settings: Any) -> OnePassPredictive:
    given: dict[str, Any] = {"num_steps": 10, "seed": 0, "progress": False}
    return distill_flat(source, x, **(given | settings))
