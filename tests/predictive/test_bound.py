"""Bounds on the distance from the teacher: known distances, kept rows, coverage, files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_rows import WEIGHTS, quick, rows, teacher
from scipy.stats import beta, binomtest
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveDirichlet
from pyro_opu.distributions import PredictiveNormal
from pyro_opu.judging import ClassJudge, RealJudge
from pyro_opu.judging.certificate import certified, conformal, differing, margin
from pyro_opu.judging.classes import decisive
from pyro_opu.training.certify import FEW, SINGLE, TAUGHT
from pyro_opu.training.held_out import keep_apart

pytestmark = pytest.mark.usefixtures("brief")

RARE = 1e-5  # of a test that can fail by chance


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return quick(teacher, rows(1000))


# Arithmetic


@pytest.mark.parametrize("ties", [False, True])
def test_a_new_score_is_below_its_bound_as_often_as_promised(ties: bool) -> None:
    """Exactly 38 of 40 where no scores are equal, and no less often where some are."""
    g, count, trials = np.random.default_rng(0), 39, 20_000
    drawn = g.random((trials, count + 1))
    drawn = np.ceil(6 * drawn) if ties else drawn
    bounds = np.array([conformal(sorted(row[:-1]), 0.95) for row in drawn])
    below = int((drawn[:, -1] <= bounds).sum())
    assert binomtest(below, trials, 38 / 40, "less").pvalue > RARE
    assert ties or binomtest(below, trials, 38 / 40).pvalue > RARE


@pytest.mark.parametrize(
    ("level", "count"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (2 / 3, 2)]
)
def test_so_many_rows_are_enough_and_one_less_is_not(level: float, count: int) -> None:
    scores = [float(k) for k in range(count)]
    assert conformal(scores, level) == count - 1
    assert conformal(scores[:-1], level) is None


def test_decisions_beyond_the_margin_are_seldom_others() -> None:
    """At most 5 rows in 100 are both beyond it and decided otherwise."""
    g, wrong, beyond, trials = np.random.default_rng(1), 0, 0, 5000
    for _ in range(trials):
        theirs = g.random(60)
        mine = np.clip(theirs + 0.2 * g.standard_normal(60), 0, 1)
        pairs = np.stack([mine, theirs], 1)
        at = margin(pairs[:-1].tolist(), 0.95, 0.3)
        settled = abs(mine[-1] - 0.3) > at
        beyond += settled
        wrong += settled and (mine[-1] > 0.3) != (theirs[-1] > 0.3)
    assert binomtest(wrong, trials, 0.05, "greater").pvalue > RARE and beyond > trials / 4


@pytest.mark.parametrize("wrong", [0, 1, 7, 50])
def test_the_share_of_other_decisions_is_that_of_clopper_and_pearson(wrong: int) -> None:
    pairs = [[0.9, 0.1]] * wrong + [[0.2, 0.3]] * (50 - wrong)
    expected = binomtest(wrong, 50, alternative="less").proportion_ci(0.9).high
    assert differing(pairs, 0.9, 0.5) == pytest.approx(expected)


def test_only_certain_decisions_are_counted() -> None:
    pairs = [[0.55, 0.45]] * 10 + [[0.9, 0.8]] * 30
    sure = binomtest(0, 30, alternative="less").proportion_ci(0.95).high
    assert differing(pairs, 0.95, 0.5, 0.3) == pytest.approx(sure)
    assert differing(pairs, 0.95, 0.5, 0.45) == 1.0


# Scores


def of_alpha(alpha: Tensor) -> PredictiveDirichlet:
    total = alpha.sum(-1, keepdim=True)
    return PredictiveDirichlet((alpha / total).log(), total[..., 0].log())


class Fixed(torch.nn.Module):
    """Answers by the number of the row."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer


def test_scores_of_classes_are_those_of_a_loop() -> None:
    g = torch.Generator().manual_seed(0)
    draws = torch.rand(7, 25, 4, generator=g).softmax(-1)
    answer = of_alpha(torch.rand(25, 4, generator=g) * 5 + 0.1)
    found = certified(ClassJudge(rows(25), draws, 7), Fixed(answer))["sites"][""]
    distances, pairs = [], []
    for mine, theirs in zip(answer.mean.tolist(), draws.mean(0).tolist(), strict=True):
        distances.append(sum(abs(a - b) for a, b in zip(mine, theirs, strict=True)) / 2)
        best = mine.index(max(mine))
        pairs.append([p[best] - max(p[:best] + p[best + 1 :]) for p in (mine, theirs)])
    assert found["mean"] == pytest.approx(sorted(distances), rel=1e-4)
    assert torch.tensor(found["decisions"]).numpy() == pytest.approx(np.array(pairs), abs=1e-5)
    assert found["threshold"] == 0.0


def test_two_classes_are_decided_by_the_second() -> None:
    probs = torch.tensor([[[0.3, 0.7], [0.9, 0.1]]])
    judge = ClassJudge(rows(2), probs.expand(2, 2, 2), 2)
    answer = of_alpha(torch.tensor([[4.0, 6.0], [8.0, 2.0]]))
    found = certified(judge, Fixed(answer))["sites"][""]
    expected = torch.tensor([[0.6, 0.7], [0.2, 0.1]])
    torch.testing.assert_close(torch.tensor(found["decisions"]), expected)
    assert found["threshold"] == 0.5 and found["mean"] == pytest.approx([0.1, 0.1])


def test_scores_of_a_real_y_are_in_its_deviations() -> None:
    f, log_scale = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.zeros(2, 2)
    judge = RealJudge(rows(2), torch.stack([f, log_scale], -1), 2)
    answer = PredictiveNormal(
        torch.tensor([2.0, 3.0]), torch.zeros(2), torch.tensor([2.0, 0.02]).log()
    )
    found = certified(judge, Fixed(answer))["sites"][""]
    assert found["mean"] == pytest.approx([0.0, 3.0])  # variances 1 + 2, and 1 + 0
    assert found["epistemic"][0] == pytest.approx(1.0) and "decisions" not in found


def test_a_lead_is_over_any_other_class() -> None:
    mean = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    assert decisive(mean, torch.tensor([1, 2])).tolist() == pytest.approx([-0.2, 0.5])


# Students


def test_kept_rows_are_seen_once_the_student_is_made() -> None:
    """A teacher that keeps what it is asked: they are asked about in its last call alone."""
    x, asked = rows(300), []

    def watched(x: Tensor) -> Tensor:
        asked.append(x.clone())
        return teacher(x)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=50)
    for given in (x, loader):
        asked.clear()
        found = quick(watched, given)
        kept = keep_apart(x)[0]
        hits = [bool((each[:, None] == kept).all(-1).any()) for each in asked]
        assert hits.count(True) == 1 and hits[-1] and len(kept) == 30
        assert found.report["bound"]["num_rows"] == 30
        assert torch.equal(asked[-1], kept)


def test_no_more_fresh_rows_than_promised_are_beyond_it(fast: OnePassPredictive) -> None:
    """Coverage given the kept rows is a Beta variate; new rows are many."""
    new = rows(20_000, seed=1)
    apart = (fast.distribution(new).mean - teacher(new).mean(0)).abs().sum(-1) / 2
    for level in (0.5, 0.9, 0.95, 0.99):
        place = math.ceil(101 * level - 1e-9)
        share = (apart <= fast.bound(level)).double().mean().item()
        low, high = beta.ppf([RARE, 1 - RARE], place, 101 - place)
        assert low <= share <= high
    assert fast.bound(0.995) is None


def test_all_draws_of_a_small_posterior_are_the_teacher(fast: OnePassPredictive) -> None:
    found = fast.report["bound"]
    assert (found["num_rows"], found["num_draws"], found["held"]) == (100, 20, 20)
    kept = keep_apart(rows(1000))[0]
    apart = (fast.distribution(kept).mean - teacher(kept).mean(0)).abs().sum(-1) / 2
    assert fast.bound(0.99) == pytest.approx(float(apart.max()), rel=1e-3)


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
def test_a_teacher_of_fresh_draws_is_asked_as_often_as_a_user_would() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Dropout(0.1))
    source = pyro_opu.as_teacher(network, output="classes", num_samples=40)
    found = quick(source, rows(250)).report["bound"]
    assert (found["num_rows"], found["num_draws"], found["held"]) == (25, 40, None)


def test_a_report_says_it_and_a_file_keeps_it(fast: OnePassPredictive, tmp_path: Path) -> None:
    line = next(line for line in str(fast.report).splitlines() if line.startswith("bound"))
    assert "total variation at most" in line and "100 kept" in line
    fast.save(tmp_path / "fast.safetensors")
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    for of in ("mean", "epistemic", "decision", "margin"):
        assert again.bound(0.9, of=of) == fast.bound(0.9, of=of)
    fast.save(f"{tmp_path}/folder/")
    assert line in (tmp_path / "folder" / "README.md").read_text()
    del again.report["bound"]  # as of an older file
    assert again.bound() is None


def test_a_program_says_it(fast: OnePassPredictive, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    names = ["trust", "mean", "bound", "novelty"]
    fast.export(tmp_path / "fast.onnx", outputs=names)
    model = onnx.load(tmp_path / "fast.onnx")
    said = json.loads({each.key: each.value for each in model.metadata_props}["pyro_opu"])
    assert said["bound"] == {f"{at}": fast.bound(at) for at in (0.9, 0.95, 0.99)}
    assert said["margin"]["0.99"] == fast.bound(0.99, of="margin")
    x = torch.cat([rows(300, seed=7), 9 * rows(20, seed=8)])
    trust, _, bound, _ = runtime.InferenceSession(tmp_path / "fast.onnx").run(
        names, {"x": x.numpy()}
    )
    inside = (fast.novelty(x) <= 0.99).numpy()
    assert 250 < inside.sum() <= 300 and np.array_equal(trust, inside)
    assert np.array_equal(bound, np.where(inside, np.float32(fast.bound()), np.inf))


def test_too_few_rows_say_so() -> None:
    few = quick(teacher, rows(189))
    assert few.bound(0.5) is None and few.report["bound"] == {"reason": FEW}
    assert "it takes 190 transfer inputs" in str(few.report)
    enough = quick(teacher, rows(190))
    assert enough.bound(0.95) > 0 and enough.bound(0.96) is None
    single = quick(teacher, rows(190), training=pyro_opu.Training(num_draws=1))
    assert single.report["bound"] == {"reason": SINGLE}


def test_a_student_that_follows_another_has_one_if_the_rows_are_the_same() -> None:
    first = quick(teacher, rows(300))
    assert quick(teacher, rows(300), start=first, seed=7).bound() > 0
    assert quick(teacher, rows(300, 1), start=first).report["bound"] == {"reason": TAUGHT}
    assert quick(teacher, rows(300), start=quick(teacher, rows(100))).bound() is None


def test_several_sites_have_one_each() -> None:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Predictive

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("ill", dist.Bernoulli(logits=x @ w))
            pyro.sample("dose", dist.Normal(x @ w, 1.0))
            pyro.sample("visits", dist.Poisson((x @ w / 4).exp()))

    found = quick(Predictive(model, {"w": WEIGHTS[..., 0]}), rows(200))
    assert set(found.bound()) == {"ill", "dose", "visits"}
    assert set(found.bound(of="decision")) == {"ill"}
    assert all(factor >= 1 for factor in found.bound(of="epistemic").values())
    assert "dose deviations at most" in str(found.report)


def test_a_threshold_is_that_of_the_second_class() -> None:
    two = quick(
        lambda x: teacher(x)[..., :2] / teacher(x)[..., :2].sum(-1, keepdim=True), rows(400)
    )
    pairs = np.array(two.report["bound"]["sites"][""]["decisions"])
    for threshold in (0.2, 0.5):
        otherwise = ((pairs > threshold)[:, 0] != (pairs > threshold)[:, 1]).sum()
        expected = beta.ppf(0.9, otherwise + 1, len(pairs) - otherwise)
        assert two.bound(0.9, of="decision", threshold=threshold) == pytest.approx(expected)
    assert two.bound(0.9, of="margin") <= two.bound(0.9)
