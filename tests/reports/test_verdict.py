"""Verdicts on students that are known to be right or wrong, as `benchmarks.verdicts` has them."""

from __future__ import annotations

import pytest
import torch

import pyro_opu
from benchmarks.verdicts import KINDS, counts, judged

#: What each kind that is wrong is beyond, alone.
WRONG = {
    "epistemic part off by 1.5 at single inputs": "the mutual information",
    "one Dirichlet for two groups": "the shape",
    "mean as near as 30 draws": "the mean",
    "real y, epistemic part off by 1.5": "the epistemic variance",
    "real y, mean as near as 30 draws": "the mean",
}


@pytest.mark.parametrize("name", KINDS)
def test_one_student_of_each_kind(name: str) -> None:
    report = judged(name, 1)
    assert report.faithful is KINDS[name].expected
    if name in WRONG:
        beyond = report.verdict.partition("Beyond its limit: ")[2].partition("Next: ")[0]
        assert WRONG[name] in beyond
        others = sum(part in beyond for part in ("the mean", "the shape", "the mutual information"))
        assert others == 1 or "real y" in name  # alone; the variance of y is judged with its mean


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_verdicts_are_right(name: str) -> None:
    """Three of three fixed seeds; `benchmarks.verdicts` counts a hundred."""
    assert counts(name, 3)[KINDS[name].expected] == 3


def test_far_inputs_and_a_short_training_are_told_apart() -> None:
    """One student, where it was taught and far away: the next step differs."""
    torch.manual_seed(0)
    weights = torch.randn(3, 3) + 0.4 * torch.randn(200, 3, 3)
    source = lambda x: (x @ weights).softmax(-1)  # noqa: E731
    x = torch.randn(300, 3)
    guide = pyro_opu.PredictiveGuide.for_inputs(x, 3)
    fast = pyro_opu.distill(source, x, guide=guide, num_steps=20, seed=0, progress=False)
    report = pyro_opu.fidelity(fast, source, x, extra={"far": 30 * x}, seed=0)
    assert report.faithful is False and "more steps" in report.advice
    assert "teach it there: 100 %" in report["far"].advice
    assert str(fast.report).splitlines()[-2].startswith("grade     ")
    assert report.to_dict()["advice"] == report.advice
