"""Teachers of classes: what holds of every kind of source."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from posteriors import SOURCES, C, Own, S, X, forest
from torch import Tensor

from pyro_opu import as_teacher
from pyro_opu.teachers import Teacher
from pyro_opu.teachers.base import BaseTeacher

# Rounding of products of matrices of another size, or of sums in another order.
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def seeded(call: Callable[..., Tensor], *args: object) -> Tensor:
    torch.manual_seed(5)
    return call(*args)


@pytest.mark.parametrize(("build", "held"), SOURCES.values(), ids=SOURCES)
class TestEveryTeacher:
    def test_draws_on_the_simplex(self, build: Callable[[], Any], held: bool) -> None:
        teacher = as_teacher(build())
        assert isinstance(teacher, Teacher) and as_teacher(teacher) is teacher
        for rows in (1, len(X)):
            logs = seeded(teacher.log_probs, X[:rows], 7)
            assert logs.shape == (7, rows, C) and logs.dtype == torch.float32
            assert not logs.requires_grad
            torch.testing.assert_close(logs.exp().sum(-1), torch.ones(7, rows), **ROUNDING)
            torch.testing.assert_close(seeded(teacher.probs, X[:rows], 7), logs.exp())
        assert len(logs.unique(dim=0)) == 7 and teacher.num_classes == C
        assert repr(teacher)

    def test_held_draws_come_in_order_and_others_afresh(
        self, build: Callable[[], Any], held: bool
    ) -> None:
        teacher = as_teacher(build())
        teacher.probs(X[:1], 4)  # draws of a function are counted at its first call
        state = torch.get_rng_state()
        first, again = teacher.probs(X), teacher.probs(X)
        assert len(first) == (S if held else teacher.max_draws or teacher.default_draws)
        if held:
            assert teacher.max_draws == S and torch.equal(first, again)
            assert torch.equal(teacher.probs(X, S), first)
            assert torch.equal(torch.get_rng_state(), state)
        else:
            assert not torch.equal(first, again)

    def test_a_subset_is_without_replacement(self, build: Callable[[], Any], held: bool) -> None:
        if not held:
            pytest.skip("draws afresh")
        teacher, firsts = as_teacher(build()), set()
        every = teacher.probs(X)
        for _ in range(10):
            distance = (teacher.probs(X, 9)[:, None] - every).abs().amax((-2, -1))
            assert distance.amin(1).max() < 1e-5  # rounding
            chosen = distance.argmin(1)
            assert len(chosen.unique()) == 9
            firsts.add(int(chosen[0]))
        assert len(firsts) > 1 or build is Own  # which always gives its first ones
        message = f"`num_draws` must be at most {S}, the draws .*; got {S + 1}"
        for asked in (teacher, as_teacher(build())):  # after a call, and at the first
            with pytest.raises(ValueError, match=message):
                asked.probs(X, S + 1)

    def test_the_first_call_consumes_what_later_calls_consume(
        self, build: Callable[[], Any], held: bool
    ) -> None:
        teacher = as_teacher(build())
        answers = [(seeded(teacher.probs, X, 3), torch.rand(())) for _ in range(2)]
        assert torch.equal(answers[0][0], answers[1][0]) and answers[0][1] == answers[1][1]

    @pytest.mark.parametrize("size", [1, 100, 3000])
    def test_chunks_of_any_size_give_the_same(
        self, build: Callable[[], Any], held: bool, size: int
    ) -> None:
        teacher = as_teacher(build())
        whole = seeded(teacher.log_probs, X, 5)
        for each in (teacher, *getattr(teacher, "members", ())):
            each.chunk_size = size
        torch.testing.assert_close(seeded(teacher.log_probs, X, 5), whole, **ROUNDING)
        torch.manual_seed(5)
        blocks = list(teacher.stream(X, 5))
        assert sum(block.shape[1] for block in blocks) == len(X)
        torch.testing.assert_close(torch.cat(blocks, 1), whole, **ROUNDING)

    def test_nothing_is_left_behind(self, build: Callable[[], Any], held: bool) -> None:
        source = build()
        networks = [each for each in (source if isinstance(source, list) else [source])]
        networks = [each.train() for each in networks if isinstance(each, torch.nn.Module)]
        as_teacher(source).probs(X, 3)
        assert not pyro.get_param_store().keys()
        for net in networks:
            assert net.training
            assert all(p.requires_grad and p.grad is None for p in net.parameters())

    @pytest.mark.parametrize(
        ("x", "error", "message"),
        [
            ([[1.0]], TypeError, r"`x` must be a torch.Tensor.*got list.*torch.as_tensor"),
            (X.byte(), TypeError, r"got torch.uint8.*\.float\(\)"),
            (X.abs().long(), (ValueError, RuntimeError), r"whole.*indices.*\.float\(\)"),
            (X[0], (ValueError, RuntimeError), r"a tensor \(N,\).*x\[:, None\]|N, C|\(S, 3"),
            (X[:0], ValueError, r"`x` must hold at least one input.*\(0, 3\)"),
            (X.clone().fill_diagonal_(math.nan), ValueError, r"NaN or infinity in 3 of 12 rows"),
            (X[:1] / 0, ValueError, r"in 1 of 1 rows \(first: row 0\)"),
        ],
    )
    def test_refused_inputs(
        self,
        build: Callable[[], Any],
        held: bool,
        x: object,
        error: type[Exception] | tuple[type[Exception], ...],
        message: str,
    ) -> None:
        if build is forest and getattr(x, "dtype", None) is torch.int64:
            pytest.skip("takes whole numbers for numbers")
        with pytest.raises(error, match=message):
            as_teacher(build()).probs(x)

    @pytest.mark.parametrize("num_draws", [0, -1, 2.0, True, "3"])
    def test_refused_numbers_of_draws(
        self, build: Callable[[], Any], held: bool, num_draws: object
    ) -> None:
        with pytest.raises(ValueError, match="`num_draws` must be a positive integer; got"):
            as_teacher(build()).probs(X, num_draws)


def test_every_kind_of_this_package_is_a_base_teacher() -> None:
    assert all(isinstance(as_teacher(build()), BaseTeacher) for build, _ in SOURCES.values())
