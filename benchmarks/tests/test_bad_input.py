"""How the outcome of a bad call is told: clear, raw or silent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from benchmarks import bad_input
from pyro_opu.checks import positive_int


def leave_a_file() -> None:
    Path("half").write_text("written")
    positive_int("n", 0)


@pytest.mark.parametrize(
    "call, outcome, message",
    [
        (lambda: positive_int("n", 0), "clear", "`n` must be a positive integer; got 0."),
        (lambda: torch.zeros(2) + torch.zeros(3), "raw", "The size of tensor a"),
        (lambda: {}["n"], "raw", "'n'"),
        (lambda: torch.zeros(2), "silent", "returned a value of type Tensor"),
        (leave_a_file, "silent", r"Left behind: \['half'\]"),
    ],
)
def test_outcome(call, outcome, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (row,) = bad_input.run([("f", "n", call)])
    assert row["outcome"] == outcome
    assert re.search(message, row["message"])
    assert not list(tmp_path.iterdir())


def test_counts():
    rows = [{"function": name, "outcome": "clear"} for name in "aab"]
    rows.append({"function": "b", "outcome": "raw"})
    assert bad_input.by_function(rows) == [
        {"function": "a", "cases": 2, "clear": 2, "raw": 0, "silent": 0},
        {"function": "b", "cases": 2, "clear": 1, "raw": 1, "silent": 0},
        {"function": "all", "cases": 4, "clear": 3, "raw": 1, "silent": 0},
    ]


def test_cases_are_distinct():
    names = [(function, what) for function, what, _ in bad_input.all_cases()]
    assert len(names) == len(set(names))
