"""How many inputs and draws judge a student."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_opu.parts import Outcome
from pyro_opu.training.held_out import label_rows
from pyro_opu.training.tuned import VALIDATION_NUMBERS

HELD_OUT = torch.zeros(512, 1)


class Asked:
    """A teacher of so many numbers at an input."""

    max_draws, outcome = None, Outcome.of_real()

    def __init__(self, num_outputs: int) -> None:
        self.num_outputs = num_outputs

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
