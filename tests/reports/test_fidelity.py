"""Fidelity of students whose distance from the teacher is known."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import Tensor

from pyro_opu.distributions import Empirical
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.judging.classes import ClassJudge
from pyro_opu.metrics.distances import energy_distance, kl_divergence
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import epistemic_uncertainty, variance
from pyro_opu.reports.fidelity import fidelity

NUM_CLASSES = 3


def alpha(x: Tensor) -> Tensor:
    """What both know: a concentration between about 2 and 30, means of every kind."""
    return torch.softmax(2 * x, -1) * torch.exp(2 + 0.5 * x[:, :1].clamp(-2, 2))


class DirichletTeacher:
    """A posterior that is a Dirichlet at every input; remembers how much was asked at once."""

    num_classes = NUM_CLASSES
    max_draws = None

    def __init__(self) -> None:
        self.asked: list[int] = []

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        self.asked.append(len(x) * (num_draws or 0))
        return PredictiveDirichlet.from_alpha(alpha(x)).sample((num_draws or 100,))

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        return self.probs(x, num_draws).log()


class FinitePosterior:
    """``M`` linear classifiers."""

    num_classes = NUM_CLASSES

    def __init__(self, max_draws: int) -> None:
        self.max_draws = max_draws
        generator = torch.Generator().manual_seed(1)
        self.weights = torch.eye(NUM_CLASSES) + torch.randn(
            max_draws, NUM_CLASSES, NUM_CLASSES, generator=generator
        )

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        chosen = self.weights[torch.randperm(self.max_draws)[: num_draws or self.max_draws]]
        return torch.softmax(x @ chosen, -1)

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        return self.probs(x, num_draws).log()


def student(scale: float = 1.0):
    return lambda x: torch.distributions.Dirichlet(scale * alpha(x))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(200, NUM_CLASSES, generator=torch.Generator().manual_seed(0))


def test_a_perfect_student_is_at_the_floor(x: Tensor) -> None:
    report = fidelity(student(), DirichletTeacher(), x, num_draws=300, seed=0)
    # Monte Carlo at 200 inputs x 300 draws; one input's energy distance has an error of 0.003.
    assert abs(report.energy_distance) < 1e-3 and abs(report.energy_distance_floor) < 1e-3
    # 64 inputs, whose distances vary by a third: a standard error of 4 % each.
    assert report.wasserstein == pytest.approx(report.wasserstein_floor, rel=0.2)
    assert report.kl == pytest.approx(report.kl_floor / 2, rel=0.25)  # half the draws are noisy
    assert report.coverage_50 == pytest.approx(0.5, abs=0.01)
    assert report.coverage_90 == pytest.approx(0.9, abs=0.01)
    assert abs(report.mutual_information_error) < 0.02 and abs(report.variance_error) < 0.02
    assert report.mutual_information_spearman > report.mutual_information_spearman_floor > 0.9
    assert report.agreement > 0.95
    assert abs(report.energy_distance_best) < 2e-4  # the teacher is a Dirichlet
    assert report.kl_attainable == pytest.approx(report.kl_floor / 2, rel=0.2)
    assert report.coverage_90_best == pytest.approx(0.9, abs=0.01)


class Held:
    """The very posterior that was taught: a perfect student."""

    def __init__(self, posterior: FinitePosterior) -> None:
        self.posterior = posterior

    def distribution(self, x: Tensor) -> Empirical:
        return Empirical(self.posterior.log_probs(x))


def over_seeds(name: str, seeds: int, *args, **options) -> tuple[float, float]:
    """Mean of a number of the report, and the standard error of that."""
    reports = (fidelity(*args, seed=seed, wasserstein_inputs=0, **options) for seed in range(seeds))
    values = torch.tensor([getattr(report, name) for report in reports])
    return values.mean().item(), (values.std() / seeds**0.5).item()


@pytest.mark.parametrize("num_draws", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_a_perfect_student_of_fresh_draws_scores_the_attainable(num_draws: int, x: Tensor) -> None:
    # Means up to .95: beyond, 30 draws are too few for the second order.
    ratio, error = over_seeds(
        "kl_ratio", 6, student(), DirichletTeacher(), x / 2, num_draws=num_draws
    )
    assert error < 0.05 and ratio == pytest.approx(1.0, abs=4 * error)


def test_a_perfect_student_of_held_draws_scores_the_attainable(x: Tensor) -> None:
    held = FinitePosterior(40)
    report = fidelity(Held(held), held, x, seed=0)
    assert report.kl_ratio == pytest.approx(1.0, rel=1e-4)  # float32 draws
    assert report.kl_attainable == pytest.approx(report.kl_floor / 4, rel=0.1)  # to second order
    assert report.agreement == report.agreement_attainable
    assert report.faithful and report.verdict.startswith("Faithful, excellent: class probabilities")
    assert report.draws == 10_000  # as near as rounding tells
    distance, error = over_seeds("energy_distance", 5, Held(held), held, x)
    # Monte Carlo of the student's draws. Judged as a sample, 40 draws would give -spread / 40.
    assert error < 1e-3 and distance == pytest.approx(0.0, abs=4 * error)
    assert Marginals(held.probs(x)).spread.mean() / 40 > 10 * error


def test_some_of_the_held_draws(x: Tensor) -> None:
    """20 and 20 of 100 draws: nearer to fresh ones than to all."""
    held = FinitePosterior(100)
    ratio, error = over_seeds("kl_ratio", 6, Held(held), held, x, num_draws=20)
    assert error < 0.1 and ratio == pytest.approx(1.0, abs=4 * error)
    distance, error = over_seeds("energy_distance", 6, Held(held), held, x, num_draws=20)
    assert distance == pytest.approx(0.0, abs=4 * error)


@pytest.mark.parametrize("num_draws", [50, 200, pytest.param(500, marks=pytest.mark.slow)])
def test_the_best_dirichlet_of_a_dirichlet_is_at_zero(num_draws: int, x: Tensor) -> None:
    """Free of the sampling error of its moments, which is some 2 % of the spread at 50 draws."""
    true = PredictiveDirichlet.from_alpha(alpha(x))
    found = torch.stack(
        [ClassJudge(x, true.sample((2 * num_draws,))).best.distance.mean() for _ in range(5)]
    )
    error = found.std() / len(found) ** 0.5
    spread = Marginals(true.sample((500,))).spread.mean()
    assert error * num_draws < 0.1 * spread
    assert found.mean().abs() < 4 * error


def test_the_best_dirichlet_of_held_draws_is_that_of_all() -> None:
    held = FinitePosterior(60).probs(torch.randn(50, NUM_CLASSES))
    found = ClassJudge(torch.zeros(50, 1), held, 60).best
    matched = found.answer.answer
    assert matched is not None
    direct = energy_distance(held, matched.sample((5000,))) + Marginals(held).spread / 60
    # Monte Carlo of the 60 draws of the Dirichlet there.
    assert found.distance.mean().item() == pytest.approx(direct.mean().item(), abs=5e-3)


def test_means_are_those_of_the_closed_forms(x: Tensor) -> None:
    report = fidelity(student(), DirichletTeacher(), x, num_draws=300, seed=0, wasserstein_inputs=0)
    truth = PredictiveDirichlet.from_alpha(alpha(x))
    information, spread = epistemic_uncertainty(truth).mean(), variance(truth).mean()
    assert report.mutual_information == pytest.approx(information.item(), rel=1e-5)  # rounding
    assert report.variance == pytest.approx(spread.item(), rel=1e-5)
    # Monte Carlo, as above.
    assert report.mutual_information_teacher == pytest.approx(information.item(), rel=0.02)
    assert report.variance_teacher == pytest.approx(spread.item(), rel=0.02)


def test_a_wrong_mean_has_its_divergence(x: Tensor) -> None:
    def shifted(x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(alpha(x).roll(1, -1))

    report = fidelity(shifted, DirichletTeacher(), x, num_draws=400, seed=0, wasserstein_inputs=0)
    mean = alpha(x) / alpha(x).sum(-1, keepdim=True)
    # Monte Carlo of the teacher's mean at 400 draws: standard deviation 0.02 per input.
    assert report.kl == pytest.approx(kl_divergence(mean, mean.roll(1, -1)).mean().item(), rel=0.02)
    assert report.agreement < 0.2 and report.energy_distance > 0.3


def test_the_trivial_student_is_right_where_nothing_depends_on_the_input() -> None:
    x = torch.zeros(100, NUM_CLASSES)
    report = fidelity(student(), DirichletTeacher(), x, num_draws=200, seed=0)
    # Monte Carlo: the trivial student is made from 6,400 draws in all.
    assert abs(report.energy_distance_trivial) < 3e-3
    assert report.variance_trivial == pytest.approx(report.variance_teacher, rel=0.05)
    assert math.isnan(report.variance_spearman) and math.isnan(report.variance_spearman_trivial)
    assert "n/a" in str(report)


def test_the_trivial_student_is_wrong_where_much_depends_on_it(x: Tensor) -> None:
    report = fidelity(
        student(), DirichletTeacher(), 3 * x, num_draws=100, seed=0, wasserstein_inputs=0
    )
    assert report.kl_trivial > 100 * report.kl
    assert report.energy_distance_trivial > 0.2
    assert report.agreement_trivial < 0.7


@pytest.mark.parametrize(("max_draws", "num_draws", "used"), [(41, 500, 20), (40, 10, 10)])
def test_a_finite_posterior_is_split(max_draws: int, num_draws: int, used: int, x: Tensor) -> None:
    report = fidelity(student(), FinitePosterior(max_draws), x, num_draws=num_draws, seed=0)
    assert report.num_draws == used and report.max_draws == max_draws
    assert f"The posterior holds {max_draws} draws: two disjoint random sets of {used}" in str(
        report
    )
    assert report.energy_distance > 0.05 > abs(report.energy_distance_floor)


def test_floor_of_a_finite_posterior_is_unbiased(x: Tensor) -> None:
    posterior = FinitePosterior(12)
    floors = [
        fidelity(student(), posterior, x[:20], seed=seed, wasserstein_inputs=0)
        for seed in range(30)
    ]
    values = torch.tensor([report.energy_distance_floor for report in floors])
    # Monte Carlo over splits (one per input and seed): four standard errors.
    assert values.mean().abs() < 4 * values.std() / len(values) ** 0.5
    assert math.isnan(floors[0].wasserstein)


def test_both_halves_judge(x: Tensor) -> None:
    """So that the energy distance is nearly that to all draws."""
    posterior = FinitePosterior(200)
    report = fidelity(student(), posterior, x, num_draws=500, seed=0, wasserstein_inputs=0)
    direct = energy_distance(posterior.probs(x), student()(x).sample((2000,))).mean().item()
    # Monte Carlo of the student's draws, and pairs across the halves, which only `direct` has.
    assert report.energy_distance == pytest.approx(direct, rel=0.05)


def test_a_report_does_not_depend_on_the_size_of_its_chunks(x: Tensor) -> None:
    """All chunks share twenty joint draws."""
    asked = {"seed": 0, "wasserstein_inputs": 0}
    for size in (1, 20):
        report = fidelity(student(), FinitePosterior(20), x[:80], chunk_size=size, **asked)
        assert abs(report.energy_distance_floor) < 0.03  # as above, with one chunk for all


def test_extra_sets_and_names(x: Tensor) -> None:
    extra = {"wide": 3 * x[:50], "origin": torch.zeros(5, NUM_CLASSES)}
    report = fidelity(student(), DirichletTeacher(), x, extra=extra, num_draws=50, seed=0)
    assert list(report) == ["held-out", "wide", "origin"]
    assert report["held-out"].kl == report.kl
    assert report["wide"].num_inputs == 50 and report["wide"].variance < report.variance
    text = str(report)
    assert [text.count(word) for word in ("held-out (200", "wide (50", "origin (5")] == [1, 1, 1]
    assert all(len(line) <= 100 for line in text.splitlines())
    for row in report["wide"].rows:
        assert getattr(report, row) is not None and getattr(report, f"{row}_best") is not None
    assert "energy_distance_floor" in dir(report)
    with pytest.raises(
        KeyError, match="no set of inputs 'narrow'; there are held-out, wide, origin"
    ):
        report["narrow"]
    with pytest.raises(
        AttributeError, match="no number 'accuracy'; there are kl, draws, kl_ratio, epistemic"
    ):
        _ = report.accuracy
    again = copy.deepcopy(report)
    assert again is not report and again.to_dict() == report.to_dict() and str(again) == text


def sure(tops: list[float], scales: list[float]):
    """A teacher by the largest mean probability at inputs 0, 1, 2 ..., and a student whose
    concentration is that of the teacher times a scale."""
    means = torch.tensor([[top, (1 - top) * 0.7, (1 - top) * 0.3] for top in tops])

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        true = PredictiveDirichlet.from_alpha(4 * means[x[:, 0].long()])
        return true.sample((num_draws,))

    def student(x: Tensor) -> torch.distributions.Dirichlet:
        here = x[:, 0].long()
        return torch.distributions.Dirichlet(4 * means[here] * torch.tensor(scales)[here, None])

    return student, teacher, torch.arange(len(tops)).repeat_interleave(60)[:, None].float()


TOPS = [0.5, 0.8, 0.95, 0.995]


def test_rows_by_certainty() -> None:
    report = fidelity(*sure(TOPS, [1.0, 1.0, 1.0, 3.0]), seed=0, wasserstein_inputs=0)
    rows = report.by_certainty
    names = ["below .7", ".7-.9", ".9-.99", ".99-.999", "above .999"]
    assert [row.certainty for row in rows] == names
    assert sum(row.num_inputs for row in rows) == 240
    assert [row.num_inputs for row in rows[:2]] == [60, 60] and rows[4].num_inputs < 5
    # At .995 some inputs are on the other side of .99 by the 500 draws that say so.
    for row in rows[:2]:
        assert row.faithful
        assert row.kl_ratio == pytest.approx(1.0, rel=0.5)  # 60 inputs
        assert row.concentration_mean == pytest.approx(1.0, rel=0.05)  # Monte Carlo, 30,000 draws
        assert row.concentration_median == pytest.approx(1.0, rel=0.05)
        assert row.mutual_information_ratio == pytest.approx(1.0, rel=0.05)
    assert rows[3].faithful is False and not report.faithful
    assert rows[3].concentration_mean == pytest.approx(3.0, rel=0.15)
    assert rows[3].mutual_information < 0.85 * rows[3].mutual_information_teacher
    assert report.draws > 1000 and report.grade == "fair"  # not faithful everywhere
    assert (
        "Where the teacher's largest mean probability is .99-.999: an energy distance"
        in report.verdict
    )
    assert rows[3].beyond == ("shape",) and rows[0].beyond == ()  # a quarter below is chance here
    assert str(report).startswith("Not faithful, fair: class probabilities differ")
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert numbers["verdict"] == report.verdict and numbers["faithful"] is False
    assert numbers["sets"]["held-out"]["by_certainty"][1]["num_inputs"] == 60


def test_a_perfect_student_of_rare_draws_is_faithful() -> None:
    """Most inputs have no draw that is unsure; what says how sure they are must not judge."""
    case = sure([0.9995, 0.9], [1.0, 1.0])
    reports = [fidelity(*case, num_draws=200, seed=s, wasserstein_inputs=0) for s in range(4)]
    assert all(report.faithful for report in reports)
    wide = sure([0.9995, 0.9], [0.2, 0.2])
    assert not fidelity(*wide, num_draws=200, seed=0, wasserstein_inputs=0).faithful


def test_the_verdict_of_a_wrong_mean_and_of_a_wrong_spread(x: Tensor) -> None:
    def shifted(x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(alpha(x + 0.2 * torch.tensor([1.0, 0.0, -1.0])))

    teacher, options = DirichletTeacher(), {"num_draws": 100, "wasserstein_inputs": 0, "seed": 0}
    mean = fidelity(shifted, teacher, x, **options)
    assert not mean.faithful and "Beyond its limit: the mean" in mean.verdict
    assert mean.draws < 100
    spread = fidelity(student(1.4), teacher, x, **options)
    assert not spread.faithful and spread.draws > 200
    assert "Beyond its limit: the mutual information" in spread.verdict


def test_a_student_that_ranks_inputs_the_wrong_way_round_is_not_faithful(x: Tensor) -> None:
    def reversed_ranks(x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(alpha(x) * torch.exp(-x[:, :1].clamp(-2, 2)))

    for student_, wrong_way in ((reversed_ranks, True), (student(), False)):
        report = fidelity(student_, DirichletTeacher(), x, num_draws=100, seed=0)
        assert ("ranks unlike the teacher's" in report.verdict) == wrong_way
        assert (report.mutual_information_spearman < 0.5) == wrong_way
        assert report.faithful != wrong_way


def test_few_inputs_say_little(x: Tensor) -> None:
    for count in (1, 2, 9):
        report = fidelity(student(), DirichletTeacher(), x[:count], num_draws=50, seed=0)
        assert report.verdict.startswith("Undecided, not graded: ")
        assert f"{count} inputs say little" in report.verdict and "at more inputs" in report.advice
        assert report.faithful is None
        assert all(row.faithful is None for row in report.by_certainty)
    everywhere = fidelity(student(9.0), DirichletTeacher(), x[:9], num_draws=50, seed=0)
    assert everywhere.faithful is None and everywhere.grade == "not graded"


def test_a_report_is_shown_in_a_notebook(x: Tensor) -> None:
    report = fidelity(student(), DirichletTeacher(), x[:30], num_draws=50, seed=0)
    shown = report._repr_html_()
    assert shown.startswith(("<p><b>Faithful", "<p><b>Cannot", "<p><b>Undecided"))
    assert "of the draws&#x27; spread" in shown and shown.count("<table>") == 2


def test_to_dict_is_strict_json(x: Tensor) -> None:
    report = fidelity(student(), DirichletTeacher(), x[:1], num_draws=20, seed=0)
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    rows = numbers["sets"]["held-out"]["rows"]
    assert rows["kl"]["student"] == pytest.approx(report.kl)
    assert rows["variance_spearman"]["student"] is None  # of one input
    assert numbers["num_draws"] == 20 and numbers["max_draws"] is None
    assert numbers["faithful"] is None and numbers["draws"] == report.draws
    assert numbers["draws_interval"] == list(report.draws_interval)


def test_seed(x: Tensor) -> None:
    state = torch.get_rng_state()
    first = fidelity(student(), DirichletTeacher(), x, num_draws=20, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    again = fidelity(student(), DirichletTeacher(), x, num_draws=20, seed=3)
    other = fidelity(student(), DirichletTeacher(), x, num_draws=20, seed=4)
    assert str(first) == str(again) != str(other)
    fidelity(student(), DirichletTeacher(), x, num_draws=20)
    assert not torch.equal(torch.get_rng_state(), state)


def test_memory_is_bounded_by_the_chunk(x: Tensor) -> None:
    teacher = DirichletTeacher()
    small = fidelity(student(), teacher, x, num_draws=50, chunk_size=7, seed=0)
    assert max(teacher.asked) <= 7 * 2 * 50
    whole = fidelity(student(), teacher, x, num_draws=50, chunk_size=1000, seed=0)
    # Other draws of the same distributions: Monte Carlo, a standard error of about 10 % each.
    assert small.kl == pytest.approx(whole.kl, rel=0.6)
    assert small.wasserstein == pytest.approx(whole.wasserstein, rel=0.3)
    assert small["held-out"].wasserstein_inputs == 64


def test_a_teacher_without_spread(x: Tensor) -> None:
    """A concentration of infinity is asked for, and a mutual information of zero."""

    def certain(x: Tensor, num_draws: int) -> Tensor:
        return torch.softmax(x, -1).expand(num_draws, -1, -1)

    report = fidelity(student(), certain, x, num_draws=10, seed=0)
    assert report.energy_distance_floor == pytest.approx(0, abs=1e-6)  # rounding
    assert report.energy_distance_best < 1e-3  # a concentration of 1e8
    assert math.isnan(report.mutual_information_spearman)


def test_a_teacher_of_corners(x: Tensor) -> None:
    """A concentration of zero is asked for."""

    def corners(x: Tensor, num_draws: int) -> Tensor:
        chosen = torch.distributions.Categorical(logits=x).sample((num_draws,))
        return torch.nn.functional.one_hot(chosen, NUM_CLASSES).to(x)

    report = fidelity(student(), corners, x, num_draws=200, seed=0)
    assert report.energy_distance_best < 0.01 < report.energy_distance
    assert all(math.isfinite(report["held-out"].rows[row].best) for row in ("kl", "coverage_90"))
