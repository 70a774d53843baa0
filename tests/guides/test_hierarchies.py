"""Twenty hierarchical programs: each is as near as 500 draws before any step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from pyro_opu.training import tuned

S, N, G, H, D = 600, 240, 5, 4, 2
Draws = dict[str, Tensor]
SIZES: dict[str, tuple[int, ...]] = {
    "mu": (),
    "tau": (),
    "a": (G,),
    "b": (G, D),
    "c": (H,),
    "beta": (D,),
    "sigma": (),
    "corner": (G, H),
}

#: What a row's mean is before its link, by the structure of the groups.
STRUCTURES: dict[str, Callable[[Draws, Tensor, Tensor, Tensor], Tensor]] = {
    "intercepts": lambda t, x, g, h: t["mu"] + t["a"][g] + x @ t["beta"],
    "slopes": lambda t, x, g, h: t["a"][g] + (x * (t["beta"] + t["b"][g])).sum(-1),
    "crossed": lambda t, x, g, h: t["a"][g] + t["c"][h] * x[:, 0],
    "nested": lambda t, x, g, h: t["a"][g] + t["corner"][g, h] + x @ t["beta"],
    "scale times offset": lambda t, x, g, h: t["mu"] + t["tau"] * t["a"][g] + x @ t["beta"],
}
LINKS: dict[str, Callable[[Draws, Tensor], Any]] = {
    "labels": lambda t, eta: dist.Bernoulli(logits=eta),
    "real": lambda t, eta: dist.Normal(eta, t["sigma"]),
    "counts": lambda t, eta: dist.Poisson(eta.exp()),
    "trials": lambda t, eta: dist.Binomial(12, logits=eta),
}


def draws(far: float = 0.0) -> Draws:
    """Normal ones of all but the scales, which are log-normal; two sets of levels so far apart."""
    torch.manual_seed(0)
    found = {k: 0.4 * torch.randn(n) + 0.1 * torch.randn(S, *n) for k, n in SIZES.items()}
    found["a"] = found["a"] + far * (torch.arange(S) % 2)[:, None]
    return {**found, "tau": found["tau"].exp(), "sigma": found["sigma"].exp()}


def source(structure: str, link: str, far: float = 0.0) -> Predictive:
    def model(x: Tensor, g: Tensor, h: Tensor) -> None:
        t = {
            k: pyro.sample(k, dist.Normal(0.0, 1.0).expand(n).to_event(len(n)))
            for k, n in SIZES.items()
        }
        with pyro.plate("data", len(x)):
            pyro.sample("y", LINKS[link](t, STRUCTURES[structure](t, x, g, h)))

    return Predictive(model, draws(far), return_sites=("y",))


def rows() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    both = torch.arange(N) % (G * H)
    return torch.randn(N, D), both // H, both % H


#: All, of which the slow ones differ from the others by structure and by link alone.
EVERY = [
    pytest.param(s, k, marks=() if "slopes" in s or k == "labels" else pytest.mark.slow)
    for s in STRUCTURES
    for k in LINKS
]


@pytest.mark.parametrize(("structure", "link"), EVERY)
def test_every_hierarchy_is_as_near_as_500_draws_before_any_step(structure: str, link: str) -> None:
    fast = pyro_opu.distill(source(structure, link), rows(), seed=0, progress=False)
    assert fast.report["spent"]["steps"] == 0, str(fast.report)
    least = 5000 if (structure, link) == ("slopes", "labels") else 500
    assert fast.report["draws"] >= least and fast.report["start"] in ("closed form", "moments")
    assert "closed form" in fast.report["kept"]


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
@pytest.mark.parametrize("link", ["labels", "counts"])
def test_draws_in_two_groups_are_no_normal_and_are_taught(
    link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "EFFORTS", {"quick": (4, 64), "default": (4, 64)})
    fast = pyro_opu.distill(source("slopes", link, far=3.0), rows(), seed=0, progress=False)
    assert fast.report["spent"]["steps"] == 4 and "closed form" not in fast.report["kept"]
