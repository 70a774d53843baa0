"""When one Dirichlet per input is not enough."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pyro_opu
from pyro_opu import PredictiveDirichlet, PredictiveGuide
from pyro_opu.choosing import choice_of, classes
from pyro_opu.choosing.classes import MOST_LACK_OF_FIT
from pyro_opu.guides import MixtureGuide
from pyro_opu.judging import ClassJudge
from pyro_opu.judging.laws import FEWEST_DRAWS, lack_of_fit
from pyro_opu.parts import Outcome

CORNERS = 0.85 * torch.eye(3) + 0.05


def corners(x: Tensor, num_draws: int = 400) -> Tensor:
    """Three hypotheses, each near another corner, the same for all inputs of a draw."""
    alpha = 60 * CORNERS[torch.randint(3, (num_draws, 1)).expand(-1, len(x))]
    return torch.distributions.Dirichlet(alpha).sample()


def dirichlet(x: Tensor, num_draws: int = 400) -> Tensor:
    return PredictiveDirichlet(x[:, :3].log_softmax(-1), x[:, 0] + 1).sample((num_draws,))


def held(teacher, num_draws: int = 400) -> ClassJudge:
    x = torch.randn(60, 3)
    return ClassJudge(x, teacher(x, num_draws))


def test_a_dirichlet_fits_itself() -> None:
    share = lack_of_fit(held(dirichlet))
    assert abs(share) < 0.01  # chance of 200 draws at 60 inputs; mostly exactly 0


def test_hypotheses_that_contradict_each_other_do_not_fit() -> None:
    share = lack_of_fit(held(corners))
    assert share > MOST_LACK_OF_FIT


def test_few_draws_say_nothing() -> None:
    assert lack_of_fit(held(corners, FEWEST_DRAWS - 1)) == 0.0


def test_draws_that_all_agree() -> None:
    x = torch.randn(10, 3)
    assert lack_of_fit(ClassJudge(x, x.softmax(-1).expand(100, -1, -1))) == 0.0


def test_the_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    labelled, before = held(corners), torch.get_rng_state()
    assert lack_of_fit(labelled) == lack_of_fit(labelled)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("teacher", "family"), [(corners, MixtureGuide), (dirichlet, PredictiveGuide)]
)
def test_the_default_guide_follows_the_draws(teacher, family) -> None:
    x = torch.randn(80, 3)
    fast = pyro_opu.distill(teacher, x, num_steps=10, seed=0, progress=False)
    assert type(fast.guide) is family
    assert fast.report["guide"] == family.__name__
    assert (fast.report["misfit"] > MOST_LACK_OF_FIT) is (family is MixtureGuide)
    assert fast.dirichlet(x).batch_shape == (80,)


def test_a_mixture_of_many_weights_is_too_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "MANY_WEIGHTS", 1)
    monkeypatch.setattr(classes, "MOST_WEIGHTS", 1.0)
    fast = pyro_opu.distill(corners, torch.randn(80, 3), num_steps=10, seed=0, progress=False)
    assert type(fast.guide) is PredictiveGuide and fast.report["misfit"] > MOST_LACK_OF_FIT


def test_a_guide_that_is_named_is_kept() -> None:
    x = torch.randn(80, 3)
    fast = pyro_opu.distill(corners, x, guide="dirichlet", num_steps=10, seed=0, progress=False)
    assert type(fast.guide) is PredictiveGuide and fast.report["misfit"] > MOST_LACK_OF_FIT


def test_groups_are_seen_in_as_many_draws_as_a_run_of_mcmc_gives_and_not_in_a_few() -> None:
    assert lack_of_fit(held(corners, 100)) > 0.0
    assert lack_of_fit(held(corners, 20)) == 0.0


@pytest.mark.parametrize(("apart", "seen"), [(1e-3, True), (1e-6, False)])
def test_groups_are_seen_however_near_they_are_unless_it_is_rounding(apart, seen) -> None:
    x = torch.randn(60, 3)
    near = 1 / 3 + apart * (corners(x) - 1 / 3)
    assert (lack_of_fit(ClassJudge(x, near)) > 0) is seen


@pytest.mark.parametrize(
    ("features", "num_classes", "family"),
    [(3, 3, MixtureGuide), (20, 50, MixtureGuide), (3, 400, PredictiveGuide)],
)
def test_a_mixture_is_too_dear_for_many_classes_on_few_features(
    features: int, num_classes: int, family: type
) -> None:
    x = torch.randn(60, features)
    labelled = ClassJudge(x, torch.full((4, 60, num_classes), 1 / num_classes))
    guide = choice_of(Outcome.of_classes(num_classes)).guide(None, x, labelled, {"misfit": 0.06})
    assert type(guide) is family


@pytest.mark.parametrize("num_draws", [10, 20, 40, 60])
def test_few_draws_of_a_dirichlet_do_not_look_like_groups(num_draws: int) -> None:
    """Moments of half of 20 draws leave 0.06 of the spread."""
    x = torch.randn(600, 3)
    share = lack_of_fit(ClassJudge(x, dirichlet(x, num_draws)))
    assert share < MOST_LACK_OF_FIT


def test_what_may_be_chance_is_no_lack_of_fit() -> None:
    found = [lack_of_fit(held(dirichlet)) for _ in range(10)]
    assert found.count(0.0) >= 8
