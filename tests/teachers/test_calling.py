"""Models that are not called ``model(x)``."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu import as_teacher, distill, fidelity
from pyro_opu.teachers.runs import call_of, first_argument

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
    fast = distill(predictive, X, **pick, num_steps=4, progress=False, seed=0)
    assert fast(x=X)["obs"].shape == predictive(x=X)["obs"].shape


def test_input_in_second_place_is_swapped() -> None:
    predictive = Predictive(second, {"w": W})
    fast = distill(predictive, X, inputs=lambda scale, x: x, num_steps=4, progress=False, seed=0)
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
        call = call_of(picker, second)
        assert call(X) == ((), {"scale": None, "x": X})


def test_defaults_of_other_arguments_are_kept() -> None:
    def model(depth: int = 3, x: Tensor | None = None) -> None: ...

    call = call_of(lambda depth, x: x, model)
    assert call(X) == ((), {"x": X})


def test_a_picker_that_does_more_than_pick_is_left_to_the_first_argument() -> None:
    assert call_of(lambda batch, x: batch["x"], second) is first_argument


def test_a_model_that_cannot_be_run_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="must run as model.x.*pass inputs="):
        distill(Predictive(second, {"w": W}), X, num_steps=4, progress=False)
