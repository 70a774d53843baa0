"""Asking students and teachers."""

from __future__ import annotations

import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.reports.answers import is_student, student_answer
from pyro_opu.rng import seeded


class Guide(nn.Module):
    """A student with layers that behave differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(self.layers(x).exp())


class WithMethod:
    def dirichlet(self, x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(torch.ones(len(x), 3))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("student", [Guide(), WithMethod(), WithMethod().dirichlet])
def test_students_of_all_kinds(student) -> None:
    x = torch.randn(4, 2)
    dirichlet = student_answer(student, x)
    assert isinstance(dirichlet, PredictiveDirichlet)
    assert dirichlet.batch_shape == (4,) and dirichlet.event_shape == (3,)
    assert not dirichlet.log_mean.requires_grad
    assert is_student(student, x)


def test_modules_answer_in_evaluation_mode_and_come_back_as_they_were() -> None:
    guide = Guide()
    guide.layers[2].eval()
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    modes = [module.training for module in guide.modules()]
    x = torch.randn(4, 2)
    torch.testing.assert_close(student_answer(guide, x).log_mean, student_answer(guide, x).log_mean)
    assert (
        [module.training for module in guide.modules()] == modes == [True, True, True, True, False]
    )
    torch.testing.assert_close(dict(guide.state_dict()), before)


def test_teachers_are_no_students() -> None:
    x = torch.randn(4, 2)
    dropout = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))
    for teacher in (
        dropout,
        [dropout, dropout],
        Predictive(lambda x: None, posterior_samples={"w": torch.zeros(3)}),
        lambda x: torch.full((5, len(x), 3), 1 / 3),
        lambda x, num_draws: torch.full((num_draws, len(x), 3), 1 / 3),
        3,
    ):
        assert not is_student(teacher, x)


def test_asking_what_a_source_is_leaves_the_generator_alone() -> None:
    state = torch.get_rng_state()
    is_student(lambda x: torch.rand(5, len(x), 3), torch.zeros(2, 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_seeded() -> None:
    state = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(2)
    with seeded(3):
        assert torch.equal(torch.rand(2), first)
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(None):
        torch.rand(2)
    assert not torch.equal(torch.get_rng_state(), state)
