"""A function, or an object with the members of a teacher, as a teacher."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyro_opu.teachers import as_teacher

WEIGHTS = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))


def held(x: Tensor) -> Tensor:
    """All six draws that there are."""
    return (x @ WEIGHTS).softmax(-1)


def fresh(x: Tensor, num_draws: int) -> Tensor:
    """As many draws as asked for."""
    return (x @ torch.randn(num_draws, 4, 3)).softmax(-1)


class TestHeldTeacher:
    def test_called_once_with_all_rows(self) -> None:
        """A function that draws afresh at every call is joint over rows all the same."""
        calls = []

        def function(x: Tensor) -> Tensor:
            calls.append(len(x))
            return (x @ torch.randn(300, 4, 3)).softmax(-1)

        teacher = as_teacher(function)
        probs = teacher.probs(torch.ones(1, 4).expand(5000, 4))
        assert calls == [5000]
        torch.testing.assert_close(probs, probs[:, :1].expand_as(probs))


class TestFreshDraws:
    @pytest.mark.parametrize(
        "function",
        [
            fresh,
            lambda x, num_draws=9: fresh(x, num_draws),
            lambda x, *, num_draws: fresh(x, num_draws),
            lambda x, count: fresh(x, count),
            functools.partial(fresh, num_draws=2),
        ],
        ids=["named", "default", "keyword", "other-name", "partial"],
    )
    def test_as_many_as_asked_for(self, function: Callable) -> None:
        teacher = as_teacher(function)
        assert teacher.probs(torch.randn(5, 4), 11).shape == (11, 5, 3)
        assert teacher.probs(torch.randn(5, 4)).shape == (500, 5, 3)
        assert teacher.max_draws is None

    def test_deterministic_function_is_not_asked_in_parts(self) -> None:
        """Asked in parts it would give its first draws again and again."""
        grid = torch.linspace(0.1, 0.9, 3000)

        def function(x: Tensor, num_draws: int) -> Tensor:
            p = grid[:num_draws, None].expand(-1, len(x))
            return torch.stack([1 - p, p], -1)

        probs = as_teacher(function).probs(torch.zeros(1000, 1), 3000)
        assert torch.allclose(probs[:, -1, 1], grid)

    def test_optional_arguments_are_not_the_number_of_draws(self) -> None:
        teacher = as_teacher(lambda x, temperature=1.0, noise=0.0: held(x / temperature + noise))
        assert teacher.probs(torch.randn(5, 4)).shape == (6, 5, 3)


def _member(**changes: object) -> object:
    class Own:
        """A teacher of the user's own, by no base class."""

        num_classes = 2
        asked: list[object] = []

        def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
            self.asked.append(num_draws)
            sure = torch.tensor([-1e3, 0.0])  # beyond what probabilities can hold
            return sure.expand(num_draws or 7, len(x), 2)

        def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
            return self.log_probs(x, num_draws).exp()

    for name, value in changes.items():
        setattr(Own, name, value)
    return Own()


class TestOwnTeacher:
    def test_log_probs_are_its_own(self) -> None:
        own = _member()
        teacher = as_teacher(own)
        log_probs = teacher.log_probs(torch.zeros(3, 1), 5)
        assert torch.equal(log_probs, torch.tensor([-1e3, 0.0]).expand(5, 3, 2))
        assert own.asked == [5] and teacher.num_classes == 2
        assert torch.equal(teacher.probs(torch.zeros(3, 1), 2)[..., 0], torch.zeros(2, 3))

    def test_size_of_its_posterior(self) -> None:
        teacher = as_teacher(_member(max_draws=7))
        assert teacher.probs(torch.zeros(3, 1)).shape == (7, 3, 2)
        with pytest.raises(ValueError, match="must be at most 7"):
            teacher.probs(torch.zeros(3, 1), 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_is_kept(dtype: torch.dtype) -> None:
    probs = torch.randn(5, 3, 4).softmax(-1).to(dtype)
    answer = as_teacher(lambda x: probs).probs(torch.zeros(3, 1))
    assert answer.dtype == dtype
    torch.testing.assert_close(answer, probs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_draws_of_half_precision_sum_to_one(dtype: torch.dtype) -> None:
    """A student is taught by them in single precision, where rounded ones are no probabilities."""
    probs = (4 * torch.randn(50, 3, 40)).softmax(-1)
    draws = as_teacher(lambda x: probs.to(dtype)).draws(torch.zeros(3, 1))
    assert draws.dtype == torch.float32
    torch.testing.assert_close(draws.sum(-1), torch.ones(50, 3))
    torch.testing.assert_close(draws, probs, rtol=0.0, atol=10 * torch.finfo(dtype).eps)


def test_probabilities_of_zero_and_gradients() -> None:
    """Log-probabilities stay finite; no graph is built."""
    probs = torch.eye(2).expand(4, 2, 2).clone().requires_grad_()
    log_probs = as_teacher(lambda x: probs).log_probs(torch.zeros(2, 1))
    assert torch.isfinite(log_probs).all() and not log_probs.requires_grad
    assert torch.equal(log_probs.exp().round(decimals=6), probs)
