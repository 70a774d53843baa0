"""Heads that read a network's features in one product with the small network beside them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from taught import as_network
from torch import Tensor, nn

from pyro_opu.export.program import StudentProgram, trace
from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.fused import fused
from pyro_opu.guides.networks import MOST_OFF
from pyro_opu.guides.plug_in import MANY, SUMMED

X = torch.randn(2 * MANY, 6, generator=torch.Generator().manual_seed(0))


def student() -> PredictiveGuide:
    """One that begins as a dropout network 6-40-3; its heads and recalibration are made up."""
    torch.manual_seed(0)
    guide = as_network(X, 3)
    with torch.no_grad():
        for head in (guide.mean_head, guide.concentration_head):
            head.weight.normal_()
            head.bias.normal_()
    guide.recalibrate(-0.4)
    return guide


def side_by_side(guide: PredictiveGuide, x: Tensor) -> list[Tensor]:
    """Its answer from features that are laid side by side."""
    features = guide.trunk(x)
    log_mean = guide.mean_head(features).log_softmax(-1)
    return [log_mean, guide._bounded(guide.concentration_head(features))]


def answer(guide: nn.Module, x: Tensor) -> list[Tensor]:
    found = guide(x)
    return [found.log_mean, found.log_concentration]


def assert_same_slopes(guide: PredictiveGuide, x: Tensor) -> None:
    """A loss of the answer has the slopes that features side by side give it."""
    slopes = []
    for found in (answer(guide, x), side_by_side(guide, x)):
        loss = found[0].square().sum() + found[1].square().sum()
        slopes.append(torch.autograd.grad(loss, list(guide.parameters())))
    torch.testing.assert_close(*slopes)


def run_by(guide: nn.Module, x: Tensor) -> list[str]:
    with torch.profiler.profile() as found:
        guide(x)
    return [event.name for event in found.events()]


@pytest.mark.parametrize("rows", [1, MANY - 1, MANY, 2 * MANY])
@pytest.mark.parametrize("finish", [lambda guide: guide, fused], ids=["trained", "fused"])
def test_answers_and_gradients_are_those_of_features_side_by_side(rows, finish):
    guide = student().double()
    x = X[:rows].double()
    torch.testing.assert_close(answer(finish(guide), x), side_by_side(guide, x))  # rounding
    if finish is not fused:
        assert_same_slopes(guide, x)


def test_no_tensor_as_wide_as_all_features_is_made():
    """Products: the network's own, one with all that reads its features, and the small network."""
    guide = student()
    for each, rows in ((guide, MANY), (fused(guide), 1)):
        done = run_by(each, X[:rows])
        assert done.count("aten::addmm") == 4
        assert "aten::mul_" not in done  # of a standardisation of its own
    assert "aten::cat" not in done
    few = run_by(guide, X[: MANY - 1])
    assert "aten::mul_" in few and "aten::cat" in few


@pytest.mark.parametrize("rows", [1, 9, 64])
def test_few_products_are_sums_where_a_compiler_for_a_gpu_knows_the_rows(rows, monkeypatch):
    """The network's own product and the one of its features are left; and the same numbers."""
    guide, x = fused(student()), X[:rows]
    expected = answer(guide, x)
    guide.trunk.rows = rows
    assert run_by(guide, x).count("aten::addmm") == 4  # without a compiler a product is quicker
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert run_by(guide, x).count("aten::addmm") == 2
    torch.testing.assert_close(answer(guide, x), expected)  # rounding
    guide.trunk.rows = SUMMED
    assert run_by(guide, x).count("aten::addmm") == 4


def test_features_far_from_zero_are_centred_first():
    guide = student()
    standardize = guide.trunk.standardize
    assert guide.trunk.merges()
    standardize.shift.fill_(1.1 * MOST_OFF)
    standardize.scale.fill_(1.0)
    standardize.load_state_dict(standardize.state_dict())
    assert not guide.trunk.merges() and not fused(guide).trunk.merges()
    x = X[:MANY]
    torch.testing.assert_close(answer(guide, x), side_by_side(guide, x), rtol=0, atol=0)


def test_a_file_says_whether_they_merge():
    guide = student()
    loaded = PredictiveGuide.from_config(guide.config)
    assert not loaded.trunk.merges()  # before it is known where the features lie
    loaded.load_state_dict(guide.state_dict())
    assert loaded.trunk.merges()
    assert all(torch.equal(*pair) for pair in zip(answer(loaded, X), answer(guide, X), strict=True))


def test_half_precision_runs_the_trunk_by_itself():
    halved = copy.deepcopy(student()).bfloat16()
    assert not halved.trunk.merges()


def test_what_is_put_in_the_place_of_a_head_or_hooked_to_the_trunk_is_run():
    doubled, hooked = student(), student()
    doubled.mean_head = nn.Sequential(doubled.mean_head, nn.Tanh())
    torch.testing.assert_close(answer(doubled, X), side_by_side(doubled, X), rtol=0, atol=0)
    heard: list[Tensor] = []
    hooked.trunk.register_forward_hook(lambda module, args, features: heard.append(features))
    answer(hooked, X)
    assert heard[0].shape == (len(X), hooked.trunk.num_features)


def test_a_trunk_that_stands_for_another_is_run():
    """Features are heard by whoever takes the place of the trunk, and their heads still answer."""

    class Heard(nn.Module):
        def __init__(self, trunk: nn.Module) -> None:
            super().__init__()
            self.trunk, self.features = trunk, None

        def forward(self, x: Tensor) -> Tensor:
            self.features = self.trunk(x)
            return self.features

    for guide in (student(), fused(student())):
        expected = answer(guide, X)
        guide.trunk = Heard(guide.trunk)
        torch.testing.assert_close(answer(guide, X), expected, rtol=1e-5, atol=1e-5)  # rounding
        assert guide.trunk.features.shape == (len(X), guide.trunk.trunk.num_features)


def frozen() -> PredictiveGuide:
    """One that has answered once, so that it keeps its merged weights."""
    guide = student().requires_grad_(False).eval()
    guide(X[:1])
    return guide


def test_weights_that_nobody_trains_are_merged_once():
    """So that it pays at one row too; what a network computes is written over where it may be."""
    done = run_by(frozen(), X[:1])
    assert done.count("aten::addmm") == 4 and "aten::relu_" in done
    assert not {"aten::cat", "aten::mul_", "aten::relu"} & set(done)


def raised(guide: PredictiveGuide, name: str) -> None:
    getattr(guide.trunk, name).weight.data = torch.ones_like(getattr(guide.trunk, name).weight)


CHANGES: dict[str, Callable[[PredictiveGuide], object]] = {
    "written": lambda guide: guide.mean_head.weight.mul_(2.0),
    "under inference": torch.inference_mode()(lambda guide: guide.mean_head.weight.mul_(2.0)),
    "loaded": lambda guide: guide.load_state_dict(hotter(guide)),
    "data": lambda guide: raised(guide, "temperature"),
    "double": lambda guide: guide.double(),
    "head": lambda guide: setattr(guide, "mean_head", nn.Linear(guide.trunk.num_features, 3)),
    "layer": lambda guide: guide.trunk.layers.append(nn.Tanh()),
    "parameter": lambda guide: setattr(guide.trunk.layers[0], "bias", nn.Parameter(torch.ones(64))),
    "moved": lambda guide: guide.recalibrate(1.5),
    "scaled": lambda guide: guide.trunk.standardize.shift.add_(0.5),
    "hooked": lambda guide: guide.trunk.register_forward_hook(lambda *given: 2 * given[-1]),
    "network": lambda guide: guide.trunk.network.graph.w0.mul_(3.0),
}


def hotter(guide: PredictiveGuide) -> dict[str, Tensor]:
    state = guide.state_dict()
    return {**state, "trunk.temperature.weight": state["trunk.temperature.weight"] + 0.3}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_that_change_are_merged_again(change):
    guide = frozen()
    before = answer(guide, X[:9])
    change(guide)
    guide.requires_grad_(False)
    x = X[:9].to(guide.mean_head.weight.dtype)
    found = answer(guide, x)
    torch.testing.assert_close(found, side_by_side(guide, x), rtol=1e-4, atol=1e-4)  # rounding
    changed = (found[0] - before[0]).abs().max() + (found[1] - before[1]).abs().max()
    assert changed > 1e-2 or x.dtype == torch.float64


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda guide: pickle.loads(pickle.dumps(guide))], ids=["copy", "file"]
)
def test_a_copy_merges_its_own_weights(copied):
    guide = frozen()
    own, expected = copied(guide), answer(guide, X[:9])
    own.mean_head.weight.zero_()
    torch.testing.assert_close(answer(own, X[:9]), side_by_side(own, X[:9]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(answer(guide, X[:9]), expected, rtol=0, atol=0)


def test_training_goes_on_after_answers():
    guide = frozen().double()
    guide(X[:9].double())
    guide.requires_grad_(True)
    assert_same_slopes(guide, X[:9].double())
    guide.requires_grad_(False)
    slopes = []
    for way in (answer, side_by_side):
        x = X[:9].double().requires_grad_()
        slopes += torch.autograd.grad(sum(each.square().sum() for each in way(guide, x)), x)
    torch.testing.assert_close(*slopes)


def test_weights_that_a_fused_optimizer_moved_are_merged_again():
    """It writes past the count of changes that torch keeps."""
    guide = frozen()
    guide(X[:9])
    adam = torch.optim.Adam(guide.requires_grad_(True).parameters(), lr=0.1, fused=True)
    answer(guide, X[:9])[0].sum().backward()
    adam.step()
    guide.requires_grad_(False)
    torch.testing.assert_close(
        answer(guide, X[:9]), side_by_side(guide, X[:9]), rtol=1e-4, atol=1e-4
    )


def tempered() -> PredictiveGuide:
    """One of a linear head over six inputs with too many moments; all weights are made up."""
    torch.manual_seed(0)
    sizes = {"size": 6, "outputs": 4, "rank": 3, "hidden": [16, 16]}
    trunk = {"kind": "tempered", "input_shape": [6], "network": None, **sizes}
    guide = PredictiveGuide.from_config({"trunk": trunk, "num_classes": 4, "shared": True})
    with torch.no_grad():
        for weight in guide.parameters():
            weight.normal_().div_(3)
        guide.trunk.factor.normal_()
        guide.trunk.rest.uniform_()
        guide.trunk.standardize.fit(3 + 2 * X, (0,))
    return guide


@pytest.mark.parametrize("rows", [1, MANY - 1, MANY, 2 * MANY])
@pytest.mark.parametrize("finish", [lambda guide: guide, fused], ids=["trained", "fused"])
def test_a_temperature_is_taken_of_what_heads_say(rows, finish):
    """The answers, and the slopes, are those of features at this temperature side by side."""
    guide = tempered().double()
    x = X[:rows].double()
    torch.testing.assert_close(answer(finish(guide), x), side_by_side(guide, x))  # rounding
    if finish is not fused:
        assert_same_slopes(guide, x)


@pytest.mark.parametrize("begun", [student, tempered])
def test_a_file_makes_no_tensor_as_wide_as_all_features(begun):
    """It has the pass of fewer operations, and no power, which runtimes are slow at."""
    guide = begun()
    steps = trace(StudentProgram(guide, (6,), ["mean", "epistemic"]), (X,)).graph.nodes
    made = [step.meta.get("val") for step in steps if step.op == "call_function"]
    shapes = [each.shape for each in made if isinstance(each, Tensor) and each.ndim == 2]
    widths = [shape[1] for shape in shapes if not isinstance(shape[0], int)]  # N is free
    assert len(widths) > 20 and max(widths) < guide.trunk.num_features
    assert not [step for step in steps if "pow" in str(step.target)]
