"""Objectives: what holds of every one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from posteriors import CORNERS, OBJECTIVES, REAL_OBJECTIVES
from torch import Tensor
from torch.distributions import Dirichlet

from pyro_opu import CrossEntropy, Objective, PredictiveDirichlet, PredictiveGuide
from pyro_opu.distributions.normal import PredictiveNormal

C = 3
every_objective = pytest.mark.parametrize("build", OBJECTIVES.values(), ids=OBJECTIVES)
Problem = tuple[PredictiveDirichlet | PredictiveNormal, Tensor, list[Tensor]]


def of_classes(rows: int, classes: int, num_draws: int) -> Problem:
    """A student's answer, a teacher's draws, and the leaves of the answer."""
    mean, g = torch.randn(rows, classes).log_softmax(-1), torch.ones(rows)
    leaves = [mean.requires_grad_(), g.requires_grad_()]
    draws = Dirichlet(4 * torch.ones(rows, classes) / classes).sample((num_draws,))
    return PredictiveDirichlet(*leaves), draws, leaves


def of_a_real_y(rows: int, classes: int, num_draws: int) -> Problem:
    leaves = [torch.randn(rows, requires_grad=True) for _ in range(3)]
    return PredictiveNormal(*leaves), torch.randn(num_draws, rows, 2), leaves


EVERY = [(of_classes, build) for build in OBJECTIVES.values()]
EVERY += [(of_a_real_y, build) for build in REAL_OBJECTIVES.values()]


@pytest.mark.parametrize(("problem", "build"), EVERY, ids=[*OBJECTIVES, *REAL_OBJECTIVES])
class TestOfClassesOrOfARealY:
    @pytest.mark.parametrize(
        ("rows", "classes", "num_draws"), [(1, 3, 4), (4, 2, 4), (4, 3, 2), (5, 3, 7)]
    )
    def test_loss_is_one_number_and_the_sum_of_its_parts(
        self,
        problem: Callable[..., Problem],
        build: Callable[[], Objective],
        rows: int,
        classes: int,
        num_draws: int,
    ) -> None:
        objective, x = build(), torch.randn(rows, 2)
        objective.prepare(x, classes)
        student, draws, leaves = problem(rows, classes, num_draws)
        torch.manual_seed(1)
        loss = objective(student, draws, x)
        torch.manual_seed(1)
        parts = objective.parts(student, draws, x)
        assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
        assert all(part.shape == () for part in parts.values())
        torch.testing.assert_close(loss, sum(parts.values()), rtol=1e-6, atol=1e-7)  # order of sums
        loss.backward()
        assert leaves[0].grad.isfinite().all() and leaves[0].grad.abs().max() > 0

    def test_settings_are_shown_and_state_is_saved(
        self, problem: Callable[..., Problem], build: Callable[[], Objective]
    ) -> None:
        objective, other = build(), build()
        for each in (objective, other):
            each.prepare(torch.randn(5, 2), C)
        other.load_state_dict(objective.state_dict())
        for name, value in objective.state_dict().items():
            assert torch.equal(other.state_dict()[name], value)
        shown = repr(objective)
        assert shown == repr(other)
        objective.anneal(0.7)
        assert repr(objective) == shown  # a resumed run is the same objective


EXTREME_DRAWS = {
    "ordinary": torch.full((3, 5, C), 1 / C).lerp(CORNERS, 0.5),
    "corners": CORNERS,
    "equal": torch.tensor([0.7, 0.2, 0.1]).expand(3, 5, C),
    "close": torch.tensor([0.7, 0.2, 0.1]).expand(3, 5, C) + 1e-7 * (CORNERS - 1 / C),
}


@every_objective
@pytest.mark.parametrize("kind", EXTREME_DRAWS)
@pytest.mark.parametrize("concentration", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("mean", [[0.2, 0.5, 0.3], [1.0, 1e-12, 1e-30]])
def test_loss_and_gradient_are_finite_at_extremes(
    build: Callable[[], Objective], kind: str, concentration: float, mean: list[float]
) -> None:
    objective, x = build(), torch.randn(5, 2)
    objective.prepare(x, C)
    log_mean = torch.tensor(mean).log().repeat(5, 1).requires_grad_()
    g = torch.full((5,), math.log(concentration), requires_grad=True)
    for done in (0.0, 1.0):
        objective.anneal(done)
        loss = objective(PredictiveDirichlet(log_mean, g), EXTREME_DRAWS[kind], x)
        loss.backward()
        assert loss.isfinite()
    for leaf in (log_mean, g):
        assert leaf.grad is None or leaf.grad.isfinite().all()


@every_objective
def test_gradient_reaches_what_it_should(build: Callable[[], Objective]) -> None:
    objective, x = build(), torch.randn(20, 2)
    objective.prepare(x, C)
    guide = PredictiveGuide.for_inputs(x, C, shared=False, hidden=(8,))
    _, draws, _ = of_classes(20, C, 7)
    objective(guide(x), draws, x).backward()
    for name, parameter in guide.named_parameters():
        if isinstance(objective, CrossEntropy) and name.startswith("concentration"):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
