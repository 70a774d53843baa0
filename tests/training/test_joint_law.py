"""Joint draws taught by the joint law of groups of inputs, where last layers cannot follow."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.joint import DrawHeads, JointGuide
from pyro_opu.objectives.joint import JointWitness
from pyro_opu.rng import RandomStream
from pyro_opu.training import joint as taught
from pyro_opu.training import tuned
from pyro_opu.training.joint import _by_law

S, STEPS = 120, 400


def functions(x: Tensor, count: int, seed: int, height: float = 2.0) -> Tensor:
    """Log class probabilities of random functions that vary quickly in three dimensions."""
    generator = torch.Generator().manual_seed(seed)
    along = 2 * torch.randn(count, x.shape[1], generator=generator)
    logit = height * torch.cos(x @ along.T + 7 * torch.rand(count, generator=generator)).T
    return torch.stack([-logit, logit], -1).log_softmax(-1)


def joint(x: Tensor, count: int) -> JointGuide:
    marginal = PredictiveGuide.for_inputs(x, 2, hidden=(16,))
    return JointGuide(marginal, DrawHeads(16 + x.shape[1], count, 2))


def test_draws_that_are_the_teachers_stay() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    guide = joint(x, 30)
    with torch.no_grad():
        guide.heads.weight.normal_()
        said = guide.draws(x)
    before = guide.heads.weight.clone()
    found = _by_law(guide, x, said, x[:64], said[:, :64], 20, RandomStream(0), False)
    assert found is guide
    assert torch.equal(guide.heads.weight, before)


def test_waves_that_are_no_nearer_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(60, 3)
    guide, said = joint(x, 20), functions(x, 20, 0)
    distances = iter([0.5, 0.5])
    monkeypatch.setattr(taught, "_apart", lambda *what: next(distances))
    assert _by_law(guide, x, said, x, said, 4, RandomStream(0), False) is guide
    assert not list(distances)  # both were asked for


def test_waves_whose_spread_is_further_off_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(60, 3)
    guide, said = joint(x, 20), functions(x, 20, 0)
    distances, spreads = iter([0.5, 0.4]), iter([1.0, 0.9])
    monkeypatch.setattr(taught, "_apart", lambda *what: next(distances))
    monkeypatch.setattr(taught, "_misspread", lambda *what: next(spreads))
    assert _by_law(guide, x, said, x, said, 4, RandomStream(0), False) is guide


def test_by_what_factor_the_spread_is_off() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 3)
    guide = joint(x, 20)
    with torch.no_grad():
        guide.heads.weight.normal_()
        own = guide.draws(x).exp()
    mean = own.mean(0)
    for half in (0.5, 0.97):  # of the deviations, and so a quarter of the variance
        found = taught._misspread(guide, x, (mean + half * (own - mean)).log())
        expected = max(-2 * math.log(half), tuned.RIGHT_SPREAD)
        assert found == pytest.approx(expected, rel=1e-3)


def test_a_single_draw_has_no_law() -> None:
    x = torch.randn(20, 3)
    guide, said = joint(x, 1), functions(x, 1, 0)
    assert _by_law(guide, x, said, x, said, 20, RandomStream(0), False) is guide


def test_a_witness_is_stepped_between_the_steps_of_the_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(60, 3)
    guide, said, counts = joint(x, 20), functions(x, 20, 0), {"loss": 0, "gain": 0}
    for name in counts:
        method = getattr(JointWitness, name)

        def counted(*args: Tensor, name: str = name, method: Any = method) -> Tensor:
            counts[name] += 1
            found: Tensor = method(*args)
            return found

        monkeypatch.setattr(JointWitness, name, counted)
    monkeypatch.setattr(tuned, "WITNESS_WARM", 5)
    monkeypatch.setattr(tuned, "GROUPS", 4)
    _by_law(guide, x, said, x, said, 12, RandomStream(0), False, learned=True)
    assert counts["loss"] == 5 + 2 + 2  # before each of three steps
    assert counts["gain"] == counts["loss"] + 3
