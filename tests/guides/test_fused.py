"""Fused guides: the answers of the guide they are made from, and what must not be merged."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from posteriors import GUIDES, C, D
from torch import Tensor, nn

from pyro_opu.distributions import Answer
from pyro_opu.guides import GUIDES as FAMILIES
from pyro_opu.guides import PredictiveGuide, SingleHeadGuide
from pyro_opu.guides.fused import Folded, OneHeadGuide, fused, is_fused
from pyro_opu.guides.networks import MOST_OFF, Convolutions, Perceptron, Standardize
from pyro_opu.guides.normal import GaussianGuide, NormalMixtureGuide

Build, Inputs = Callable[[], nn.Module], Callable[[int], Tensor]


def assert_same(found: Answer, expected: Answer, tolerance: float) -> None:
    """To a tolerance relative to numbers above one, absolute below."""
    mine, theirs = found.as_tensors(), expected.as_tensors()
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert mine[name].shape == value.shape and mine[name].dtype == value.dtype, name
        torch.testing.assert_close(mine[name], value, rtol=tolerance, atol=tolerance, msg=name)


def off_centre(x: Tensor) -> Tensor:
    """Inputs with a location and a scale to fold."""
    return 3 * x + 7


def at_work(guide: nn.Module, x: Tensor) -> nn.Module:
    """The guide standardised by these inputs, and recalibrated, so that all that folds is there."""
    for module in guide.modules():
        if hasattr(module, "fit_scale"):
            module.fit_scale(x)
    if isinstance(guide, PredictiveGuide):
        guide.recalibrate(-0.4)
    return guide


@pytest.mark.parametrize(("build", "inputs"), GUIDES.values(), ids=GUIDES)
class TestEveryGuide:
    def test_float64(self, build: Build, inputs: Inputs) -> None:
        x = off_centre(inputs(6).double())
        guide = at_work(build().double(), x)
        assert_same(fused(guide)(x), guide(x), 1e-12)

    @pytest.mark.parametrize("rows", [1, 6])
    def test_float32(self, build: Build, inputs: Inputs, rows: int) -> None:
        """Both are within rounding of float64, of first products up to ten times as large."""
        x = off_centre(inputs(rows))
        guide = at_work(build(), off_centre(inputs(9)))
        assert_same(fused(guide)(x), guide(x), 1e-5)

    def test_a_frozen_copy(self, build: Build, inputs: Inputs) -> None:
        x = off_centre(inputs(6))
        guide = at_work(build(), x)
        before, state = guide(x), copy.deepcopy(guide.state_dict())
        quick = fused(guide)
        kept = quick(x)
        assert not any(p.requires_grad for p in quick.parameters()) and not quick.training
        assert all(torch.equal(value, state[name]) for name, value in guide.state_dict().items())
        for parameter in guide.parameters():
            parameter.data.zero_()
        assert_same(quick(x), kept, 0.0)
        assert_same(kept, before, 1e-5)

    def test_twice_is_once(self, build: Build, inputs: Inputs) -> None:
        x = off_centre(inputs(6))
        once = fused(at_work(build(), x))
        twice = fused(once)
        assert type(twice) is type(once)
        assert_same(twice(x), once(x), 0.0)


def operations(guide: nn.Module, x: Tensor) -> list[str]:
    """Operations on tensors in a pass, views left out."""
    with torch.profiler.profile() as found:
        guide(x)
    names = [event.name for event in found.events()]
    return [n for n in names if n in ("aten::addmm", "aten::sub", "aten::mul_", "aten::mul")]


@pytest.mark.parametrize("family", [*FAMILIES.values(), GaussianGuide, NormalMixtureGuide])
def test_nothing_is_left_to_do_before_the_first_layer(family: type) -> None:
    """Three layers, two of the trunk and one head, and no other product or difference of x."""
    x = off_centre(torch.randn(9, D))
    sizes = () if issubclass(family, (GaussianGuide, NormalMixtureGuide)) else (C,)
    guide = at_work(family.for_inputs(x, *sizes, hidden=(8, 8)), x)
    quick = fused(guide)
    assert isinstance(quick.trunk.standardize, Folded)
    assert isinstance(quick, OneHeadGuide if family is PredictiveGuide else family)
    assert quick.head.weight.shape[1] == 8
    assert operations(quick, x).count("aten::addmm") == 3
    done = operations(quick.trunk, x)
    assert done == ["aten::addmm"] * 2
    assert operations(guide.trunk, x) == ["aten::sub", "aten::mul_", *done]


def test_by_hand() -> None:
    """One feature of location 4 and scale 2: 3 (x - 4) 2 + 1 = 6 x - 23."""
    trunk = Perceptron((1,), (1,))
    trunk.standardize.shift.fill_(4.0)
    trunk.standardize.scale.fill_(2.0)
    trunk.layers[0].weight.data.fill_(3.0)
    trunk.layers[0].bias.data.fill_(1.0)
    quick = fused(SingleHeadGuide(trunk, 1, 2)).trunk
    assert quick.layers[0].weight.item() == 6.0 and quick.layers[0].bias.item() == -23.0


def test_the_last_row_holds_the_recalibration() -> None:
    guide = PredictiveGuide(nn.Flatten(), D, C)
    guide.recalibrate(3.0)
    quick = fused(guide)
    assert torch.equal(quick.head.weight[:C], guide.mean_head.weight)
    assert torch.equal(quick.head.weight[C:], guide.concentration_head.weight)
    torch.testing.assert_close(quick.head.bias[C:], guide.concentration_head.bias + 3)


# What is not merged ----------------------------------------------------------------------------


def time_stamps(spread: float) -> Tensor:
    """Milliseconds since 1970 of a spread, beside a feature about zero."""
    stamps = 1.7e12 + spread * torch.randn(200, 1, dtype=torch.float64)
    return torch.cat([stamps, torch.randn(200, 1, dtype=torch.float64)], 1)


def test_time_stamps_are_centred_before_they_are_rounded() -> None:
    x = time_stamps(1e4)
    guide = PredictiveGuide.for_inputs(x.float(), C, hidden=(8,))
    guide.trunk.fit_scale(x)
    quick = fused(guide)
    assert type(quick.trunk.standardize) is Standardize and isinstance(quick, OneHeadGuide)
    assert_same(quick(x), guide(x), 1e-6)
    assert quick(x).log_mean.std(0).min() > 0.01  # the stamps are told apart


@pytest.mark.parametrize(("location", "folds"), [(0.9, True), (1.1, False), (-1.1, False)])
def test_the_limit(location: float, folds: bool) -> None:
    """At the limit itself float32 loses four bits and no more: 16 times the error of centring."""
    x = torch.randn(500, 20)
    x = (x - x.mean(0)) / x.std(0, correction=0) + MOST_OFF * location
    guide = SingleHeadGuide.for_inputs(x, C, hidden=(64,))
    quick = fused(guide)
    assert isinstance(quick.trunk.standardize, Folded) == folds
    exact = copy.deepcopy(guide).double()(x.double()).log_mean
    errors = [(each(x).log_mean - exact).square().mean().sqrt() for each in (guide, quick)]
    assert errors[1] <= (MOST_OFF if folds else 1.0) * errors[0]


def test_beyond_the_limit_digits_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The criterion is needed: folded all the same, time stamps lose their answers."""
    monkeypatch.setattr("pyro_opu.guides.networks.MOST_OFF", float("inf"))
    x = time_stamps(1e4)
    guide = SingleHeadGuide.for_inputs(x.float(), C, hidden=(8,))
    guide.trunk.fit_scale(x)
    quick = fused(guide)
    assert isinstance(quick.trunk.standardize, Folded)
    assert (quick(x).log_mean - guide(x).log_mean).abs().max() > 0.1


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_units_at_the_ends_of_float32(unit: float) -> None:
    x = unit * torch.randn(50, D)
    guide = SingleHeadGuide.for_inputs(x, C, hidden=(8,))
    quick = fused(guide)
    assert not is_fused(quick)
    assert_same(quick(x), guide(x), 0.0)


class Bare(Convolutions):
    """Convolutions whose first adds no border."""

    def __init__(self, padding: int | str) -> None:
        super().__init__((2, 8, 8), (4, 6, 8))
        first = nn.Conv2d(2, 4, 3, stride=2 if padding == 0 else 1, padding=padding)
        self.layers = nn.Sequential(first, nn.SiLU(), nn.Flatten(), nn.LazyLinear(8))


@pytest.mark.parametrize(("padding", "folds"), [(0, True), (1, False), ("same", False)])
def test_a_border_of_zeros_is_of_centred_inputs(padding: int | str, folds: bool) -> None:
    x = torch.randn(9, 2, 8, 8, dtype=torch.float64) * torch.tensor([2.0, 5.0]).view(2, 1, 1) + 3
    trunk = Bare(padding).double()
    trunk(x)
    trunk.fit_scale(x)
    guide = PredictiveGuide(trunk, 8, C).double()
    quick = fused(guide)
    assert isinstance(quick.trunk.standardize, Folded) == folds
    assert_same(quick(x), guide(x), 1e-12)


def test_half_precision_and_other_layers_stay() -> None:
    x = off_centre(torch.randn(9, D))
    half = SingleHeadGuide.for_inputs(x, C, hidden=(8,)).to(torch.bfloat16)
    assert not is_fused(fused(half))

    class Own(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers(self.standardize(self.shaped(x)) ** 2)

    own = Own((D,), (8,))
    own.fit_scale(x)
    guide = SingleHeadGuide(own, 8, C)
    assert not is_fused(fused(guide))
    assert_same(fused(guide)(x), guide(x), 0.0)


def test_a_head_of_ones_own() -> None:
    x, guide = torch.randn(9, D), PredictiveGuide(nn.Flatten(), D, C)
    guide.concentration_head = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 1))
    guide.recalibrate(1.0)
    assert not is_fused(fused(guide))
    assert_same(fused(guide)(x), guide(x), 0.0)


def test_a_trunk_that_says_what_its_first_layer_reads() -> None:
    class Beside(Perceptron):
        read_by_first = "other"

        def __init__(self) -> None:
            super().__init__((D,), (8,))
            self.other = Standardize((D,))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.layers(self.other(x.square())), self.standardize(x)], -1)

    x, trunk = off_centre(torch.randn(9, D, dtype=torch.float64)), Beside().double()
    trunk.standardize.fit(x, (0,))
    trunk.other.fit(x.square(), (0,))
    guide = PredictiveGuide(trunk, 8 + D, C).double()
    quick = fused(guide)
    assert isinstance(quick.trunk.other, Folded)
    assert type(quick.trunk.standardize) is Standardize
    assert_same(quick(x), guide(x), 1e-12)


def test_networks_that_share_layers() -> None:
    x = off_centre(torch.randn(9, D, dtype=torch.float64))
    one, other = Perceptron((D,), (8,)).double(), Perceptron((D,), (8,)).double()
    other.layers = one.layers
    one.fit_scale(x)
    other.fit_scale(2 * x + 1)
    guide = PredictiveGuide(one, 8, C, other).double()
    assert_same(fused(guide)(x), guide(x), 1e-12)


@pytest.mark.parametrize(("classes", "heads"), [(255, OneHeadGuide), (256, PredictiveGuide)])
def test_many_classes_keep_two_heads(classes: int, heads: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    guide = at_work(PredictiveGuide.for_inputs(x, classes), x)
    quick = fused(guide)
    assert type(quick) is heads
    assert_same(quick(x), guide(x), 1e-5)


@pytest.mark.parametrize(("classes", "one"), [(3, True), (100, True), (1000, False)])
def test_both_heads_are_one_product_unless_that_would_be_cut_for_many_classes(classes, one) -> None:
    guide = fused(PredictiveGuide.for_inputs(torch.randn(9, 2), classes, hidden=(8,)))
    assert isinstance(guide, OneHeadGuide) is one
