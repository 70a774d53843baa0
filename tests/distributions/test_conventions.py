"""Every answer is a distribution of torch's, by torch's own conventions."""

from __future__ import annotations

import pytest
import torch
from posteriors import ANSWERS, C, N, logs
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence

from pyro_opu.distributions import (
    Answer,
    Empirical,
    LogisticNormal,
    NormalSticks,
    PredictiveCount,
    PredictiveDirichlet,
    PredictiveNormal,
    PredictiveTrials,
    SimplexDistribution,
)

LAWS = {
    **ANSWERS,
    "count": lambda: PredictiveCount(*(2 + torch.randn(3, N))),
    "trials": lambda: PredictiveTrials(
        PredictiveDirichlet(logs(N, 2), torch.randn(N)), torch.full((N,), 7.0)
    ),
}
WITHOUT_DENSITY = ("empirical", "implicit")


def made(name: str) -> Answer:
    torch.manual_seed(0)
    return LAWS[name]()


@pytest.fixture(params=LAWS)
def law(request: pytest.FixtureRequest) -> Answer:
    return made(request.param)


@pytest.fixture(params=[name for name in LAWS if name not in WITHOUT_DENSITY])
def density(request: pytest.FixtureRequest) -> Answer:
    return made(request.param)


def test_parameters_satisfy_their_constraints(law: Answer) -> None:
    assert isinstance(law, Distribution)
    given = law.as_tensors()
    for name, constraint in law.arg_constraints.items():
        value = given.get(name, getattr(law, name, None))
        assert isinstance(value, Tensor) and constraint.check(value).all(), name
        expected = law.batch_shape
        assert value.shape[: value.dim() - constraint.event_dim][-len(expected) :] == expected
    assert law.arg_constraints or isinstance(law, torch.distributions.MixtureSameFamily)


def test_draws_lie_in_the_support_and_have_the_shape(law: Answer) -> None:
    draws = law.sample((6, 2))
    assert draws.shape == (6, 2, *law.batch_shape, *law.event_shape)
    assert law.sample().shape == law.batch_shape + law.event_shape
    if law.event_shape:  # torch allows a sum to be off by 1e-6, and float32 rounds
        draws = draws.double() / draws.double().sum(-1, keepdim=True)
    assert law.support.check(draws).all()
    assert not draws.requires_grad


def test_a_pathwise_draw_has_a_gradient_or_is_refused(law: Answer) -> None:
    if law.has_rsample:
        leaves = {k: v.clone().requires_grad_() for k, v in law.as_tensors().items()}
        assert type(law).from_tensors(leaves).rsample((3,)).requires_grad
    else:
        with pytest.raises(NotImplementedError):
            law.rsample()


def test_moments_have_the_shape_of_a_draw(law: Answer) -> None:
    """Their values are compared with draws in the tests of every answer, and of counts."""
    for value in (law.mean, law.variance, law.stddev):
        assert value.shape == law.batch_shape + law.event_shape and value.isfinite().all()
    torch.testing.assert_close(law.stddev.square(), law.variance)


def test_a_larger_batch_is_the_same_law(law: Answer) -> None:
    larger = law.expand((3, N))
    assert larger.batch_shape == (3, N) and larger.event_shape == law.event_shape
    assert larger.sample((2,)).shape == (2, 3, N, *law.event_shape)
    torch.testing.assert_close(larger.mean, law.mean.expand(3, *law.mean.shape))
    if not isinstance(law, Empirical):
        value = law.sample()
        torch.testing.assert_close(larger.log_prob(value), law.log_prob(value).expand(3, N))


def test_log_prob_has_the_batch_shape_and_refuses_what_lies_outside(density: Answer) -> None:
    assert density.log_prob(density.sample((4,))).shape == (4, *density.batch_shape)
    outside = torch.full(density.batch_shape + density.event_shape, -3.5)
    if isinstance(density.support, type(constraints.real)) or "Mixture" in str(density.support):
        outside = outside * torch.nan
    with pytest.raises(ValueError, match="value|support"):
        density.log_prob(outside)


@pytest.mark.parametrize("name", WITHOUT_DENSITY)
def test_what_has_no_density_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match="needs a density"):
        made(name).log_prob(torch.full((N, C), 1 / C))
    with pytest.raises(NotImplementedError, match="needs a density"):
        kl_divergence(made(name), made("dirichlet"))


def wide(name: str) -> Answer:
    """With a density that is bounded, so that averages of its logarithm settle."""
    torch.manual_seed(1)
    return {
        "dirichlet": lambda: PredictiveDirichlet(logs(N, C), 3 + torch.randn(N)),
        "sticks": lambda: NormalSticks(logs(N, C), 3 + torch.randn(N)),
        "logistic normal": lambda: LogisticNormal(
            torch.randn(N, C), torch.zeros(N, C), 0.3 * torch.randn(N, C, 1)
        ),
        "normal": lambda: PredictiveNormal(*torch.randn(3, N)),
    }[name]()


UNIMODAL = ("dirichlet", "sticks", "normal")
KNOWN = ("dirichlet", "sticks", "logistic normal", "normal")


@pytest.mark.parametrize("name", UNIMODAL)
def test_no_draw_is_more_likely_than_the_mode(name: str) -> None:
    law = wide(name)
    mode = law.mode
    assert mode.shape == law.batch_shape + law.event_shape
    near = law.sample((2000,))
    if law.event_shape:  # also beside it
        near = torch.cat([near, (0.999 * mode + 0.001 * near)])
    assert (law.log_prob(near) <= law.log_prob(mode) + 1e-4).all()


def test_the_mode_of_sticks_is_where_a_grid_has_it() -> None:
    """Two classes: one logit, whose density on the simplex may have two maxima."""
    share = torch.linspace(0, 1, 200_001, dtype=torch.float64)[1:-1]
    points = torch.stack([share, 1 - share], -1)
    for p, log_concentration in ((0.9, -1.0), (0.6, 0.5), (0.55, 3.0)):
        law = NormalSticks(
            torch.tensor([[p, 1 - p]]).double().log(), torch.tensor([log_concentration])
        )
        best = points[law.log_prob(points[:, None])[:, 0].argmax()]
        torch.testing.assert_close(law.mode[0], best, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", KNOWN)
def test_entropy_is_the_average_of_the_log_density(name: str) -> None:
    law = wide(name)
    found = -law.log_prob(law.sample((40_000,)))
    error = 5 * found.std(0) / 200  # of five standard errors: one run in 300,000, for five rows
    # 0.03: fixed points stand for draws of a logistic normal.
    assert ((law.entropy() - found.mean(0)).abs() < error + 0.03).all()


def test_divergence_is_the_average_of_the_difference() -> None:
    laws = {name: wide(name) for name in KNOWN[:3]} | {"mixture": made("mixture")}
    for p in list(laws.values())[:3]:
        assert isinstance(p, SimplexDistribution)
        draws = p.sample((40_000,))
        torch.testing.assert_close(kl_divergence(p, p), torch.zeros(N))
        for q in laws.values():
            found = p.log_prob(draws) - q.log_prob(draws)
            error = 5 * found.std(0)
            # of the 40,000 draws here, and of the 1,024 of an estimate
            allowed = error / 200 + error / 32 + 1e-3
            assert ((kl_divergence(p, q) - found.mean(0)).abs() < allowed).all()
            assert torch.equal(kl_divergence(p, q), kl_divergence(p, q))


def test_divergences_with_a_formula_are_exact() -> None:
    p, q = (PredictiveDirichlet(logs(N, C), 3 + torch.randn(N)) for _ in range(2))
    plain = (torch.distributions.Dirichlet(each.concentration.double()) for each in (p, q))
    torch.testing.assert_close(
        kl_divergence(p, q).double(), kl_divergence(*plain), atol=1e-4, rtol=1e-4
    )
    # Sticks in one order: 40,000 draws come near, and twice the deviation of every logit is known.
    one = wide("sticks")
    other = NormalSticks(one.log_mean, one.log_concentration + 0.5)
    draws = one.sample((40_000,))
    found = one.log_prob(draws) - other.log_prob(draws)
    assert ((kl_divergence(one, other) - found.mean(0)).abs() < 5 * found.std(0) / 200 + 1e-4).all()
