"""Guides that answer with more than one Dirichlet: one list for all, and what they learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flat import distill_flat
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from pyro_opu import (
    EnergyDistance,
    OnePassPredictive,
    PredictiveDirichlet,
    WassersteinELBO,
    fidelity,
    out_of_domain,
    uncertainty,
)
from pyro_opu.distributions import DirichletMixture, SimplexDistribution
from pyro_opu.guides import (
    GUIDES,
    LogisticNormalGuide,
    MixtureGuide,
    TrunkGuide,
)
from pyro_opu.metrics.distances import energy_distance
from pyro_opu.objectives import DirichletLikelihood, as_objective
from pyro_opu.objectives.encounter import Encounter
from pyro_opu.objectives.likelihood import LikelihoodFirst

pytestmark = pytest.mark.usefixtures("coarse")

C = 3
RICH: dict[str, type[TrunkGuide]] = {
    "mixture": MixtureGuide,
    "logistic_normal": LogisticNormalGuide,
}
every_kind = pytest.mark.parametrize("kind", RICH)
CORNERS = (0.85 * torch.eye(C) + 0.05)[None].log()


def teacher_answer(x: Tensor) -> DirichletMixture:
    """Three hypotheses, each near a corner, whose weights depend on x."""
    weights = x[:, :1] * torch.tensor([1.0, 0.0, -1.0])
    return DirichletMixture(weights, CORNERS.expand(len(x), -1, -1), torch.full((len(x), C), 4.0))


def teacher(x: Tensor, num_draws: int = 100) -> Tensor:
    return teacher_answer(x).sample((num_draws,))


def inputs(rows: int = 200, seed: int = 5) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))


def quick(kind: str | nn.Module, source: Callable = teacher, **changes: Any) -> OnePassPredictive:
    settings: dict[str, Any] = {
        "num_steps": 12,
        "batch_size": 16,
        "num_draws": 8,
        "evaluate_every": 6,
        "seed": 0,
        "progress": False,
    }
    return distill_flat(source, inputs(), guide=kind, **{**settings, **changes})


# All alike -----------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("classes", [2, 5])
def test_shapes_and_a_start_that_is_open(kind: str, rows: int, classes: int) -> None:
    guide = RICH[kind].for_inputs(inputs(), classes, hidden=(16, 8))
    answer = guide(inputs(rows))
    assert isinstance(answer, SimplexDistribution)
    assert answer.batch_shape == (rows,) and answer.event_shape == (classes,)
    # Neither a class nor a certainty is taken for granted before training.
    assert answer.mean.min() > 0.6 / classes
    assert (answer.measures().epistemic > 0.02).all()


@every_kind
@pytest.mark.parametrize("size", [1e2, 1e10])
def test_wild_features_give_finite_answers_and_gradients(kind: str, size: float) -> None:
    guide = RICH[kind](nn.Identity(), 2, C)
    x = size * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    answer = guide(x)
    assert answer.sample((9,)).isfinite().all() and answer.log_mean.isfinite().all()
    # Float32 rounding of logits of this size may say that two are equal, but no more.
    assert answer.measures().epistemic.isfinite().all()
    EnergyDistance(8)(answer, teacher(inputs(4), 4), x).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in guide.parameters())


@every_kind
def test_the_name_is_enough_and_the_result_is_a_full_student(kind: str, tmp_path: Path) -> None:
    assert GUIDES[kind] is RICH[kind]
    fast, fresh = quick(kind), inputs(20, seed=6)
    assert type(fast.guide) is RICH[kind]
    assert fast.report["loss"] == "LikelihoodFirst"  # the default, by its density
    assert fast(fresh)["obs"].shape == (fast.num_samples, 20)
    measures = fast.uncertainty(fresh)
    assert measures.variance.shape == (20,) and all(
        v.isfinite().all() for v in dict(measures).values()
    )
    matched = fast.dirichlet(fresh)
    torch.testing.assert_close(matched.mean, fast.distribution(fresh).mean)
    # Rounding of the concentration to float32.
    torch.testing.assert_close(matched.variance.sum(-1), measures.variance, rtol=1e-4, atol=0)
    report = fidelity(fast, teacher, fresh, num_draws=1000, seed=0, wasserstein_inputs=4)
    # Twelve steps: a third nearer than one Dirichlet for all inputs, and nearly all draws in.
    # By 1000 draws the ratio, 0.63, has a standard error of 0.014: the limit is five of them away.
    assert report.energy_distance < 0.7 * report.energy_distance_trivial
    assert 0.75 < report.coverage_90 < 1
    scores = out_of_domain(fast, fresh, fresh + 1)
    epistemic = torch.cat([measures.epistemic, fast.uncertainty(fresh + 1).epistemic])
    expected = roc_auc_score([0] * 20 + [1] * 20, epistemic)
    assert scores["mutual_information"].auroc == pytest.approx(expected)
    fast.save(tmp_path / "fast.safetensors")
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    assert type(again.guide) is RICH[kind]
    assert torch.equal(again.distribution(fresh).log_mean, fast.distribution(fresh).log_mean)
    torch.manual_seed(1)
    expected = fast(fresh)["obs"]
    torch.manual_seed(1)
    assert torch.equal(again(fresh)["obs"], expected)


@every_kind
@pytest.mark.parametrize("loss", ["energy", "likelihood", "moments", "cross_entropy"])
def test_every_loss_trains_it(kind: str, loss: str) -> None:
    objective = as_objective(loss)
    guide, x = RICH[kind].for_inputs(inputs(), C, hidden=(32,)), inputs(64)
    optimizer = torch.optim.Adam(guide.parameters(), 0.01)
    losses = []
    for _ in range(40):
        value = objective(guide(x), teacher(x, 32), x)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    values = torch.stack(losses)
    # Of all five last steps beyond what the draws of a step make it vary; some losses are near
    # their least after five.
    assert values[-5:].max() < values[0]
    assert values[-5:].mean() < values[:5].mean()


@every_kind
def test_same_seed_same_weights(kind: str) -> None:
    one, other = (quick(kind).guide.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


# Each by itself ------------------------------------------------------------------------------


def test_components_begin_apart() -> None:
    guide = MixtureGuide.for_inputs(inputs(), C)
    components = guide(inputs(20)).components
    means = components.mean
    gaps = (means[:, :, None] - means[:, None]).abs().sum(-1).mean(0)
    gaps = gaps + 2 * torch.eye(guide.num_components)
    assert gaps.amin() > 1e-2  # mean l1 gaps of any two, at most 2; chance makes them near 0.05


# The start of training -----------------------------------------------------------------------


def test_likelihood_first_is_one_objective_and_then_the_other() -> None:
    objective, x = LikelihoodFirst(until=0.5), inputs(6)
    student, draws = teacher_answer(x), teacher(x, 8)

    def parts(other: Any) -> list[float]:
        torch.manual_seed(1)
        return [float(value) for value in other.parts(student, draws, x).values()]

    for progress in (0.0, 0.49):
        objective.anneal(progress)
        assert parts(objective) == parts(DirichletLikelihood())
    for progress in (0.5, 1.0):
        objective.anneal(progress)
        assert parts(objective) == parts(EnergyDistance(likelihood=1.0))


class WithoutDensity(nn.Module):
    """A guide of a user's own whose answer has no density."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MixtureGuide(nn.Linear(2, 8), 8, C)

    def forward(self, x: Tensor) -> SimplexDistribution:
        class Undefined(DirichletMixture):
            log_prob = SimplexDistribution.log_prob

        answer = self.inner(x)
        return Undefined(
            answer.log_weights, answer.components.log_mean, answer.components.log_concentration
        )


def test_an_answer_without_a_density_can_be_taught() -> None:
    assert quick(WithoutDensity()).report["history"][1]["phase"] == "warm start"


def same_marginals(x: Tensor, num_draws: int = 100) -> Tensor:
    """Classes 0 and 1 likely together, or 2 and 3: each class alone looks as the others."""
    pair = torch.tensor([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]]).log()
    rows = pair.expand(len(x), -1, -1)
    mixture = DirichletMixture(torch.zeros(len(x), 2), rows, torch.full((len(x), 2), 5.0))
    return mixture.sample((num_draws,))


@pytest.mark.slow
def test_classes_that_go_together_are_learnt_together() -> None:
    fast = quick("mixture", same_marginals, loss="energy", num_steps=200, batch_size=64)
    draws = fast.distribution(inputs(50, seed=6)).sample((400,)).flatten(0, 1)
    correlations = torch.corrcoef(draws.T)
    # Of the teacher: 0.9 within a pair, -0.95 across.
    assert correlations[0, 1] > 0.6 and correlations[2, 3] > 0.6
    assert correlations[:2, 2:].max() < -0.6


@pytest.mark.slow
def test_distill_recovers_a_mixture() -> None:
    x, fresh = inputs(400), inputs(200, seed=6)
    fast = distill_flat(
        teacher,
        x,
        guide="mixture",
        loss="energy",
        num_steps=400,
        batch_size=128,
        seed=0,
        progress=False,
    )
    student, truth = fast.distribution(fresh), teacher_answer(fresh)
    found, expected = uncertainty(student), uncertainty(truth)
    # 400 steps are short: the mean is right to 0.03, the spread to 5 per cent.
    torch.testing.assert_close(student.mean, truth.mean, atol=0.03, rtol=0)
    assert (found.epistemic.mean() / expected.epistemic.mean() - 1).abs() < 0.05
    distance = energy_distance(truth.sample((1000,)), student.sample((1000,))).mean()
    best = energy_distance(truth.sample((1000,)), truth.matched().sample((1000,))).mean()
    assert distance < 0.1 * best


def test_the_critic_takes_strata() -> None:
    """The witness's mean over draws by component is that over draws at random."""
    x = inputs(4)
    objective = WassersteinELBO(residual=False, likelihood=0.0, num_samples=4000)
    objective.prepare(x, C)
    student, draws = teacher_answer(x), teacher(x, 50)
    at = Encounter(x, draws, None, student.sample((4000,)))
    random = objective._gain(objective._witness_at(at)(at.both), at).mean()
    # Monte Carlo: a witness varies by about one, over 4 x 4,000 draws.
    torch.testing.assert_close(
        objective.parts(student, draws, x)["wasserstein"], random, atol=0.05, rtol=0
    )


def test_logits_that_hardly_vary_and_logits_that_are_labels_are_within_the_range() -> None:
    guide = LogisticNormalGuide(nn.Flatten(), 1, 2, rank=1)
    nn.init.zeros_(guide.head.weight)
    for log_scale, factor in ((-6.0, 30.0), (2.0, -30.0)):
        with torch.no_grad():
            guide.head.bias.copy_(torch.tensor([0.0, log_scale, factor]).repeat(2))
        answer = guide(torch.ones(1, 1))
        assert (answer.log_scale - log_scale).abs().max() < 0.2
        assert (answer.factor - factor).abs().max() < 0.2


def test_likelihood_finds_the_groups_in_a_third_of_the_steps_and_has_no_say_in_the_later_half():
    objective, x = LikelihoodFirst(), torch.zeros(5, 1)
    student = PredictiveDirichlet(torch.zeros(5, C).log_softmax(-1), torch.zeros(5))
    draws = student.sample((4,))
    for done, energy in ((0.0, False), (0.25, False), (0.5, True), (0.99, True)):
        objective.anneal(done)
        assert ("energy" in objective.parts(student, draws, x)) is energy
