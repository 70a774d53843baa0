"""Random functions beside the last layers of joint draws."""

from __future__ import annotations

import copy

import pytest
import torch

from pyro_opu.guides.joint import DrawHeads, RandomWaves

torch.manual_seed(0)
U = torch.randn(6, 5)


@pytest.fixture
def heads() -> DrawHeads:
    torch.manual_seed(1)
    found = DrawHeads(5, 7, 3, waves=2)
    with torch.no_grad():
        found.weight.normal_()
    return found


@torch.no_grad()
def test_covariance_over_draws_is_that_of_the_docstring() -> None:
    torch.manual_seed(2)
    waves = RandomWaves(5, 40_000, 2)
    drawn = waves(U)
    place, height = waves.place(U), waves.height(U)
    near = (-torch.cdist(place, place).square() / 2).exp()
    expected = height.mT[:, :, None] * height.mT[:, None] * near
    # Products of two waves have a deviation of at most about the squared height: 8 deviations.
    bound = 8 * float(height.max()) ** 2 / 200
    for k in range(2):
        assert (drawn[..., k].mT @ drawn[..., k] / 40_000 - expected[k]).abs().max() < bound
        assert (near < 0.9).any()
    assert drawn.mean(0).abs().max() < bound
    across = drawn[..., 0].mT @ drawn[..., 1] / 40_000  # outputs have waves of their own
    assert across.abs().max() < bound


@torch.no_grad()
def test_waves_begin_at_the_amplitude_asked_for() -> None:
    torch.manual_seed(3)
    waves = RandomWaves(5, 4, 2)
    waves.begin(torch.tensor([0.3, 20.0]))
    assert waves.height(torch.zeros(1, 5))[0] == pytest.approx([0.3, 20.0], rel=0.2)
    waves.begin(torch.zeros(2))
    assert waves(U).abs().max() < 1e-4


@torch.no_grad()
def test_a_draw_is_one_function(heads: DrawHeads) -> None:
    every = heads(U)
    assert torch.equal(heads(U), every)
    some = torch.tensor([1, 4])
    torch.testing.assert_close(heads(U, some), every[some])
    torch.testing.assert_close(torch.cat([heads(U[:2]), heads(U[2:])], 1), every)
    assert heads.waves is not None
    along, phase = heads.waves.directions, heads.waves.phases
    slowly = []
    for s in range(7):
        for u, place, height in zip(U, heads.waves.place(U), heads.waves.height(U), strict=True):
            for k in range(3):
                each = [torch.cos(along[s, m] @ place + phase[s, m]) for m in (k, 3 + k)]
                head = heads.weight[s, k] @ heads.layers(u) + heads.bias[s, k]
                slowly.append(height[k] * sum(each) + head)
    torch.testing.assert_close(every, torch.stack(slowly).view(7, 6, 3), rtol=1e-4, atol=1e-5)


def test_config_makes_heads_of_the_same_shape(heads: DrawHeads) -> None:
    again = DrawHeads(**heads.config)
    again.load_state_dict(heads.state_dict())
    assert torch.equal(again(U), heads(U))
    plain = DrawHeads(5, 7, 3)
    assert plain.waves is None and "waves" not in plain.config


def test_waves_are_added_to_a_copy() -> None:
    plain = DrawHeads(5, 7, 3)
    before = copy.deepcopy(plain.state_dict())
    waved = plain.with_waves()
    with torch.no_grad():
        waved.weight.add_(1)
    assert plain.waves is None and waved.waves is not None
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
