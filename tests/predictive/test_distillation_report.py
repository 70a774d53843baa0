"""Reports of distillations: numbers, a few lines, and the warning of a worthless student."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import regressions
import torch
from quick_distill import quick, truth
from torch import Tensor, nn

from pyro_opu import (
    FidelityWarning,
    OnePassPredictive,
    PredictiveDirichlet,
    epistemic_uncertainty,
    fidelity,
    rivals,
)
from pyro_opu.distributions import Empirical
from pyro_opu.judging import ClassJudge, RealJudge
from pyro_opu.judging.yardstick import in_draws
from pyro_opu.predictive.distillation_report import DistillationReport
from pyro_opu.regression import PredictiveNormal
from pyro_opu.rng import seeded

pytestmark = pytest.mark.usefixtures("coarse")

S, N = 200, 400
PARAMETERS = torch.tensor([2.0, 1.0, 3.0])


class Says(nn.Module):
    """A student with one answer at any inputs."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer


def kl(p: Tensor, q: Tensor) -> float:
    return float((p * (p / q).log()).sum(-1).mean())


class TestClasses:
    with seeded(0):
        draws = torch.distributions.Dirichlet(PARAMETERS).sample((S, N))
    x = torch.zeros(N, 1)

    def test_a_student_of_all_held_draws_attains_what_halves_leave(self) -> None:
        labelled = ClassJudge(self.x, self.draws, held=S)
        mine = Says(Empirical(self.draws.log()))
        assert labelled.scores(mine)["kl_ratio"] == pytest.approx(1.0, rel=1e-3)  # float32 answers
        # The mean of half of S held draws has variance V (1 / (S / 2) - 1 / S) = V / S, and the KL
        # is sum_k V_k / (2 m_k) to second order; 400 inputs of 2 numbers, error 5 %.
        p = PARAMETERS / 6
        expected = float((p * (1 - p) / 7 / (2 * p)).sum()) / S
        found = labelled.summary(mine)
        assert found["kl_attainable"] == pytest.approx(expected, rel=0.15)
        shared = self.draws.mean((0, 1)).expand(N, -1)
        halves = [half.exp().float() for half in labelled.means]
        assert found["kl_trivial"] == pytest.approx(
            sum(kl(h, shared) for h in halves) / 2, rel=1e-3
        )
        assert found["energy_to_posterior"] == pytest.approx(0.0, abs=5e-4)  # 256 draws of it

    def test_the_posterior_itself_attains_what_fresh_draws_leave(self) -> None:
        labelled = ClassJudge(self.x, self.draws)
        # One answer for all inputs is the truth here: 3 standard errors of 400 inputs.
        perfect = Says(
            PredictiveDirichlet(
                (PARAMETERS / 6).log().expand(N, 3), torch.full((N,), math.log(6.0))
            )
        )
        assert labelled.scores(perfect)["kl_ratio"] == pytest.approx(1.0, abs=0.15)
        found = labelled.summary(perfect)
        assert found["kl_trivial"] == pytest.approx(found["kl_attainable"], rel=0.15)
        ratio = found["mutual_information"] / found["mutual_information_teacher"]
        assert ratio == pytest.approx(1.0, abs=0.01)  # 400 x 200 draws

    def test_energy_and_information_of_few_draws_are_without_bias(self) -> None:
        sets = torch.distributions.Dirichlet(PARAMETERS).sample((2, 20, 16 * N))
        others = Says(Empirical(sets[0].log()))
        found = ClassJudge(torch.zeros(16 * N, 1), sets[1]).summary(others)
        # Monte Carlo of 256 draws from 20, over 6,400 inputs: five deviations.
        assert found["energy_to_posterior"] == pytest.approx(found["energy_of_draws"], rel=0.08)
        exact = ClassJudge(self.x, self.draws).summary(Says(Empirical(self.draws.log())))
        mine, theirs = (each["mutual_information_teacher"] for each in (found, exact))
        assert mine == pytest.approx(theirs, rel=0.02)

    @pytest.mark.parametrize(("held", "share"), [(20, 0.0), (40, 0.5), (None, 1.0)])
    def test_information_is_that_of_as_many_draws_as_are_held(
        self, held: int | None, share: float
    ) -> None:
        """Of S among M draws a part 1 / S - 1 / M is missing, which is none where S is M."""
        draws = self.draws[:20]
        found = ClassJudge(self.x, draws, held=held).summary(Says(Empirical(draws.log())))
        plain = float(epistemic_uncertainty(draws).mean())
        expected = plain * (1 + share / 20)  # to first order
        assert found["mutual_information_teacher"] == pytest.approx(expected, rel=0.01)

    def test_it_is_the_ratio_of_fidelity(self) -> None:
        held = torch.randn(400, 2, 3, generator=torch.Generator().manual_seed(0))
        x = torch.randn(800, 2, generator=torch.Generator().manual_seed(1))

        def source(x: Tensor) -> Tensor:
            return (x @ (held + torch.tensor([1.0, 0.0, -1.0]))).softmax(-1)

        fast = quick(source, x, loss=None, num_steps=60, batch_size=64, evaluate_every=20)
        ratio = fidelity(fast, source, x, num_draws=200, seed=0).kl_ratio
        # 120 held-out inputs stand for 800.
        assert fast.report["kl_ratio"] == pytest.approx(ratio, rel=0.4) and ratio > 1.2


class TestReal:
    def test_a_student_of_all_moments_attains_what_halves_leave(self) -> None:
        f, log_scale = torch.randn(S, N), torch.zeros(S, N)
        draws, x = torch.stack([f, log_scale], -1), torch.zeros(N, 1)
        normal = PredictiveNormal(f.mean(0), torch.zeros(N), f.var(0).log())
        for by_moments in (True, False):
            labelled = RealJudge(x, draws, S, by_moments=by_moments)
            assert labelled.scores(Says(normal))["kl_ratio"] == pytest.approx(1.0, rel=1e-3)
            found = labelled.summary(Says(normal))
            # Errors of mean and of variance, V / S and 2 V^2 / S, in units of the variance 2 of y:
            # (1 / 2 + 2 / 4 / 2) / (2 S).
            assert found["kl_attainable"] == pytest.approx(0.75 / (2 * S), rel=0.15)
            assert found["epistemic_share"] == pytest.approx(found["epistemic_share_teacher"])
            assert found["epistemic_share"] == pytest.approx(0.5, rel=0.02)
            assert abs(found["energy_to_posterior"]) < 0.2 * found["energy_of_draws"]
            fresh = RealJudge(x, draws, by_moments=by_moments)
            truth = Says(PredictiveNormal(torch.zeros(N), torch.zeros(N), torch.zeros(N)))
            assert fresh.scores(truth)["kl_ratio"] == pytest.approx(1.0, abs=0.2)

    def test_two_draws_are_judged_whole(self) -> None:
        draws = torch.stack([torch.randn(2, N), torch.zeros(2, N)], -1)
        normal = PredictiveNormal(draws[..., 0].mean(0), torch.zeros(N), torch.zeros(N))
        found = RealJudge(torch.zeros(N, 1), draws, held=2).scores(Says(normal))
        assert math.isfinite(found["kl_ratio"])


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
    starts = ["student", "start", "mean", "energy", "epistemic", "spent", "kept", "grade", "next"]
    assert [line.split()[0] for line in lines] == starts
    assert max(map(len, lines[:-1])) <= 90, lines
    assert f"that of {in_draws(fast.report['draws'])} posterior draws" in lines[2]
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
    "at attainable": ({"draws": 1e4}, "cannot be told from a perfect student's"),
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
    assert found[0].filename.endswith("quick_distill.py")
    assert report["kl_ratio"] * report["kl_attainable"] > 0.5 * report["kl_trivial"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FidelityWarning)
        report = quick(loss=None, num_steps=150, batch_size=64).report
        assert report["kl_ratio"] * report["kl_attainable"] < 0.2 * report["kl_trivial"]
        # Where one answer for all inputs is all that there is to learn, a good student has it.
        quick(lambda x, n: truth(0 * x).sample((n,)), loss=None, num_steps=150, batch_size=64)
