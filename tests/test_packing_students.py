"""Students of several inputs: guides of one's own, captured passes, files and hostile ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from input_forms import ALPHA, FORMS, GROUP, NUMBERS, G, N, S, TwoInputs, posterior, quick
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import OnePassPredictive
from pyro_opu.predictive.student_file import KIND
from pyro_opu.utils import files

pytestmark = pytest.mark.usefixtures("brief")


class Own(nn.Module):
    """A guide that takes the inputs as the model does."""

    def __init__(self) -> None:
        super().__init__()
        self.network = TwoInputs()

    def forward(self, x: Tensor, group: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(self.network(x, group).exp())


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_a_guide_of_ones_own_takes_the_inputs_as_they_are(form: str, tmp_path: Any) -> None:
    x = FORMS[form]
    fast = quick(posterior(), x, guide=Own())
    assert fast(NUMBERS, GROUP)["obs"].shape == (S, N)
    fast.save(tmp_path / "student")
    with pytest.raises(ValueError, match="`guide` must be given"):
        OnePassPredictive.load(tmp_path / "student")
    again = OnePassPredictive.load(tmp_path / "student", guide=Own())
    assert torch.equal(again.dirichlet(x).mean, fast.dirichlet(x).mean)
    assert again(NUMBERS, GROUP)["obs"].shape == (S, N)


def test_a_guide_of_the_package_takes_them_packed(tmp_path: Any) -> None:
    x = FORMS["dict"]
    own = pyro_opu.PredictiveGuide.for_inputs(x, 2, hidden=(8,))
    fast = quick(posterior(), x, guide=own)
    assert fast.guide is own
    fast.save(tmp_path / "student")
    again = OnePassPredictive.load(tmp_path / "student")
    assert torch.equal(again.dirichlet(x).mean, fast.dirichlet(x).mean)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_captured_student_takes_them_too(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(torch, "compile", lambda run, **options: run)
    x = FORMS["dict"]
    fast = quick(posterior(), x)
    captured = fast.capture(x)
    assert captured.kind == "compiled"
    torch.testing.assert_close(captured(x).mean, fast.dirichlet(x).mean)
    with pytest.raises(ValueError, match=r"`x\['group'\]` must hold indices"):
        captured({**x, "group": GROUP + 1})


def damages(plain: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The description of a form with one entry changed into something else."""
    wrong: tuple[Any, ...] = (None, "text", -1, 0.5, 2**60, True, [], {}, [[7]])
    for value in wrong:
        yield plain | {"kind": value}
        yield plain | {"parts": value}
        for number in range(2):
            for key in ("name", "shape", "dtype", "values"):
                parts = [dict(part) for part in plain["parts"]]
                parts[number][key] = value
                yield plain | {"parts": parts}
    first, second = plain["parts"]
    yield plain | {"parts": [first]}
    yield plain | {"parts": [first, second | {"name": first["name"]}]}
    yield plain | {"kind": "tensor"}
    for other in ([0, 1, 2, 4, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 3]):
        yield plain | {"parts": [first, second | {"values": other}]}
    yield plain | {"parts": [first | {"shape": [3]}, second]}


@pytest.mark.parametrize("guide", [None, "network"])
def test_a_packing_from_a_hostile_file(guide: str | None, tmp_path: Any) -> None:
    """It is refused, or answers as it did; embeddings know the values seen, too."""
    fast, path = quick(posterior(), FORMS["dict"], guide=guide), tmp_path / "student"
    fast.save(path)
    tensors, whole = files.read(path, KIND)
    refused, expected = 0, fast.dirichlet(FORMS["dict"]).mean
    for form in damages(whole["form"]):
        files.write(path, KIND, tensors, {**whole, "form": form})
        try:
            again = OnePassPredictive.load(path)
        except ValueError as error:
            assert "description is whole" in str(error)
            refused += 1
        else:
            assert form == {**whole["form"], "parts": form["parts"]}
            names = [part["name"] for part in form["parts"]]
            given = dict(zip(names, FORMS["dict"].values(), strict=True))
            try:
                assert torch.equal(again.dirichlet(given).mean, expected)
            except ValueError as error:  # it claims to have seen fewer
                assert "has seen" in str(error) and guide is None
    assert refused > 70


def with_a_new_group(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
    """Group G is one that no row belonged to: a level drawn from the population."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("groups", G):
        alpha = pyro.sample("alpha", dist.Normal(0.0, scale))
    new = pyro.sample("new", dist.Normal(0.0, scale), infer={"epistemic": True})
    levels = torch.cat([alpha, new[..., None]], -1)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=levels[group] + x[:, 0]), obs=y)


@pytest.mark.slow
def test_a_new_group_is_answered_by_its_population() -> None:
    torch.manual_seed(0)
    scale = 0.8 + 0.4 * torch.rand(400)
    source = Predictive(with_a_new_group, {"scale": scale, "alpha": ALPHA[:1].expand(400, -1)})
    x = {"x": torch.randn(300, 2), "group": torch.randint(G + 1, (300,))}
    fast = quick(source, x, num_steps=400)
    zeros = torch.zeros(G + 1, 2)
    found = fast.dirichlet({"x": zeros, "group": torch.arange(G + 1)})
    # Known groups have one level each; the new one has the variance of sigmoid(N(0, scale)).
    draws = torch.sigmoid(scale[:, None] * torch.randn(400, 1000))
    assert found.variance[G, 1] == pytest.approx(float(draws.var()), rel=0.25)  # 400 steps
    assert found.variance[:G, 1].max() < 0.1 * found.variance[G, 1]
