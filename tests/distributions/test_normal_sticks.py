"""Sticks with normal logits: by quadrature, by known posteriors, and at the ends."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from pyro_opu import PredictiveDirichlet
from pyro_opu.distributions import NormalSticks
from pyro_opu.distributions.normal_logits import NormalLogits, tabulated_logit
from pyro_opu.metrics.marginals import Marginals


def expected(of, m: float, s: float) -> float:
    """The mean of a function of a normal variable, by adaptive quadrature."""
    middle = max(-m / s, -38.0) if m < 0 else 0.0  # where sigmoid turns
    points = sorted({-9.0, min(max(middle, -8.9), 8.9), 9.0})
    parts = zip(points, points[1:], strict=False)
    return sum(quad(lambda z: of(m + s * z) * norm.pdf(z), *p, limit=200)[0] for p in parts)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z > -30 else z


@pytest.mark.parametrize("logit", [-18.0, -6.1, -1.3, 0.0, 0.4, 3.3, 12.2])
@pytest.mark.parametrize("deviation", [0.003, 0.11, 0.93, 2.7, 5.1])
def test_the_table_of_one_logit(logit: float, deviation: float) -> None:
    of = tabulated_logit(torch.tensor([logit]).double(), torch.tensor([deviation]).double().log())
    m, s = float(of.mean), deviation
    # On the side of the smaller probability, which keeps its digits.
    m, size = (m, logit) if logit < 0 else (-m, -logit)
    mean = expected(sigmoid, m, s)
    assert math.log(mean) - math.log1p(-mean) == pytest.approx(size, abs=0.005 * max(1, s * s / 9))
    mean = sigmoid(size)
    variance = expected(lambda z: (sigmoid(z) / mean - 1) ** 2, m, s) * mean**2
    log_concentration = math.log(mean * (1 - mean) - variance) - math.log(variance)
    # Interpolation: up to 0.01 where a log-normal tail decides, of deviations above 2.
    assert float(of.log_concentration) == pytest.approx(log_concentration, abs=0.02)
    information = expected(
        lambda z: (
            sigmoid(z) * (log_sigmoid(z) - log_sigmoid(size))
            + sigmoid(-z) * (log_sigmoid(-z) - log_sigmoid(-size))
        ),
        m,
        s,
    )
    assert float(of.log_information) == pytest.approx(math.log(information), abs=0.01)
    present, absent = (of.log_present, of.log_absent) if logit < 0 else of[:2:-1]
    absences = expected(lambda z: log_sigmoid(-z), m, s)
    assert float(absent) == pytest.approx(absences, rel=0.01)
    assert float(present) == pytest.approx(m + absences, abs=0.02)


def test_the_inverse_begins_near() -> None:
    logit = torch.linspace(-22.0, 22.0, 67).double()[:, None].expand(-1, 40)
    wanted = torch.linspace(-0.9, 16.0, 40).double().expand(67, -1)
    first = NormalLogits(logit.reshape(-1, 1)).first_deviation(wanted.flatten())
    log_deviation = first.log().view_as(wanted)
    off = (tabulated_logit(logit, log_deviation).log_concentration - wanted).abs()
    off = off[log_deviation < math.log(7.9)]  # the largest there is
    assert off.max() < 0.15 and off.median() < 0.01 and len(off) > 0.8 * wanted.numel()


@pytest.mark.parametrize("log_concentration", [-8.0, 0.0, 16.0])
@pytest.mark.parametrize(
    "logits", [[0.0, 0.0, 0.0], [80.0, 0.0, -80.0], [9.0, 0.0, 0.0], [1e5, 0.0, -1e5]]
)
def test_ends(logits: list[float], log_concentration: float) -> None:
    """Classes of no probability, and concentrations at the ends of their range."""
    law = NormalSticks(torch.tensor([logits]).log_softmax(-1), torch.tensor([log_concentration]))
    for name, value in law.measures().rounded().items():
        assert value.isfinite().all() and (name == "differential_entropy" or (value >= 0).all())
    assert law.measures().epistemic <= law.measures().total + 1e-9
    draws = law.sample((50,))
    assert draws.isfinite().all() and (draws >= 0).all()
    torch.testing.assert_close(draws.sum(-1), torch.ones(50, 1))
    assert law.log_prob(draws).isnan().sum() == 0


def test_nan_is_passed_on() -> None:
    """As by other answers: a student that has come apart is found by its numbers."""
    log_mean, g = torch.zeros(3, 4).log_softmax(-1), torch.tensor([1.0, math.nan, math.inf])
    log_mean[0, 1] = math.nan
    measures = NormalSticks(log_mean, g).measures()
    assert measures.epistemic[:2].isnan().all() and not measures.epistemic[2].isnan()
    assert NormalSticks(log_mean, g).sample((2,))[:, :2].isnan().any(-1).all()


def test_sure_rows_keep_their_digits() -> None:
    """By the log-normal law of the rest: I = r (s^2 / 2), of a rest r and a deviation s."""
    rest, s = 1e-6, 0.5
    g = -math.log(rest) - math.log(math.expm1(s * s))
    mean = torch.tensor([[1 - rest, rest]], dtype=torch.float64)
    law = NormalSticks(mean.log(), torch.tensor([g], dtype=torch.float64))
    assert float(law.sticks.deviation) == pytest.approx(s, rel=0.005)
    assert float(law.measures().epistemic) == pytest.approx(rest * s * s / 2, rel=0.01)


def softmax_of_normals(x: Tensor, deviation: float, count: int = 4000) -> Tensor:
    """Draws of probabilities whose logits all have one variance."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, *x.shape, generator=generator, dtype=torch.float64)
    return (x + deviation * noise).softmax(-1)


@pytest.mark.parametrize(("classes", "deviation"), [(2, 1.8), (3, 0.2), (3, 1.0), (10, 1.8)])
def test_a_posterior_over_logits_is_matched_where_no_dirichlet_is(
    classes: int, deviation: float
) -> None:
    x = 2.5 * torch.randn(60, classes, generator=torch.Generator().manual_seed(1)).double()
    draws = softmax_of_normals(x, deviation)
    mean, variance = draws.mean(0), draws.var(0).sum(-1)
    g = ((1 - mean.square().sum(-1) - variance) / variance).log()
    sticks, dirichlet = NormalSticks(mean.log(), g), PredictiveDirichlet(mean.log(), g)
    torch.manual_seed(0)
    judge = Marginals(draws)
    mine, theirs = (
        judge.energy_distance(law.sample((4000,))).mean() for law in (sticks, dirichlet)
    )
    assert mine < 0.35 * theirs + 2e-5  # of 4,000 draws
    information = torch.special.entr(mean).sum(-1) - torch.special.entr(draws).sum(-1).mean(0)
    # Sticks are independent, which those of a softmax are not quite.
    assert sticks.measures().epistemic.mean() == pytest.approx(float(information.mean()), rel=0.08)
    if classes > 2 and deviation > 0.5:
        assert dirichlet.measures().epistemic.mean() > 1.05 * information.mean()
    low, high = sticks.sample((4000,)).quantile(torch.tensor([0.25, 0.75]).double(), dim=0)
    inside = ((draws > low) & (draws < high)).double().mean(0)
    assert (inside * mean).sum(-1).mean() == pytest.approx(0.5, abs=0.06)


def test_gradients_reach_mean_and_concentration() -> None:
    torch.manual_seed(0)
    logits, g = torch.randn(4, 3).double().requires_grad_(), torch.ones(4).double().requires_grad_()
    NormalSticks(logits.log_softmax(-1), g).rsample((64,)).square().sum().backward()
    assert logits.grad is not None and g.grad is not None
    assert logits.grad.isfinite().all() and (g.grad < 0).all()  # surer draws have smaller squares


def test_refused() -> None:
    good = torch.zeros(2, 3).log_softmax(-1)
    with pytest.raises(ValueError, match="`log_mean` must have shape"):
        NormalSticks(good, torch.zeros(3))
    with pytest.raises(ValueError, match="`log_mean` must have shape"):
        NormalSticks(good[0], torch.zeros(()))
    with pytest.raises(TypeError, match="log_concentration"):
        NormalSticks(good, 3.0)  # type: ignore[arg-type]


def test_classes_of_vanishing_probability_are_told_from_each_other() -> None:
    log_mean = torch.tensor([[0.0, -40.0, -60.0, -250.0]]).log_softmax(-1)
    logs = NormalSticks(log_mean, torch.tensor([44.0])).log_rsample((200,)).mean((0, 1))
    apart = logs.diff() - log_mean[0].diff()
    assert (apart.abs() < 3).all(), apart


def test_deviations_of_the_sticks_are_as_if_every_logit_had_one_variance() -> None:
    h = torch.tensor([0.4, 0.3, 0.2, 0.07, 0.03], dtype=torch.float64)
    found = NormalSticks(h.log()[None], torch.tensor([3.0])).sticks.deviation[0]
    shares = [h[k + 1 :] / h[k + 1 :].sum() for k in range(4)]
    expected = torch.stack([(1 + w.square().sum()).sqrt() for w in shares])
    torch.testing.assert_close(found / found[0], expected / expected[0])
