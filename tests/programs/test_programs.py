"""Pyro programs as users write them: each is answered as ``Predictive`` answers, or refused."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import Predictive

from programs import judged
from programs.base import PROGRAMS, Program
from pyro_opu import as_teacher
from pyro_opu.checks import ArgumentCallError, ArgumentError
from pyro_opu.inputs import Inputs
from pyro_opu.programs.written import ROWS
from pyro_opu.teachers import PredictiveTeacher
from pyro_opu.teachers.finished import finished_teacher

#: KL at most, in multiples of the attainable.
MOST = 4.0
#: Of the random numbers by which a teacher is compared with its model.
SEEDS = range(5)
#: One of each kind, among the quickest.
QUICK = (
    "Poisson regression",
    "PyroModule regression, _RETURN",
    "contrib.gp, regression",
    "contrib.gp, the module itself",
    "logistic regression, AutoNormal",
    "logistic regression, HMC",
    "working memory, one-dimensional design",
    "zero-inflated counts",
)
#: Those that are taught by default.
LEARNT = (
    "Poisson regression",
    "logistic regression, AutoNormal",
    "Bayesian regression, AutoNormal",
)


def check(title: str, row: dict[str, Any], program: Program) -> None:
    """What holds however short the training."""
    if program.cure:
        assert row["class"] == "refused", row
        assert program.cure in row["says"]
        return
    assert row["class"] in ("faithful", "not faithful", "warned"), row
    assert program.warning in row["says"]
    assert row["teacher"] == "batched"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that are made."""
    found: list[Program] = []
    for title, make in PROGRAMS.items():

        def kept(make: Any = make) -> Program:
            found.append(make())
            return found[-1]

        monkeypatch.setitem(PROGRAMS, title, kept)
    return found


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    "title", [pytest.param(t, marks=() if t in QUICK else pytest.mark.slow) for t in PROGRAMS]
)
def test_the_same_call_however_short_the_training(title: str, made: list[Program]) -> None:
    row = judged.measured(title, quick=True)
    check(title, row, made[0])
    if "one-dimensional" in title:
        assert (row["model"], row["posterior"], row["same call"]) == ("(l, y)", "draws", "yes")
    if isinstance(made[0].source, Predictive) and not made[0].cure:
        compared(made[0])


def compared(program: Program) -> None:
    """The check of a teacher against its model as it is written raises no false alarm."""
    inputs = Inputs.of(program.x)
    x = inputs.tensor
    for seed in SEEDS:
        pyro.set_rng_seed(seed)
        source = (
            as_teacher(program.source, **program.options) if program.options else program.source
        )
        teacher = finished_teacher(source, x, form=inputs.form)
        assert isinstance(teacher, PredictiveTeacher)
        assert teacher.compared == min(len(x), ROWS) and not teacher.incomparable


@pytest.mark.slow
@pytest.mark.parametrize("title", LEARNT)
def test_by_default(title: str, made: list[Program]) -> None:
    """The scoreboard measures all."""
    row = judged.measured(title)
    check(title, row, made[0])
    assert row["class"] != "warned" and row["KL / attainable"] <= MOST, row


def test_classes() -> None:
    good = {"same call": "yes", "batched": True, "says": "", "faithful": True}
    row = {**good, "KL / attainable": 1.1}
    assert judged.classified(row) == "faithful"
    assert judged.classified({**row, "faithful": False}) == "not faithful"
    assert judged.classified({**row, "faithful": None}) == "not faithful"
    assert judged.classified({**row, "KL / attainable": math.nan}) == "not faithful"
    assert judged.classified({**row, "says": "MixingWarning: no"}) == "warned"
    assert judged.classified({**row, "same call": "yes, without latents"}) == "faithful"
    assert judged.classified({**row, "same call": "no: {}", "says": "a warning"}) == "failed"
    assert judged.classified({**row, "batched": False}) == "failed"


def test_an_error_of_no_advice_is_a_failure() -> None:
    told, cure = "pass Predictive(model)", "Predictive("
    assert judged.refused(ArgumentError(told), cure) == "refused"
    assert judged.refused(ArgumentError("shapes differ"), cure) == "failed"
    assert judged.refused(ArgumentError("`x`"), "") == "failed"
    for kind in (ValueError, RuntimeError, ArgumentCallError):
        assert judged.refused(kind(told), cure) == "failed"


def test_kinds_and_means_are_compared() -> None:
    one = {"y": torch.randn(200, 5)}
    assert judged.alike(one, {"y": torch.randn(200, 5)})
    assert not judged.alike(one, {"y": torch.randn(200, 5) + 1.0})
    assert not judged.alike(one, {"y": torch.randn(200, 5).double()})
    x = torch.zeros(3)
    assert judged.called(Program(None, x, {"a": x})) == ((), {"a": x})
    assert judged.called(Program(None, x, x, (x, None))) == ((x, None), {})
