"""Rows that say nothing of one another are known, and answered block by block as all at once."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu import batched
from pyro_opu.programs.apart import row_axes
from pyro_opu.programs.recorded import VALID, Recorded

Draws = dict[str, Tensor]
S, D, G = 9, 4, 6
DRAWS = {"w": torch.randn(S, D), "a": torch.randn(S, G, 2), "v": torch.randn(S, D, 5)}
X = torch.randn(40, D)
GROUP = torch.arange(40) % G
KERNEL = torch.randn(2, 1, 2)


def affine(t: Draws, x: Tensor, group: Tensor) -> Draws:
    z = torch.einsum("nd,sd->sn", x, t["w"])
    whole = torch.stack([z.sum() == z.sum()]).all()
    return {"z": z, "both": torch.stack([z, 1 - z], -1), "norm": t["w"].norm(dim=-1), VALID: whole}


def picked(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": t["a"][:, group].softmax(-1), "x": (t["w"][:, None] * x)[:, :, [2, 0]]}


def layers(t: Draws, x: Tensor, group: Tensor) -> Draws:
    h = torch.bmm(x.expand(len(t["v"]), *x.shape), t["v"]).relu()
    made = h.new_zeros(h.shape[:2])
    return {"h": h, "top": h.max(-1).values + made, "halves": torch.cat(h.split([2, 3], 2), -1)}


def written(t: Draws, x: Tensor, group: Tensor) -> Draws:
    z = torch.bmm(x.expand(len(t["v"]), *x.shape), t["v"])
    z[..., 0] = z[..., 1].exp()
    return {
        "z": z.reshape(len(z), -1, 1, 5),
        "x": nn.functional.conv1d(x[:, None], KERNEL) + 0 * t["w"].sum(),
    }


def centred(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": (x - x.mean(0)) @ t["w"].T}


def summed_up(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": x.cumsum(0) @ t["w"].T}


def weighed(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": (t["w"] @ x.T).softmax(-1)}


def numbered(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": x @ t["w"].T + torch.arange(len(x))[:, None]}


def backwards(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": x.flip(0) @ t["w"].T}


def by_each_other(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": (x @ x.T) @ x @ t["w"].T}


def moved(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": x.reshape(D, -1).T @ t["w"].T}


def along_a_diagonal(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": (x @ torch.ones(D, 99)).diagonal() + t["w"][:, :1]}


def counted(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": x.new_full((len(x),), len(x)) + t["w"][:, :1]}


def once_for_all(t: Draws, x: Tensor, group: Tensor) -> Draws:
    return {"z": x @ t["w"].T + torch.randn(())}


def best(t: Draws, x: Tensor, group: Tensor) -> Draws:
    z = x @ t["w"].T
    return {"z": z, "best": z.amax(0)}


def recorded(program: Callable[..., Draws]) -> Recorded:
    return Recorded(lambda draws, inputs: program(draws, *inputs), DRAWS, [X, GROUP])


@pytest.mark.parametrize("program", [affine, picked, layers, written])
def test_blocks_of_rows_are_the_whole(program: Callable[..., Draws]) -> None:
    made = recorded(program)
    axes, whole = row_axes(made), made(DRAWS, [X, GROUP])
    assert axes is not None and axes.keys() == whole.keys() - {VALID}
    blocks = [made(DRAWS, [X[part], GROUP[part]]) for part in (slice(0, 16), slice(16, 40))]
    for name, axis in axes.items():
        parts = [block[name] for block in blocks]
        found = parts[1] if axis is None else torch.cat(parts, axis)
        torch.testing.assert_close(found, whole[name])


@pytest.mark.parametrize(
    "program",
    [
        *(centred, summed_up, weighed, numbered, backwards, by_each_other, moved),
        *(along_a_diagonal, counted, once_for_all, best),
    ],
)
def test_rows_that_may_mix_are_known(program: Callable[..., Draws]) -> None:
    assert row_axes(recorded(program)) is None


@pytest.mark.parametrize("guided", [False, True])
def test_answers_of_many_rows(guided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held sites are those of the loop, and a guide's latents are the same in every block."""
    monkeypatch.setattr("pyro_opu.programs.site_programs.ROWS", 16)
    monkeypatch.setattr("pyro_opu.programs.site_programs.CACHE", 0)

    def latent() -> Tensor:
        return pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))

    def source(x: Tensor) -> None:
        w = latent()
        pyro.deterministic("norm", w.norm())
        with pyro.plate("data", len(x), dim=-2):
            p = pyro.deterministic("p", torch.sigmoid(x @ w)[:, None])
            pyro.sample("obs", dist.Bernoulli(p))

    draws = {"w": torch.randn(2000, D)}
    given = {"guide": lambda x: latent(), "num_samples": 2000} if guided else draws
    predictive = Predictive(source, **given) if guided else Predictive(source, draws)
    exact = batched(predictive)
    expected, found = predictive(X), exact(X)
    assert list(found) == list(expected)
    assert {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in expected.items()}
    w = found["w"].reshape(2000, D) if guided else draws["w"]
    torch.testing.assert_close(found["p"][..., 0], torch.sigmoid(w @ X.T))
    torch.testing.assert_close(found["norm"].flatten(), w.norm(dim=-1))
    off = (found["obs"] - found["p"]).mean(0) / (0.25 / 2000) ** 0.5
    assert off.abs().max() < 6  # of 40 numbers, by chance less than once in 10 million runs
    torch.manual_seed(0)
    first = exact(X)["obs"]
    torch.manual_seed(0)
    assert torch.equal(exact(X)["obs"], first)
