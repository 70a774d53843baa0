"""What a student's two moments are read as: a Dirichlet, or sticks with normal logits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from flat import distill_flat
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveDirichlet, PredictiveGuide
from pyro_opu.distributions import NormalSticks
from pyro_opu.guides.fused import OneHeadGuide
from pyro_opu.judging import ClassJudge, laws
from pyro_opu.judging.laws import nearer_law

WEIGHTS = torch.randn(400, 3, 4, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(3, 4)
X = torch.randn(150, 3, generator=torch.Generator().manual_seed(1))


def of_logits(x: Tensor) -> Tensor:
    """A posterior over the weights of a regression: its logits are normal."""
    return (x @ WEIGHTS).softmax(-1)


def dirichlet(x: Tensor, num_draws: int = 400) -> Tensor:
    mean = torch.cat([x, x[:, :1]], 1).log_softmax(-1)
    return PredictiveDirichlet(mean, x[:, 0] + 2).sample((num_draws,))


def distilled(teacher=of_logits, **settings) -> OnePassPredictive:
    options = {"num_steps": 40, "batch_size": 128, "seed": 0, "progress": False, **settings}
    return distill_flat(teacher, X, **options)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distilled(num_steps=200)


def test_draws_choose(fast: OnePassPredictive) -> None:
    answer = fast.distribution(X[:5])
    assert isinstance(answer, NormalSticks) and fast.report["family"] == "NormalSticks"
    found = fast.report["recalibration"]
    assert found["law"] == "sticks" and abs(found["shift"]) < 0.1
    assert found["after"] <= found["before"]
    matched = fast.dirichlet(X[:5])
    assert torch.equal(matched.mean, answer.mean)
    assert torch.equal(matched.log_concentration, answer.log_concentration)
    assert torch.equal(fast.uncertainty(X[:5]).epistemic, answer.measures().epistemic.float())
    other = distilled(dirichlet)
    assert isinstance(other.distribution(X[:5]), PredictiveDirichlet)
    assert other.report["recalibration"]["law"] == "dirichlet"


@pytest.mark.slow
def test_it_is_nearer_and_knows_what_labels_would_tell(fast: OnePassPredictive) -> None:
    named = distilled(guide="dirichlet", num_steps=200)
    draws = of_logits(X)
    truth = pyro_opu.mutual_information(draws).mean()
    energies, informations = [], []
    for student in (fast, named):
        torch.manual_seed(0)
        samples = student.distribution(X).sample((400,))
        energies.append(laws.Marginals(draws).energy_distance(samples).mean())
        informations.append(abs(student.uncertainty(X).epistemic.mean() / truth - 1))
    assert isinstance(named.distribution(X), PredictiveDirichlet)
    assert energies[0] < 0.6 * energies[1]
    assert informations[0] < 0.1


def test_a_network_of_this_package_is_open_too() -> None:
    assert isinstance(distilled(guide="network").distribution(X), NormalSticks)


@pytest.mark.parametrize("settings", [{"guide": "dirichlet"}, {"recalibrate": False}])
def test_it_is_the_dirichlet_where_nothing_is_to_be_chosen(settings: dict) -> None:
    assert isinstance(distilled(num_steps=5, **settings).distribution(X), PredictiveDirichlet)


def test_a_level_gain_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = ClassJudge(X, of_logits(X))
    guide = distilled(guide="dirichlet", recalibrate=False).guide
    assert nearer_law(guide, labelled)["law"] == "sticks"
    monkeypatch.setattr(laws, "LEVEL", 1.0)
    assert nearer_law(guide, labelled)["law"] == "dirichlet"
    monkeypatch.setattr(laws, "LEVEL", 0.0)
    monkeypatch.setattr(laws, "MOST_STICKS", 3)
    assert nearer_law(guide, labelled)["law"] == "dirichlet"


def test_saved_fused_and_captured(
    fast: OnePassPredictive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast.save(tmp_path / "s.safetensors")
    again = OnePassPredictive.load(tmp_path / "s.safetensors")
    assert isinstance(again.distribution(X), NormalSticks)
    for name, value in fast.uncertainty(X).to_dict().items():
        assert torch.equal(again.uncertainty(X)[name], value), name
    fused = fast.fuse()
    assert isinstance(fused.distribution(X), NormalSticks)
    torch.testing.assert_close(
        fused.uncertainty(X).epistemic, fast.uncertainty(X).epistemic, rtol=1e-3, atol=1e-5
    )
    monkeypatch.setattr(torch, "compile", lambda run, **options: run)
    captured = fast.capture(X[:4])(X[:4])  # of the mean and the concentration
    torch.testing.assert_close(captured.mean, fast.dirichlet(X[:4]).mean)


@pytest.mark.slow
def test_programs_have_the_same_numbers(fast: OnePassPredictive, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    names = ["epistemic", "expected_pairwise_kl", "variance", "differential_entropy"]
    fast.export(tmp_path / "s.onnx", outputs=names)
    values = runtime.InferenceSession(tmp_path / "s.onnx").run(names, {"x": X.numpy()})
    found = dict(zip(names, map(torch.from_numpy, values), strict=True))
    expected = fast.uncertainty(X)
    for name in names:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_a_later_student_chooses_anew(fast: OnePassPredictive) -> None:
    again = distilled(start=fast)
    assert isinstance(again.distribution(X), NormalSticks)
    other = distilled(dirichlet, start=fast)
    assert isinstance(other.distribution(X), PredictiveDirichlet)
    assert isinstance(fast.distribution(X), NormalSticks)  # a copy was trained
    named = distilled(guide="dirichlet", num_steps=5)
    kept = distilled(start=named, num_steps=5)
    assert isinstance(kept.distribution(X), PredictiveDirichlet)


def test_joint_answers_have_the_law_of_the_default() -> None:
    joint = distilled(guide="joint", num_samples=50)
    assert isinstance(joint.distribution(X[:3]), NormalSticks)


def test_read_as() -> None:
    guide = PredictiveGuide.for_inputs(X, 4)
    guide.read_as("sticks")
    assert guide.config is not None and guide.config["law"] == "sticks"
    again = PredictiveGuide.from_config(guide.config)
    assert isinstance(again(X[:2]), NormalSticks)
    student = OnePassPredictive(guide, (3,), 4).fuse()
    assert isinstance(student.guide, OneHeadGuide)
    assert isinstance(student.distribution(X[:2]), NormalSticks)
    guide.read_as("dirichlet")
    assert "law" not in guide.config and isinstance(guide(X[:2]), PredictiveDirichlet)
    with pytest.raises(ValueError, match="`law` must be one of"):
        guide.read_as("beta")


def test_a_report_of_it(fast: OnePassPredictive) -> None:
    report = pyro_opu.fidelity(fast, of_logits, X, seed=0)
    assert report.energy_distance < report.energy_distance_best  # that of the best Dirichlet
    assert "Normal Sticks per input" in str(fast.report)
    assert math.isfinite(report["coverage_50"].student)


@pytest.mark.parametrize(
    ("share", "errors", "law"),
    [(0.001, 50, "dirichlet"), (0.004, 50, "sticks"), (0.1, 2, "dirichlet"), (0.1, 5, "sticks")],
)
def test_sticks_are_nearer_by_a_share_of_the_spread_and_by_more_than_chance(
    monkeypatch: pytest.MonkeyPatch, share: float, errors: float, law: str
) -> None:
    """A gain of this share of the draws' spread, as large as so many of its standard errors."""

    def distances(inputs: ClassJudge, answer: object, numbers: int) -> Tensor:
        off = torch.tensor([1.0, -1.0]).repeat(50) * 10 / errors
        gain = share * inputs.marginals.spread.mean() * (1 + off)
        return gain * (not isinstance(answer, NormalSticks))

    monkeypatch.setattr(laws, "_fewer", lambda inputs: inputs)
    monkeypatch.setattr(laws, "distances", distances)
    draws = of_logits(X[:100])[:20]
    guide = PredictiveGuide.for_inputs(X, 4, hidden=(4,))
    assert nearer_law(guide, ClassJudge(X[:100], draws))["law"] == law
