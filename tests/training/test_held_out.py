"""How many inputs and draws judge a student."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_opu.parts import Outcome
from pyro_opu.training.held_out import hold_out, keep_apart, label_rows
from pyro_opu.training.tuned import VALIDATION_NUMBERS

HELD_OUT = torch.zeros(512, 1)


class Asked:
    """A teacher of so many numbers at an input."""

    max_draws, outcome = None, Outcome.of_real()

    def __init__(self, num_outputs: int, cost: int | None = None) -> None:
        self.num_outputs, self.cost = num_outputs, cost

    def operations(self, x: Tensor) -> int | None:
        return self.cost

    def draws(self, x: Tensor, count: int) -> Tensor:
        return torch.zeros(1, 1, 1).expand(count, len(x), self.num_outputs)


@pytest.mark.parametrize(
    ("classes", "queries", "expected"),
    [
        (2, None, (1000, 512)),
        (10, None, (250, 419)),
        (100, None, (250, 41)),
        (1000, None, (250, 32)),
        (10_000, None, (250, 3)),
        (1000, 400, (20, 20)),
        (1000, 30, (5, 6)),
    ],
)
def test_many_classes_leave_fewer_draws_then_fewer_inputs(
    classes: int, queries: int | None, expected: tuple[int, int]
) -> None:
    teacher: Any = Asked(classes)
    how: Any = {"device": torch.device("cpu"), "queries": queries}
    found = label_rows(teacher, HELD_OUT, VALIDATION_NUMBERS, "held out", **how)
    assert tuple(found.draws.shape[:2]) == expected and len(found.x) == expected[1]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(2**18, (250, 419)), (2**20, (250, 419)), (2**22, (250, 131)), (2**40, (250, 32))],
)
def test_costly_draws_leave_fewer_inputs(cost: int, expected: tuple[int, int]) -> None:
    """Of 2^37 operations; of resnet18 at 32 x 32 some minutes are 20 seconds so."""
    teacher: Any = Asked(10, cost)
    found = label_rows(
        teacher, HELD_OUT, VALIDATION_NUMBERS, "held out", device=torch.device("cpu")
    )
    assert tuple(found.draws.shape[:2]) == expected


@pytest.mark.parametrize(
    ("classes", "cost", "expected"),
    [(2, None, (250, 512)), (10, None, (250, 104)), (10, 2**22, (250, 32)), (2, 2**20, (250, 131))],
)
def test_a_quarter_is_asked_for_where_thrift_is(
    classes: int, cost: int | None, expected: tuple[int, int]
) -> None:
    how: Any = {"device": torch.device("cpu")}
    teacher: Any = Asked(classes, cost)
    whole = label_rows(teacher, HELD_OUT, VALIDATION_NUMBERS, "", **how).draws
    found = label_rows(teacher, HELD_OUT, VALIDATION_NUMBERS, "", thrift=4, **how).draws
    assert tuple(found.shape[:2]) == expected
    assert 4 * found.numel() <= whole.numel() or expected[1] == 32  # the fewest inputs


@pytest.mark.parametrize("held", [None, 1000])
def test_as_many_inputs_as_there_is_time_for(held: int | None) -> None:
    teacher: Any = Asked(2)
    teacher.max_draws = held
    x = torch.arange(512.0)[:, None]
    timer = lambda: lambda rows: rows >= 100  # noqa: E731
    how: Any = {"device": torch.device("cpu"), "timer": timer}
    found = label_rows(teacher, x, VALIDATION_NUMBERS, "held out", **how)
    assert tuple(found.draws.shape[:2]) == (1000, 112) == (1000, len(found.x))
    rows = found.x.flatten().sort().values  # spread over all
    assert len(rows.unique()) == 112 and rows.diff().max() <= 32 and rows[0] == 0


@pytest.mark.parametrize("keep", [True, False])
def test_sorted_rows_are_judged_and_calibrated_at_all_of_them(keep: bool) -> None:
    """Either takes first rows, which would be the least ones."""
    x = torch.arange(4000.0)[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kept, others = keep_apart(x, keep)
    some, rest = hold_out(others)
    for rows in (some, rest, others[:500]):
        assert abs(rows.mean() - 2000) < 250  # five deviations of the mean of 500
    assert torch.equal(torch.cat([kept, some, rest]).flatten().sort().values, x.flatten())
    assert len(kept) == (400 if keep else 0)
    assert rest.data_ptr() == others[len(some) :].data_ptr()  # both are views: one copy in all
