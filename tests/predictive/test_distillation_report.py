"""Reports of distillations: numbers, a few lines, and the warning of a worthless student."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import regressions
import torch
from quick_distill import quick, truth

from pyro_opu import (
    FidelityWarning,
    OnePassPredictive,
    rivals,
)
from pyro_opu.judging.yardstick import in_draws
from pyro_opu.predictive.distillation_report import DistillationReport

pytestmark = pytest.mark.usefixtures("brief")

STUDENTS: dict[str, Any] = {
    "dirichlet": lambda: quick(loss=None),
    "mixture": lambda: quick(loss=None, guide="mixture"),
    "logistic-normal": lambda: quick(loss="energy", guide="logistic_normal"),
    "normal": lambda: regressions.quick(regressions.predictive(), torch.randn(60, regressions.D)),
}


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
@pytest.mark.parametrize("name", STUDENTS)
def test_a_report_prints_in_few_lines_of_80_columns(name: str, tmp_path: Path) -> None:
    fast = STUDENTS[name]()
    lines = str(fast.report).splitlines()
    starts = ["student", "start", "mean", "energy", "epistemic", "spent", "kept"]
    starts += ["inputs", "bound", "grade", "next"]
    assert [line.split()[0] for line in lines] == starts
    assert max(map(len, lines[:-1])) <= 90, lines
    assert f"that of {in_draws(fast.report['draws'])} draws, held out" in lines[2]
    family = {"normal": "Normal", "logistic-normal": "Logistic Normal"}.get(name, "Dirichlet")
    assert f"{fast.report['guide']}, {family}" in lines[0]
    fast.save(tmp_path / "student.safetensors")
    again = OnePassPredictive.load(tmp_path / "student.safetensors").report
    assert str(again) == str(fast.report) and type(again) is DistillationReport
    assert json.loads(json.dumps(fast.report)) == dict(fast.report) == dict(again)


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
def test_what_was_spent_is_of_the_whole_call_and_no_part_of_equality() -> None:
    one, two = quick(num_steps=20).report, quick(num_steps=20).report
    assert one["spent"]["steps"] == one["spent"]["num_steps"] == 20
    assert 0 < one["spent"]["teacher_seconds"] < one["spent"]["seconds"]
    assert one["spent"] != two["spent"] and one == two and not one != two
    assert one == dict(two) and dict(one) == two
    assert one != {**two, "seed": 1} and one != 3


def test_a_teacher_without_spread_leaves_a_report_that_is_equal_to_itself() -> None:
    report = quick(lambda x, n: x[:, :3].softmax(-1).expand(n, -1, -1), num_steps=5).report
    assert report["epistemic_factor"] is None or report["epistemic_factor"] > 1
    assert report["energy_share"] is None and str(report).splitlines()[-2].startswith("grade")
    assert json.loads(json.dumps(report)) == dict(report)


def test_a_report_of_a_rival_prints_as_a_dict() -> None:
    held = torch.randn(20, 2, 3)
    fast = rivals.compact_approx(
        lambda x: (x @ held).softmax(-1), torch.randn(30, 2), size=3, tries=5, progress=False
    )
    assert str(fast.report) == str(dict(fast.report))


KEPT: dict[str, tuple[dict[str, Any], str]] = {
    "at attainable": ({"draws": 1e4}, "cannot be distinguished from a perfect student's"),
    "in closed form": ({"spent": {"steps": 0, "num_steps": 0}}, "no step was needed"),
    "at a plateau": ({"spent": {"steps": 900, "num_steps": 3000}}, "at rest after 900 of 3,000"),
    "in the midst": (
        {"history": [{"kl_ratio": r} for r in (50.0, 20.0, 8.0, 4.0, 3.0)]},
        "last quarter of the steps took 25 % off its KL",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_more_would_bring(case: str) -> None:
    entries, text = KEPT[case]
    report = DistillationReport(
        {"draws": 250.0, "kl_ratio": 3.0, "kept": "warm start kept: 1 -> 2", **entries}
    )
    assert str(report).splitlines()[-1].startswith("kept      warm start kept; ")
    assert text in str(report)


def test_a_worthless_student_is_warned_of_and_a_good_one_is_not() -> None:
    with pytest.warns(FidelityWarning, match=r"held-out KL of .* one answer .*num_steps") as found:
        report = quick(num_steps=2).report
    assert found[0].filename.endswith("flat.py")
    assert report["kl_ratio"] * report["kl_attainable"] > 0.5 * report["kl_trivial"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FidelityWarning)
        report = quick(loss=None, num_steps=150, batch_size=64).report
        assert report["kl_ratio"] * report["kl_attainable"] < 0.2 * report["kl_trivial"]
        # Where one answer for all inputs is all that there is to learn, a good student has it.
        quick(lambda x, n: truth(0 * x).sample((n,)), loss=None, num_steps=150, batch_size=64)
