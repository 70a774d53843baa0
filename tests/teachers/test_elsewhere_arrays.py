"""Functions of NumPy arrays as teachers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_opu import as_teacher, distill
from pyro_opu.teachers import ArrayFunction
from pyro_opu.teachers.finished import teacher_of

WEIGHTS = np.random.default_rng(0).normal(size=(6, 4, 3))
X = torch.randn(2500, 4, generator=torch.Generator().manual_seed(1))


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def held(x: np.ndarray) -> np.ndarray:
    """Fails with a tensor, which has no ``astype``."""
    return softmax(x.astype(np.float64) @ WEIGHTS)


def converts(x: Any) -> np.ndarray:
    """Takes a tensor as well, and returns an array."""
    return softmax(np.asarray(x) @ WEIGHTS)


def of_tensors(x: Tensor) -> Tensor:
    return (x.double() @ torch.as_tensor(WEIGHTS)).softmax(-1).float()


def fresh(x: np.ndarray, num_draws: int) -> np.ndarray:
    return softmax(x.astype(float) @ np.random.default_rng(0).normal(size=(num_draws, 4, 3)))


@pytest.mark.parametrize("function", [held, converts, ArrayFunction(held, rows=7, threads=2)])
def test_answers_of_a_function_of_tensors(function: Callable) -> None:
    teacher, before = as_teacher(function), torch.get_rng_state()
    for rows in (1, 14, len(X)):  # float32 rounding
        expected = of_tensors(X[:rows])
        torch.testing.assert_close(teacher.probs(X[:rows]), expected, rtol=1e-5, atol=1e-6)
    assert teacher.max_draws == 6 and teacher.num_classes == 3
    assert torch.equal(torch.get_rng_state(), before)
    assert "held" in repr(teacher) or "converts" in repr(teacher)
    assert teacher.probs(X[:3].double()).dtype == torch.float64


def test_what_a_function_is_given() -> None:
    """Blocks where it answers the same twice, and all rows where it draws."""
    sizes: list[int] = []

    def noted(x: np.ndarray, offset: float = 0.0) -> np.ndarray:
        sizes.append(len(x.astype(float)))
        return held(x)

    as_teacher(noted).probs(X)
    assert sizes == [2, 2, 1024, 1024, 452]
    sizes.clear()
    random = np.random.default_rng(0)

    def afresh(x: np.ndarray) -> np.ndarray:
        sizes.append(len(x.astype(float)))
        return softmax(x @ random.normal(size=(6, 4, 3)))

    same = X[:1].expand(2500, 4)
    probs = as_teacher(afresh).probs(same)
    assert sizes[-1] == 2500  # one parameter for all rows
    torch.testing.assert_close(probs, probs[:, :1].expand_as(probs))
    assert as_teacher(fresh).probs(X, 9).shape == (9, 2500, 3)


def test_threads_run_blocks_at_once() -> None:
    """Blocks wait for each other in pairs: in one thread after another they would wait for ever."""
    barrier = threading.Barrier(2, timeout=20)

    def waits(x: np.ndarray) -> np.ndarray:
        if threading.current_thread() is not threading.main_thread():
            barrier.wait()
        return held(x)

    found = as_teacher(ArrayFunction(waits, rows=500, threads=2)).probs(X)
    torch.testing.assert_close(found, of_tensors(X), rtol=1e-5, atol=1e-6)


def test_functions_of_tensors_stay_what_they_are() -> None:
    calls: list[type] = []

    def function(x: Tensor) -> Tensor:
        calls.append(type(x))
        return of_tensors(x)

    as_teacher(function).probs(X[:3])
    assert calls == [Tensor]


def test_an_error_is_that_of_the_call_with_tensors() -> None:
    def broken(x: Any) -> Any:
        raise KeyError("of tensors" if isinstance(x, Tensor) else "of arrays")

    with pytest.raises(RuntimeError, match="KeyError: 'of tensors'"):
        as_teacher(broken).probs(X[:3])
    with pytest.raises(TypeError, match="got str"):
        as_teacher(lambda x: "no draws").probs(X[:3])
    with pytest.raises(ValueError, match="draws of shape .S, N, C."):
        as_teacher(lambda x: held(x)[0]).probs(X)
    with pytest.raises(ValueError, match="`rows` must be a positive integer"):
        ArrayFunction(held, rows=0)


def test_a_real_y() -> None:
    slopes = np.linspace(-1, 1, 8)[:, None]

    def line(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return slopes * x.astype(float)[:, 0], np.full((8, 1), 0.5)

    assert [teacher_of(each, X).outcome.kind for each in (line, held)] == ["real", "classes"]
    draws = as_teacher(line).draws(X)
    torch.testing.assert_close(draws[..., 0], torch.as_tensor(slopes).float() * X[:, 0])
    assert bool((draws[..., 1].exp() - 0.5).abs().max() < 1e-6)
    fast = distill(line, X[:200], num_steps=5, seed=0, progress=False)
    assert fast.uncertainty(X[:4]).total.shape == (4,)


def test_several_inputs() -> None:
    offsets = np.random.default_rng(1).normal(size=(6, 5, 3))

    def grouped(x: np.ndarray, group: np.ndarray) -> np.ndarray:
        assert group.dtype == np.int64
        return softmax(x.astype(float) @ WEIGHTS + offsets[:, group])

    group = torch.arange(200) % 5
    expected = grouped(X[:200].numpy(), group.numpy())
    found = as_teacher(grouped).probs((X[:200], group))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    fast = distill(grouped, (X[:200], group), num_steps=5, seed=0, progress=False)
    assert fast(X[:4], group[:4])["obs"].shape == (6, 4)
