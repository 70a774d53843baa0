"""Answers: what holds of every family."""

from __future__ import annotations

import pytest
import torch
from posteriors import ANSWERS, C, N
from torch import Tensor

from pyro_opu.distributions import (
    Answer,
    PredictiveDirichlet,
    PredictiveNormal,
    as_answer,
)


@pytest.fixture(params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> Answer:
    torch.manual_seed(0)
    return ANSWERS[request.param]()


def test_shapes(answer: Answer) -> None:
    assert isinstance(answer, Answer) and as_answer(answer) is answer
    assert answer.batch_shape == (N,) and answer.event_shape in ((C,), ())


def test_measures(answer: Answer) -> None:
    measures = answer.measures()
    for name, value in measures.rounded().items():
        assert value.shape == ((N, *answer.event_shape) if name == "mean" else (N,))
        assert value.dtype == measures.dtype == torch.float32
    assert set(answer.untraceable) <= set(measures.units)
    torch.testing.assert_close(measures.total, measures.aleatoric + measures.epistemic)


def test_tensors_and_back(answer: Answer) -> None:
    tensors = answer.as_tensors()
    assert all(isinstance(value, Tensor) for value in tensors.values())
    again = type(answer).from_tensors(tensors)
    assert type(again) is type(answer)
    for name, value in answer.measures().rounded().items():  # a mixture normalises once more
        torch.testing.assert_close(getattr(again.measures(), name).float(), value)


def test_matched_has_the_same_moments(answer: Answer) -> None:
    matched = answer.matched()
    assert isinstance(matched, (PredictiveDirichlet, PredictiveNormal))
    assert matched.matched() is matched and matched.event_shape == answer.event_shape
    for name in ("mean", "total"):
        found, expected = (getattr(each.measures(), name) for each in (matched, answer))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_moments_and_entropy_are_those_of_draws(answer: Answer) -> None:
    """What torch's distributions have: mean, variance, deviation, entropy."""
    count = 20_000
    draws = answer.sample((count,))
    error = 6 * answer.stddev / count**0.5  # of six standard errors
    assert ((draws.mean(0) - answer.mean).abs() <= error + 2e-3).all()  # the fixed points' error
    torch.testing.assert_close(answer.variance, answer.stddev.square())
    # 8 %: the standard error of a variance with heavy tails, and a percent of the fixed points.
    torch.testing.assert_close(draws.var(0), answer.variance, rtol=0.08, atol=1e-6)
    if answer.event_shape:
        assert answer.entropy().shape == answer.batch_shape
        summed, measured = answer.variance.sum(-1), answer.measures().variance
        # 8 %: wide sticks have less variance than they say, as their deviations end at 8.
        torch.testing.assert_close(summed.double(), measured, rtol=0.08, atol=1e-6)


def test_predict(answer: Answer) -> None:
    observed, around = answer.predict(4)
    assert observed.shape == (4, N)
    assert around is not None and around.shape == (4, N, *answer.event_shape)
    assert answer.predict(4, parameters=False)[0].shape == (4, N)


def test_strata(answer: Answer) -> None:
    if not getattr(answer, "has_rsample", False):
        pytest.skip("a mixture of normals has no pathwise draws")
    draws, weights = answer.stratified_rsample(6)
    assert draws.shape == (6, N, *answer.event_shape)
    assert weights is None or torch.allclose(weights.sum(0), torch.ones(N))


def test_what_is_no_answer() -> None:
    plain = torch.distributions.Dirichlet(torch.ones(N, C))
    assert isinstance(as_answer(plain), PredictiveDirichlet)
    with pytest.raises(TypeError, match="must be a torch or Pyro Dirichlet; got Tensor"):
        as_answer(torch.ones(N, C))
