"""The Dirichlet guide: its h and g, its soft clamp and its recalibration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pyro
import pytest
import torch
from posteriors import GUIDES, C, table
from torch import Tensor, nn

from pyro_opu import PredictiveGuide
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE

shared, _ = GUIDES["dirichlet"]
separate, _ = GUIDES["dirichlet, two networks"]
DIRICHLET = [name for name in GUIDES if "dirichlet" in name]
every_guide = pytest.mark.parametrize(
    ("build", "inputs"), [GUIDES[name] for name in DIRICHLET], ids=DIRICHLET
)


@every_guide
@pytest.mark.parametrize("rows", [1, 6])
def test_shapes_and_values(
    build: Callable[[], PredictiveGuide], inputs: Callable[[], Tensor], rows: int
) -> None:
    torch.manual_seed(0)
    guide, x = build(), inputs()[:rows]
    dirichlet = guide(x)
    assert isinstance(dirichlet, pyro.distributions.Dirichlet)
    assert dirichlet.batch_shape == (rows,) and dirichlet.event_shape == (C,)
    assert dirichlet.sample((3,)).shape == (3, rows, C)
    h, g = guide.mean(x), guide.log_concentration(x)
    assert h.shape == (rows, C) and g.shape == (rows,)
    # float32 rounding of a softmax, an exp and their product.
    torch.testing.assert_close(dirichlet.concentration, h * g.exp()[:, None], rtol=1e-5, atol=0)
    torch.testing.assert_close(dirichlet.mean, h, rtol=1e-5, atol=0)
    torch.testing.assert_close(dirichlet.log_concentration, g, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(h.sum(-1), torch.ones(rows), rtol=1e-5, atol=0)


@every_guide
def test_repr_says_what_it_is(
    build: Callable[[], PredictiveGuide], inputs: Callable[[], Tensor]
) -> None:
    guide = build()
    assert "alpha(x) = h(x) exp(g(x))" in repr(guide)
    assert ("one trunk, two heads" if guide.shared else "two networks") in repr(guide)


def test_default_guide_takes_inputs_of_another_float_dtype() -> None:
    """float64 is centred before it is rounded to the weights' float32, float16 after."""
    x = torch.randn(6, 5, dtype=torch.float64)
    torch.manual_seed(0)
    guide = PredictiveGuide.for_inputs(x, C)
    torch.manual_seed(0)
    far = PredictiveGuide.for_inputs(x + 1e9, C)
    assert torch.equal(guide(x.half()).log_alpha, guide(x.half().float()).log_alpha)
    expected = guide(x.float()).log_alpha
    assert expected.dtype == torch.float32
    # Rounding: 1.2e-7 of x in float32, 1.2e-7 of 1e9 + x in float64, and that of four layers.
    for answer in (guide(x), far(x + 1e9)):
        torch.testing.assert_close(answer.log_alpha, expected, rtol=0.0, atol=2e-6)


def test_relabelling_classes_permutes_alpha() -> None:
    guide, x, order = shared(), table(), torch.tensor([2, 0, 3, 1])
    other = copy.deepcopy(guide)
    with torch.no_grad():
        for mine, theirs in zip(
            other.mean_head.parameters(), guide.mean_head.parameters(), strict=True
        ):
            mine.copy_(theirs[order])
    # log_softmax sums in another order.
    torch.testing.assert_close(other(x).log_alpha, guide(x).log_alpha[:, order], rtol=1e-5, atol=0)


def test_constant_features_are_harmless() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 5)
    x[:, 1], x[:, 3] = 0.1, 1e6
    guide = PredictiveGuide.for_inputs(x, C)
    assert guide(x).log_alpha.isfinite().all()
    outside = x.clone()
    outside[:, 1] = 2.1  # the typical deviation of the others is 1, so this is 2 deviations
    before, after = guide(x).log_concentration, guide(outside).log_concentration
    assert (after - before).abs().max() < 2.0  # an untrained network's slope is below 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_soft_clamp_is_the_identity_in_the_middle(dtype: torch.dtype) -> None:
    low, high = LOG_CONCENTRATION_RANGE
    g = torch.linspace(low + 1, high - 1, 200, dtype=dtype)
    distance = torch.minimum(g - low, high - g)
    # softplus(-d) < exp(-d) on each side; and rounding of numbers up to 24.
    allowed = (-distance).exp() + 40 * torch.finfo(dtype).eps
    assert ((soft_clamp(g, low, high) - g).abs() < allowed).all()


def test_soft_clamp_keeps_its_bounds_and_order() -> None:
    low, high = LOG_CONCENTRATION_RANGE
    far = torch.tensor([30.0, 1e3, 1e6, 1e10, 3e38, math.inf])
    g = torch.cat([-far.flip(0), torch.linspace(-25, 30, 100), far])
    value = soft_clamp(g, low, high)
    assert (value >= low).all() and (value <= high).all()
    assert (value.diff() >= -4e-6).all()  # float32 rounding of numbers up to 24
    assert value[0] == low and value[-1] == high


def test_soft_clamp_gradient_is_alive_at_the_ends() -> None:
    low, high = LOG_CONCENTRATION_RANGE
    g = torch.tensor([low - 5, low, high, high + 5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(soft_clamp(g, low, high).sum(), g)
    expected = torch.sigmoid(high - g) - torch.sigmoid(low - g)
    torch.testing.assert_close(slope, expected.detach())
    assert slope[0] > 0.006 and slope[3] > 0.006 and abs(slope[1] - 0.5) < 1e-9
    assert torch.autograd.gradcheck(lambda t: soft_clamp(t, low, high), g)


def test_recalibration_composes() -> None:
    guide, x = shared(), table()
    g = guide.log_concentration(x)
    guide.recalibrate(0.3)
    guide.recalibrate(-0.1)
    # At g near 0, 8 inside the lower end: the clamp moves it by less than 2 exp(-6) = 0.005.
    torch.testing.assert_close(guide.log_concentration(x), g + 0.2, rtol=0, atol=0.005)
    torch.testing.assert_close(guide.shift, torch.tensor(0.2))
    torch.testing.assert_close(guide(x).log_concentration, guide.log_concentration(x))


def test_recalibration_leaves_the_mean_alone() -> None:
    guide, x = separate(), table()
    before = guide(x)
    guide.recalibrate(1.0)
    assert torch.equal(guide(x).log_mean, before.log_mean)
    assert not torch.equal(guide(x).log_concentration, before.log_concentration)


def test_recalibration_survives_copies_and_is_taken_back_by_a_state() -> None:
    guide, x = shared(), table()
    plain = copy.deepcopy(guide.state_dict())
    before = guide.log_concentration(x)
    guide.recalibrate(0.3)
    after = guide.log_concentration(x)
    assert torch.equal(copy.deepcopy(guide).log_concentration(x), after)
    guide.load_state_dict(plain)
    assert torch.equal(guide.log_concentration(x), before)


def test_recalibration_in_float64_keeps_its_digits() -> None:
    guide = shared().double()
    guide.recalibrate(0.2)
    assert guide.shift.item() == 0.2


@pytest.mark.gpu
def test_moves_to_the_gpu() -> None:
    guide, x = separate(), table()
    guide.recalibrate(0.1)
    expected = guide(x).log_alpha
    # float32 matrix products on the GPU sum in another order.
    found = guide.cuda()(x.cuda()).log_alpha.cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    built = PredictiveGuide.for_inputs(x.cuda(), C)
    assert built(x.cuda()).log_alpha.is_cuda


@pytest.mark.parametrize("g", [-6.0, 0.0, 14.0])
def test_draws_that_are_labels_and_draws_that_agree_are_within_the_range(g: float) -> None:
    """Nearly as it is asked for: a four-hundredth of a label, and a million of them."""
    guide = PredictiveGuide(nn.Flatten(), 2, 3)
    guide.start_at(g)
    nn.init.zeros_(guide.concentration_head.weight)
    assert guide(torch.ones(1, 2)).log_concentration.item() == pytest.approx(g, abs=0.2)
