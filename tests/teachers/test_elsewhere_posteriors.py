"""Draws of PyMC, Stan or any sampler, with a function of them, as teachers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_opu import as_teacher, distill
from pyro_opu.teachers import PosteriorTeacher
from pyro_opu.teachers.held import hold

S, D, C = 24, 4, 3
RANDOM = np.random.default_rng(0)
W, B = RANDOM.normal(size=(S, D, C)), RANDOM.normal(size=(S, C))
X = torch.randn(40, D, generator=torch.Generator().manual_seed(0))
#: float32 of products of numbers in float64.
ROUNDING = {"rtol": 1e-4, "atol": 1e-6}


def expected(x: Tensor) -> Tensor:
    """By the loop, in float64."""
    each = [x.double() @ torch.as_tensor(w) + torch.as_tensor(b) for w, b in zip(W, B, strict=True)]
    return torch.stack(each).softmax(-1).float()


def of_tensors(draw: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x @ draw["w"] + draw["b"]).softmax(-1)


def of_arrays(draw: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    logits = x.astype(float) @ draw["w"] + draw["b"]
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def branching(draw: dict[str, Tensor], x: Tensor) -> Tensor:
    """Not for vmap."""
    return of_tensors(draw, x if draw["b"][0] > 0 else x + 0)


def of_all(draws: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x @ draws["w"] + draws["b"][:, None]).softmax(-1)


def inference_data(**values: np.ndarray) -> Any:
    """Of three chains of eight draws."""
    arviz = pytest.importorskip("arviz")
    grouped = {name: value.reshape(3, 8, *value.shape[1:]) for name, value in values.items()}
    modern = not hasattr(arviz, "from_pyro")
    return arviz.from_dict({"posterior": grouped}) if modern else arviz.from_dict(grouped)


POSTERIORS: dict[str, Callable[[], Any]] = {
    "dict of arrays": lambda: {"w": W, "b": B},
    "dict of tensors": lambda: {"w": torch.as_tensor(W), "b": torch.as_tensor(B)},
    "InferenceData": lambda: inference_data(w=W, b=B),
    "its group": lambda: inference_data(w=W, b=B).posterior,
}


@pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)
@pytest.mark.parametrize("function", [of_tensors, of_arrays])
def test_every_draw_is_that_of_the_loop(posterior: Callable[[], Any], function: Callable) -> None:
    teacher = as_teacher((posterior(), function))
    assert isinstance(teacher, PosteriorTeacher) and teacher.max_draws == S
    torch.testing.assert_close(teacher.probs(X), expected(X), **ROUNDING)
    some = teacher.probs(X, 5)
    near = (some[:, None] - expected(X)).abs().amax((-2, -1))
    assert len(near.argmin(1).unique()) == 5 and near.amin(1).max() < 1e-5
    assert function.__name__ in repr(teacher)


def test_functions_that_vmap_refuses_and_of_all_draws() -> None:
    with pytest.warns(UserWarning, match="draw by draw"):
        probs = as_teacher(({"w": W, "b": B}, branching)).probs(X)
    torch.testing.assert_close(probs, expected(X), **ROUNDING)
    teacher = PosteriorTeacher({"w": W, "b": B}, of_all, of_all=True)
    torch.testing.assert_close(teacher.probs(X), expected(X), **ROUNDING)
    held = hold(teacher, X, 6)
    assert torch.equal(held.probs(X), held.probs(X)) and held.size == 6


def test_a_real_y_and_students() -> None:
    def line(draw: Any, x: Any) -> tuple[Any, Any]:
        return x @ draw["w"][:, 0], draw["scale"]

    scale = np.linspace(0.1, 1.0, S)
    posterior = {"w": W, "scale": scale}
    teacher = PosteriorTeacher(posterior, line)
    draws = teacher.draws(X)
    means = np.stack([X.numpy() @ w[:, 0] for w in W])
    np.testing.assert_allclose(draws[..., 0].numpy(), means, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(draws[:, 3, 1].exp().numpy(), scale, rtol=1e-5)
    options: dict[str, Any] = {"num_steps": 5, "seed": 0, "progress": False}
    x = X.repeat(3, 1)
    assert distill((posterior, line), x, **options).uncertainty(X).epistemic.shape == (40,)
    fast = distill(({"w": W, "b": B}, of_arrays), x, **options)
    assert fast(X)["obs"].shape == (S, 40)
    group = torch.arange(len(x)) % 3

    def grouped(draw: Any, x: Any, group: Any) -> Any:
        return of_tensors(draw, x + draw["b"][group][:, None])

    for several in ((x, group), {"x": x, "group": group}):
        fast = distill(({"w": W, "b": B}, grouped), several, **options)
        assert fast.form.kind == type(several).__name__


@pytest.mark.parametrize(
    ("posterior", "message"),
    [
        ({"w": W, "b": B[:5]}, "as many draws of every parameter.*reshape"),
        ({"w": W.reshape(3, 8, D, C), "b": B}, "as many draws"),
        ({"w": W, "b": 1.0}, "as many draws"),
        ({"w": W[:0]}, "as many draws"),
        ({}, "as many draws"),
    ],
)
def test_refused_posteriors(posterior: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_teacher((posterior, of_tensors))


def test_refused_functions() -> None:
    posterior = {"w": W, "b": B}
    with pytest.raises(ValueError, match=r"for one draw and .*\(2, C\).*got \(24, 2, 3\).*of_all"):
        distill((posterior, lambda t, x: torch.full((S, len(x), C), 1 / C)), X)
    with pytest.raises(ValueError, match=r"\[1 - p, p\]"):
        as_teacher((posterior, lambda t, x: torch.full((len(x),), 0.5))).probs(X)
    with pytest.raises(ValueError, match="rows that are >= 0 and sum to 1"):
        as_teacher((posterior, lambda t, x: x @ t["w"])).probs(X)
    with pytest.raises(RuntimeError, match="KeyError: 'slope'"):
        as_teacher((posterior, lambda t, x: t["slope"])).probs(X)
    with pytest.raises(TypeError, match="InferenceData .*got Tensor"):
        PosteriorTeacher(torch.as_tensor(W), of_tensors)
    with pytest.raises(TypeError, match=r"a pair \(posterior, function of one draw"):
        as_teacher(posterior)


def extracted(**values: np.ndarray) -> Any:
    """What ``az.extract`` gives: samples on the last axis."""
    return pytest.importorskip("arviz").extract(inference_data(**values))


def as_extracted_variables() -> Any:
    found = extracted(w=W, b=B)
    return {name: found[name] for name in ("w", "b")}


@pytest.mark.parametrize(
    "make",
    [
        lambda: extracted(w=W, b=B),
        as_extracted_variables,
        lambda: dict(inference_data(w=W, b=B).posterior.data_vars),
    ],
)
def test_named_axes_are_joined(make: Callable[[], Any]) -> None:
    teacher = as_teacher((make(), of_tensors))
    torch.testing.assert_close(teacher.probs(X), expected(X), **ROUNDING)
    one = {"w": W - W[:, :, :1]}
    alone = extracted(**one)
    alone = alone["w"] if hasattr(alone, "data_vars") else alone  # ArviZ 1 gives a single one so
    found = as_teacher((alone, lambda t, x: (x @ t["w"]).softmax(-1))).probs(X)
    torch.testing.assert_close(
        found, (X @ torch.as_tensor(one["w"]).float()).softmax(-1), **ROUNDING
    )


@pytest.mark.parametrize("function", [of_tensors, of_arrays])
def test_draws_by_chain_are_refused(function: Any) -> None:
    grouped = {"w": W.reshape(3, 8, D, C), "b": B.reshape(3, 8, C)}
    with pytest.raises(ValueError, match=r"got draws \(3, 8\), which are grouped by chain: join"):
        as_teacher((grouped, function)).probs(X)


def test_draws_that_may_be_by_chain_are_named() -> None:
    """A function that takes both."""
    grouped = {"a": B[:, 0].reshape(3, 8)}

    def both(draw: dict[str, Tensor], x: Tensor) -> Tensor:
        p = (x[:, 0] * draw["a"].mean()).sigmoid()
        return torch.stack([1 - p, p], -1)

    with pytest.warns(UserWarning, match="may be grouped by chain.* It is read as 3 draws"):
        assert as_teacher((grouped, both)).probs(X).shape == (3, 40, 2)


def test_an_ensemble_of_weights_is_not_taken_for_chains() -> None:
    weights = {"w": RANDOM.normal(size=(3, D, D)), "v": RANDOM.normal(size=(3, D, C))}
    teacher = as_teacher((weights, lambda t, x: (x @ t["w"] @ t["v"]).softmax(-1)))
    assert teacher.probs(X).shape == (3, 40, C)
