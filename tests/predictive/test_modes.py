"""A student answers alike in half precision, under autocast and vmap, and at large numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from flat import distill_flat
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vmap

from pyro_opu import OnePassPredictive, as_teacher, fidelity
from pyro_opu.guides.novelty import answer_and_features

pytestmark = pytest.mark.usefixtures("brief")

torch.manual_seed(0)
X, W = torch.randn(200, 3), torch.randn(40, 3, 4)
ROWS = X[:5]
FAMILIES = ["default", "mixture", "logistic_normal", "point", "implicit", "joint", "real", "labels"]


def draws(x: Tensor) -> Tensor:
    return (x @ W.to(x.dtype)).softmax(-1)


def real(x: Tensor) -> tuple[Tensor, Tensor]:
    loc = W[..., 0].to(x.dtype) @ x.mT
    return loc, torch.full_like(loc, 0.3)


def taught(family: str) -> OnePassPredictive:
    options: dict[str, Any] = {"num_steps": 20, "seed": 0, "progress": False, "batch_size": 32}
    if family == "real":
        return distill_flat(real, X, **options)
    if family == "labels":
        return distill_flat(lambda x: draws(x)[..., :2].softmax(-1), X, **options)
    return distill_flat(draws, X, guide=None if family == "default" else family, **options)


@pytest.fixture(scope="module", params=FAMILIES)
def fast(request: pytest.FixtureRequest) -> OnePassPredictive:
    return taught(request.param)


def mean(fast: OnePassPredictive, x: Tensor) -> Tensor:
    return fast.normal(x).mean if fast.num_classes is None else fast.dirichlet(x).mean


def answers(fast: OnePassPredictive, x: Tensor) -> dict[str, Tensor]:
    """All that a student says at rows."""
    torch.manual_seed(0)
    found = {"mean": mean(fast, x), "novelty": fast.novelty(x), "draws": fast.draws(x, 7, 0)}
    return found | fast.uncertainty(x).to_dict() | fast(x)


@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float16, 0.01), (torch.bfloat16, 0.08), (torch.float64, 1e-3)]
)
def test_every_floating_dtype(fast: OnePassPredictive, dtype: torch.dtype, off: float) -> None:
    """To the rounding of its weights; novelty, which looks at their last digits, to be in range."""
    other = copy.deepcopy(fast).to(dtype)
    for x in (ROWS.to(dtype), ROWS):
        right, found = fast.uncertainty(ROWS).to_dict(), other.uncertainty(x).to_dict()
        novelty = found.pop("novelty")
        assert novelty.dtype in (torch.float32, torch.float64)
        assert ((novelty >= 0) & (novelty <= 1)).all()
        for name, values in found.items():
            size = torch.maximum(right[name].abs().max(), right["total"].max())
            torch.testing.assert_close(
                values.float(), right[name], rtol=off, atol=off * float(size), msg=name
            )
        assert other(x).keys() == fast(ROWS).keys()
    source = real if fast.num_classes is None else as_of(fast)
    assert fidelity(other, source, X, seed=0, wasserstein_inputs=0).to_dict()


def as_of(fast: OnePassPredictive) -> Any:
    classes = fast.num_classes
    return lambda x: draws(x.float())[..., :classes].softmax(-1)


def test_an_autocast_of_the_caller_changes_nothing(fast: OnePassPredictive) -> None:
    right = answers(fast, ROWS)
    with torch.autocast("cpu", torch.bfloat16):
        found = answers(fast, ROWS)
    assert found.keys() == right.keys()
    for name, values in found.items():
        assert values.dtype == right[name].dtype
        assert torch.equal(values, right[name]), name


@pytest.mark.parametrize("family", ["default", "real"])
def test_nor_does_it_change_what_is_taught(family: str) -> None:
    right = taught(family)
    with torch.autocast("cpu", torch.bfloat16):
        fast = taught(family)
        taken = as_teacher(draws).probs(ROWS)
    assert torch.equal(taken, draws(ROWS).log().exp())
    for name, values in answers(fast, ROWS).items():
        assert torch.equal(values, answers(right, ROWS)[name]), name


def test_a_derivative_for_each_row(fast: OnePassPredictive) -> None:
    """torch.func's idiom, against the loop over rows."""

    def of_row(row: Tensor) -> Tensor:
        return mean(fast, row[None])[0]

    slow = torch.stack([torch.autograd.functional.jacobian(of_row, row) for row in ROWS])
    torch.testing.assert_close(vmap(jacrev(of_row))(ROWS), slow, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(vmap(jacfwd(of_row))(ROWS), slow, rtol=1e-4, atol=1e-6)
    for name in ("epistemic", "novelty"):

        def measure(row: Tensor, name: str = name) -> Tensor:
            value: Tensor = getattr(fast.uncertainty(row[None]), name)[0]
            return value

        x = ROWS.clone().requires_grad_()
        getattr(fast.uncertainty(x), name).sum().backward()
        found = vmap(grad(measure))(ROWS)
        torch.testing.assert_close(found, x.grad, rtol=1e-3, atol=1e-5)


def test_rows_under_vmap_are_checked_all_the_same(fast: OnePassPredictive) -> None:
    broken = ROWS.clone()
    broken[3, 1] = torch.nan
    with pytest.raises(ValueError, match="`x` must be finite; got NaN or infinity"):
        vmap(lambda row: mean(fast, row[None])[0])(broken)


@pytest.mark.parametrize("size", [1e10, 1e30, 3.3e38])
def test_far_out_answers_are_numbers(fast: OnePassPredictive, size: float) -> None:
    for x in (torch.full((1, 3), size), torch.full((1, 3), -size), size * ROWS.sign()):
        assert torch.isfinite(mean(fast, x)).all()
        assert (fast.novelty(x) > 0.99).all()
        assert torch.isfinite(fast.uncertainty(x).epistemic).all()


def test_novelty_keeps_its_digits(fast: OnePassPredictive) -> None:
    """Against float64, at rows of all kinds, and from features that are off in the last digit."""
    assert fast.detector is not None
    x = torch.cat([torch.zeros(1, 3), X, 3 * X[:20]])
    wide = copy.deepcopy(fast.detector).double()
    with torch.no_grad():
        features = answer_and_features(fast.guide, x)[1]
        assert features is not None
        found = fast.detector(x, features)
        nudged = fast.detector(x, features * (1 + 1e-7 * torch.randn_like(features).sign()))
        right = wide(x.double(), features.double())
    torch.testing.assert_close(found.double(), right, rtol=2e-3, atol=3e-5)
    torch.testing.assert_close(nudged, found, rtol=2e-3, atol=3e-5)
