"""Detection of errors and of inputs from elsewhere."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.reports.detection import detection, misclassification, out_of_domain
from pyro_opu.reports.readings import MEASURES
from pyro_opu.utils import chunks


def student(x: Tensor) -> PredictiveDirichlet:
    """Confident along an axis, and the surer the longer the input."""
    alpha = torch.softmax(3 * x, -1) * x.norm(dim=-1, keepdim=True).exp() * 2
    return PredictiveDirichlet.from_alpha(alpha)


def teacher(x: Tensor, num_draws: int) -> Tensor:
    return student(x).sample((num_draws,))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(300, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def y(x: Tensor) -> Tensor:
    return torch.distributions.Categorical(student(x).mean).sample()


def test_misclassification_equals_scikit_learn(x: Tensor, y: Tensor) -> None:
    scores = misclassification(student, x, y)
    assert tuple(scores) == MEASURES
    answer = student(x)
    measures = uncertainty(answer)
    wrong = (answer.mean.argmax(-1) != y).numpy()
    suspect = {
        **{name: measures[name] for name in MEASURES},
        "max_probability": 1 - measures.max_probability,
        "concentration": -measures.concentration.log(),
    }
    for name, values in suspect.items():
        # Ties and near-ties: rounding of 1 - max in float32.
        assert scores[name].auroc == pytest.approx(roc_auc_score(wrong, values), abs=1e-3)
        assert scores[name].aupr == pytest.approx(average_precision_score(wrong, values), abs=1e-3)


def test_teacher_and_student_agree_where_the_student_is_right(x: Tensor, y: Tensor) -> None:
    report = detection(student, teacher, x, y, {"short": x / 4}, num_draws=400, seed=0)
    for name in ("misclassification", "short"):
        for measure in MEASURES:
            scores = report[name].student[measure], report[name].teacher[measure]
            # Monte Carlo at 400 draws.
            assert scores[0].auroc == pytest.approx(scores[1].auroc, abs=0.05), (name, measure)
    assert report.student.accuracy == pytest.approx(report.teacher.accuracy, abs=0.03)
    assert report.student.nll == pytest.approx(report.teacher.nll, abs=0.03)
    assert report["misclassification"].student == misclassification(student, x, y)
    assert report["short"].student == out_of_domain(student, x, x / 4)


def test_sources_are_told_apart(x: Tensor, y: Tensor) -> None:
    draws = misclassification(teacher, x, y, num_draws=400, seed=0)
    closed = misclassification(student, x, y)
    assert draws["entropy"].auroc == pytest.approx(closed["entropy"].auroc, abs=0.02)  # Monte Carlo
    assert draws != closed
    assert draws == misclassification(teacher, x, y, num_draws=400, seed=0)


def test_a_finite_posterior_gives_all_it_has(x: Tensor, y: Tensor) -> None:
    weights = torch.eye(3) + 0.3 * torch.randn(7, 3, 3)
    report = detection(student, lambda x: torch.softmax(3 * x @ weights, -1), x, y, num_draws=500)
    assert report.num_draws == 7
    assert report["misclassification"].teacher["entropy"].auroc > 0.5


def test_trivial_rows_take_the_better_direction(x: Tensor, y: Tensor) -> None:
    report = detection(student, teacher, x, y, {"short": x / 4, "lowered": x - 2}, num_draws=20)
    assert not report["misclassification"].trivial
    norm = np.concatenate([x.norm(dim=-1), x.norm(dim=-1) / 4])
    direct = roc_auc_score(np.arange(600) >= 300, norm)
    assert direct < 0.1
    assert report["short"].trivial["input_norm"].auroc == pytest.approx(1 - direct)
    assert report["short"].trivial["input_norm"].aupr > 0.9
    assert report["lowered"].trivial["input_mean"].auroc > 0.9


def test_confident_inputs_keep_their_order() -> None:
    """Where 1 - max is below the resolution of float32."""
    x = torch.linspace(20, 30, 50)[:, None] * torch.tensor([[1.0, 0.0, 0.0]])
    scores = out_of_domain(
        lambda x: PredictiveDirichlet(x.log_softmax(-1), x[:, 0]), x[25:], x[:25]
    )
    assert scores["max_probability"].auroc == 1


def test_no_error_has_no_auroc(x: Tensor) -> None:
    y = student(x).mean.argmax(-1)
    report = detection(student, teacher, x, y, num_draws=2000, seed=0)
    assert all(math.isnan(score.auroc) for score in report["misclassification"].student.values())
    assert report.student.accuracy == 1
    text = str(report)
    assert "n/a: the student" in text and "there is nothing to tell apart" in text
    with pytest.raises(ValueError, match="no AUROC of the student is defined for 'misclassificat"):
        report.best("student", "misclassification")
    json.dumps(report.to_dict(), allow_nan=False)


def test_best(x: Tensor, y: Tensor) -> None:
    report = detection(student, teacher, x, y, {"short": x / 4}, num_draws=50, seed=0)
    for epistemic, allowed in ((False, set(MEASURES)), (True, set(MEASURES[2:]))):
        name, score = report.best("teacher", "short", epistemic=epistemic)
        assert name in allowed
        assert score.auroc == max(report["short"].teacher[other].auroc for other in allowed)
    with pytest.raises(ValueError, match="`who` must be 'student' or 'teacher'; got 'me'"):
        report.best("me", "short")
    with pytest.raises(KeyError, match="no table 'long'; there are misclassification, short"):
        report.best("student", "long")


def test_table_and_dictionary(x: Tensor, y: Tensor) -> None:
    report = detection(student, teacher, x, y, {"short": x / 4}, num_draws=50, seed=0)
    assert list(report) == ["misclassification", "short"]
    text = str(report)
    for expected in ("accuracy", "in 300 inputs", "short: find the 300 outside inputs in 600"):
        assert expected in text
    assert all(len(line) <= 100 for line in text.splitlines())
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    entry = numbers["tables"]["short"]["student"]["entropy"]
    assert entry["auroc"] == report["short"].student["entropy"].auroc
    assert numbers["student"]["brier"] == report.student.brier
    assert numbers["tables"]["short"]["num_positive"] == {"student": 300, "teacher": 300}


def test_memory_is_bounded_by_the_chunk(
    x: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, whole = [], misclassification(student, x, y)
    monkeypatch.setattr(chunks, "_INPUTS_AT_ONCE", 7)

    def watched(x: Tensor, num_draws: int) -> Tensor:
        asked.append(len(x))
        return teacher(x, num_draws)

    detection(student, watched, x, y, num_draws=10)
    assert max(asked) == 7
    assert misclassification(student, x, y) == whole


def test_seed_leaves_the_generator_alone(x: Tensor, y: Tensor) -> None:
    state = torch.get_rng_state()
    first, again = (detection(student, teacher, x, y, num_draws=10, seed=1) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert str(first) == str(again)


def test_draws_that_all_agree(x: Tensor, y: Tensor) -> None:
    """An infinite concentration is ranked, as the surest."""

    def certain(x: Tensor, num_draws: int) -> Tensor:
        same = student(x).mean.expand(num_draws, -1, -1)
        other = student(x).sample((num_draws,))
        return torch.where(x[:, :1] > 0, same, other)

    scores = out_of_domain(certain, x[x[:, 0] > 0], x[x[:, 0] <= 0], num_draws=20)
    # Not quite 1: draws of an input near a corner may all round to the same point too.
    assert scores["concentration"].auroc > 0.97 and scores["variance"].auroc > 0.97
