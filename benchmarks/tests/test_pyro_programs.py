"""What the table of Pyro's programs says of a program."""

from __future__ import annotations

import pytest
import torch

from benchmarks import pyro_programs as table
from benchmarks.pyro_programs_base import PROGRAMS, Program

POINT = "logistic regression, AutoDelta"


def test_programs_are_at_least_as_many_as_promised() -> None:
    assert len(PROGRAMS) >= 28


@pytest.mark.slow
def test_a_program_that_passes() -> None:
    row = table.measured("Bayesian regression, AutoNormal", quick=True)
    assert (row["result"], row["same call"], row["teacher"]) == (
        "pass",
        "yes, without latents",
        "batched",
    )
    assert row["model"] == "(is_cont_africa, ruggedness, log_gdp)"


@pytest.mark.slow
def test_a_program_that_is_warned_of_and_one_that_is_refused() -> None:
    assert table.measured(POINT, quick=True)["warned"] == "MixingWarning"
    row = table.measured("contrib.gp, the module itself", quick=True)
    assert row["result"] == "refused" and "def model(x, y=None)" in row["says"]


def test_an_error_of_no_advice_is_a_failure() -> None:
    assert table.refused(ValueError("pass Predictive(model)"), "Predictive(") == "refused"
    for error, cure in ((ValueError("shapes differ"), "Predictive("), (ValueError("`x`"), "")):
        assert table.refused(error, cure) == "failed"
    assert table.refused(RuntimeError("pass Predictive(model)"), "Predictive(") == "failed"


def test_kinds_and_means_are_compared() -> None:
    torch.manual_seed(0)
    one = {"y": torch.randn(200, 5)}
    assert table.alike(one, {"y": torch.randn(200, 5)})
    assert not table.alike(one, {"y": torch.randn(200, 5) + 1.0})
    assert not table.alike(one, {"y": torch.randn(200, 5).double()})
    x = torch.zeros(3)
    assert table.called(Program(None, x, {"a": x})) == ((), {"a": x})
    assert table.called(Program(None, x, x, (x, None))) == ((x, None), {})


def test_results_are_counted() -> None:
    rows = [{"program": str(k), "model": "", "says": "", "result": "pass"} for k in range(3)]
    rows.append({**rows[0], "result": "refused"})
    assert [row["programs"] for row in table.tables_of(rows)["Count"]] == [3, 1, 0]
