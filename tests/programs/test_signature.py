"""Models that are not called ``model(x)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu import as_teacher, distill, fidelity
from pyro_opu.programs.signature import Picked, call_of, first_argument

W = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
X = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))


def second(scale: float | None, x: Tensor, y: Tensor | None = None) -> Tensor:
    assert y is None
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=x @ w * (scale or 1.0)), obs=y)


def keyword(y: Tensor | None = None, *, x: Tensor) -> Tensor:
    return second(None, x, y)


def test_input_by_keyword_only_is_swapped() -> None:
    predictive = Predictive(keyword, {"w": W})
    pick = {"inputs": lambda y=None, *, x: x}
    fast = distill_flat(predictive, X, **pick, num_steps=4, progress=False, seed=0)
    assert fast(x=X)["obs"].shape == predictive(x=X)["obs"].shape


def test_input_in_second_place_is_swapped() -> None:
    predictive = Predictive(second, {"w": W})
    fast = distill_flat(
        predictive, X, inputs=lambda scale, x: x, num_steps=4, progress=False, seed=0
    )
    teacher = as_teacher(predictive, inputs=lambda scale, x: x)
    found, expected = (
        fidelity(fast, source, X, wasserstein_inputs=0, seed=0).kl
        for source in (teacher, lambda x: (x @ W).softmax(-1))
    )
    assert found == pytest.approx(expected, rel=1e-4) and expected > 0.01  # float32
    mine, theirs = fast(1.0, X), predictive(1.0, X)
    assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {
        k: (v.shape, v.dtype) for k, v in theirs.items()
    }


def test_call_of_finds_the_place_by_position_and_by_keyword() -> None:
    for picker in (lambda scale, x, y=None: x, lambda *args: args[1], lambda **all: all["x"]):
        assert call_of(picker, second) == Picked("x")
    assert call_of(lambda *args: args[1], lambda *args: second(*args)) == Picked(1)
    assert Picked(1)(X) == ((None, X), {}) and Picked("x")(X) == ((), {"x": X})
    assert call_of(None, second) is first_argument


def test_defaults_of_other_arguments_are_kept() -> None:
    def model(scale: float | None, depth: int = 3, x: Tensor | None = None) -> None:
        assert scale is None and depth == 3
        second(scale, x)

    teacher = as_teacher(Predictive(model, {"w": W}), inputs=lambda scale, depth, x: x)
    torch.testing.assert_close(teacher.probs(X), (X @ W).softmax(-1))


def in_a_batch(batch: dict[str, Tensor], y: Tensor | None = None) -> Tensor:
    return second(None, batch["x"] + batch["shift"], y)


def test_inputs_that_do_more_than_pick_need_a_way_back() -> None:
    predictive = Predictive(in_a_batch, {"w": W})
    pick = {"inputs": lambda batch: batch["x"]}
    back = {"arguments": lambda x: (({"x": x, "shift": 1.0},), {})}
    with pytest.raises(ValueError, match="pass the way back, arguments="):
        distill_flat(predictive, X, **pick, num_steps=4, progress=False)
    teacher = as_teacher(predictive, **pick, **back)
    torch.testing.assert_close(teacher.probs(X), ((X + 1) @ W).softmax(-1))
    fast = distill_flat(predictive, X, **pick, **back, num_steps=4, progress=False, seed=0)
    assert fast({"x": X[:3], "shift": torch.ones(3, 1)})["obs"].shape == (5, 3)


def test_arguments_take_several_inputs_as_they_are() -> None:
    predictive = Predictive(in_a_batch, {"w": W})
    teacher = as_teacher(predictive, arguments=lambda x: ([dict(x)], {}))
    found = teacher.probs({"x": X, "shift": torch.ones(len(X), 1)})
    torch.testing.assert_close(found, ((X + 1) @ W).softmax(-1))


@pytest.mark.parametrize(("wrong", "found"), [(lambda x: x, "Tensor"), (lambda x: (x, 1), "tuple")])
def test_arguments_that_are_none(wrong: Callable[[Tensor], Any], found: str) -> None:
    with pytest.raises(ValueError, match=rf"`arguments` must return \(args, kwargs\).*got {found}"):
        as_teacher(Predictive(second, {"w": W}), arguments=wrong).probs(X)
    with pytest.raises(TypeError, match="`arguments` must be a callable x -> .args, kwargs."):
        distill_flat(Predictive(second, {"w": W}), X, arguments=3)


def test_a_model_that_cannot_be_run_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="must run as model.x.*None for x.*pass inputs="):
        distill(Predictive(second, {"w": W}), X, num_steps=4, progress=False)
