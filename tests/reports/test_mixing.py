"""R-hat and effective draws against ArviZ and loops; alarms where draws have not mixed, alone."""

from __future__ import annotations

import json
import math
import sys
import warnings
from typing import Any

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.ops.stats import effective_sample_size as pyro_ess
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor, nn

from pyro_opu import FidelityWarning, distill
from pyro_opu.reports.mixing import (
    LEAST_DRAWS,
    MixingReport,
    MixingWarning,
    draws_mixing,
    effective_sample_size,
    mixing,
    r_hat,
)

pytestmark = pytest.mark.usefixtures("brief")


def autoregressive(draws: int, columns: int, rho: float) -> Tensor:
    """Stationary standard Gaussian chains (draws, columns); worth draws (1 - rho) / (1 + rho)."""
    noise = torch.randn(draws, columns, dtype=torch.float64)
    chain = noise.clone()
    for t in range(1, draws):
        chain[t] = rho * chain[t - 1] + math.sqrt(1 - rho**2) * noise[t]
    return chain


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


def predictive(samples: Tensor) -> Predictive:
    return Predictive(model, {"w": samples.float()})


def two_modes(draws: int) -> Tensor:
    """Two chains, one after the other, each around a mode of its own."""
    centre = torch.where(torch.arange(draws) < draws // 2, 1.5, -1.5)
    return centre[:, None] + 0.5 * torch.randn(draws, 2)


# The two numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 100), (2, 51), (3, 20)])
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "ties", "shifted", "scaled"])
def test_r_hat_is_that_of_arviz(shape: tuple[int, int], kind: str) -> None:
    draws = torch.randn(*shape, 3, dtype=torch.float64)
    if kind == "heavy":
        draws = draws / torch.randn_like(draws)
    if kind == "ties":
        draws = (2 * draws).round()
    if kind == "shifted":
        draws[0] += 2
    if kind == "scaled":
        draws[0] *= 5
    expected = [az.rhat(draws[..., k].numpy(), method="rank") for k in range(3)]
    np.testing.assert_allclose(r_hat(draws).numpy(), expected, rtol=1e-9)


def test_r_hat_sees_a_chain_of_another_width() -> None:
    draws = torch.randn(4, 500)
    draws[0] *= 5
    assert split_gelman_rubin(draws) < 1.05 < 1.1 < r_hat(draws)


def test_effective_sample_size_is_pyros_on_normal_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = autoregressive(101, 3 * 6, 0.3).reshape(101, 3, 2, 3).transpose(0, 1)
    halves = torch.cat([draws[:, :50], draws[:, -50:]])
    flat = halves.reshape(300, -1)
    ranks = torch.stack([column.argsort().argsort() + 1.0 for column in flat.T], -1)
    scores = dist.Normal(0.0, 1.0).icdf((ranks - 0.375) / 300.25).reshape(halves.shape).double()
    expected = pyro_ess(scores)
    found = effective_sample_size(draws)
    assert found.shape == (2, 3)
    # The scores here were rounded to float32.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    module = sys.modules["pyro_opu.reports.mixing"]
    monkeypatch.setattr(module, "AT_ONCE", 1)  # column by column
    torch.testing.assert_close(effective_sample_size(draws), found)


def test_antithetic_draws_have_a_bound() -> None:
    draws = torch.randn(2, 400, 20)
    draws[:, 1::2] = -draws[:, ::2] + 0.01 * torch.randn(2, 200, 20)
    assert effective_sample_size(draws).max() <= 800 * math.log10(800) + 1e-9
    assert effective_sample_size(draws).min() > 800


def test_what_does_not_move_is_not_a_number() -> None:
    draws = torch.stack([torch.randn(2, 50), torch.ones(2, 50)], -1)
    assert r_hat(draws).isnan().tolist() == [False, True]
    assert effective_sample_size(draws).isnan().tolist() == [False, True]
    stuck = torch.tensor([[0.0], [1.0]]).expand(2, 50)  # each chain at a place of its own
    assert r_hat(stuck) == math.inf


# The rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draws", "rho", "least", "most"),
    # Rates of the docstring's table, plus 5 sigma of 300 runs: 4 % at a rate of 1.7 %.
    [
        (500, 0.5, 0.0, 0.01),
        (500, 0.9, 0.87, 1.0),
        (100, 0.0, 0.0, 0.01),
        (100, 1 / 3, 0.0, 0.06),
        (50, 0.0, 0.0, 0.02),
    ],
)
def test_alarm_rates(draws: int, rho: float, least: float, most: float) -> None:
    probs = autoregressive(draws, 300, rho).sigmoid()
    alarms = [draws_mixing(torch.stack([1 - p, p], -1)[:, None]).mixed is False for p in probs.T]
    assert least <= np.mean(alarms) <= most


def test_many_inputs_do_not_alarm_by_their_number() -> None:
    # 200 inputs, each with randomness of its own: the largest R-hat is large, its 90 % is not.
    for _ in range(5):
        report = draws_mixing(autoregressive(500, 600, 0.4).reshape(500, 200, 3).softmax(-1))
        assert report.mixed and report.r_hat_max > report.r_hat_90 > report.r_hat_median


@pytest.mark.parametrize("draws", [40, 101, 500])
def test_chains_at_two_modes_alarm(draws: int) -> None:
    report = mixing(predictive(two_modes(draws)), torch.randn(30, 2))
    assert report.mixed is False
    assert report.r_hat_90 > report.r_hat_limit and report.ess_median < report.ess_limit
    shuffled = mixing(predictive(two_modes(draws)[torch.randperm(draws)]), torch.randn(30, 2))
    assert shuffled.mixed


def test_two_modes_that_a_fifth_of_the_inputs_sees_alarm() -> None:
    samples = torch.randn(500, 2)
    samples[:, 1] = two_modes(500)[:, 1]
    x = torch.randn(100, 2)
    x[20:, 1] = 0.0
    report = mixing(predictive(samples), x)
    assert report.mixed is False and report.ess_median > 100 and report.r_hat_median < 1.1


def test_a_drift_alarms() -> None:
    drift = torch.linspace(0, 1, 500)[:, None] + 0.05 * torch.randn(500, 2)
    assert mixing(predictive(drift), torch.randn(30, 2)).mixed is False


def test_draws_that_never_moved_alarm() -> None:
    report = mixing(predictive(torch.ones(100, 2)), torch.randn(30, 2))
    assert report.mixed is False and "all 100 draws give the same" in report.reason
    assert math.isnan(report.r_hat_max) and report.to_dict()["r_hat_max"] is None


def test_symmetries_of_the_weights_are_no_alarm() -> None:
    """Two chains of a network, with units in another order, say the same about classes."""
    weight = torch.randn(500, 2, 4)
    swapped = weight.clone()
    swapped[250:] = weight[250:].flip(1)

    def network(x: Tensor) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 4), 1.0).to_event(2))
        logits = (x @ w[:, :2].T).tanh() @ w[:, 2:]
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Categorical(logits=logits))

    x = torch.randn(30, 2)
    one, other = (mixing(Predictive(network, {"w": w}), x) for w in (weight, swapped))
    assert one.mixed and other.mixed
    # The same sums in another order: float rounding can swap two nearly equal ranks.
    assert other.r_hat_90 == pytest.approx(one.r_hat_90, rel=1e-3)


def test_a_regressor_is_judged_by_its_means_and_scales() -> None:
    def line(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Normal(w * x[:, 0], 0.5), obs=y)

    x, slopes = torch.randn(30, 2), two_modes(200)[:, 0]
    report = mixing(Predictive(line, {"w": slopes}), x)
    assert report.mixed is False and "R-hat of the means and scales is" in report.reason
    assert mixing(Predictive(line, {"w": slopes[torch.randperm(200)]}), x).mixed


def test_saturated_classes_are_left_out() -> None:
    probs = autoregressive(500, 10, 0.3).sigmoid()
    draws = torch.stack([1 - probs, probs, torch.zeros_like(probs)], -1)
    rounding = 1e-9 * torch.arange(500, dtype=torch.float64)  # a drift too small to be one
    draws[..., 2] = rounding[:, None]
    assert draws_mixing(draws).mixed


def test_only_held_draws_in_order_are_checked() -> None:
    x = torch.randn(20, 2)
    guide = AutoNormal(pyro.poutine.block(model, hide=["obs"]))
    guide(x)
    fresh: list[Any] = [
        Predictive(model, guide=guide, num_samples=100),
        nn.Sequential(nn.Linear(2, 3), nn.Dropout()),
        lambda x: torch.rand(100, len(x), 3).softmax(-1),
    ]
    for source in fresh:
        report = mixing(source, x)
        assert report.mixed is None and repr(report).startswith("not checked: the teacher's draws")
    few = mixing([nn.Linear(2, 3) for _ in range(5)], x)
    assert few.mixed is None and few.num_draws == 5
    assert repr(few) == f"not checked: 5 draws are too few; {LEAST_DRAWS} are needed."


def test_snapshots_are_checked_in_order() -> None:
    torch.manual_seed(1)
    drifting = [nn.Linear(2, 3) for _ in range(100)]
    for step, net in enumerate(drifting):
        net.weight.data.fill_(0.0)
        net.bias.data = torch.tensor([0.05 * step, 0.0, 0.0]) + 0.1 * torch.randn(3)
    assert mixing(drifting, torch.randn(20, 2)).mixed is False
    order = torch.randperm(100).tolist()
    assert mixing([drifting[i] for i in order], torch.randn(20, 2)).mixed


def test_report_prints_and_saves() -> None:
    report = mixing(predictive(torch.randn(500, 2)), torch.randn(300, 2))
    lines = repr(report).splitlines()
    assert lines[0].split() == "500 draws at 128 inputs median tail worst limit".split()
    assert lines[-1].startswith("mixed: R-hat of the class probabilities is 1.0")
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert MixingReport(**numbers) == report


def test_the_check_leaves_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    mixing(predictive(torch.ones(100, 2)), torch.ones(5, 2))
    assert torch.equal(torch.get_rng_state(), before)


# Before a distillation ------------------------------------------------------------------------

QUICK: dict[str, Any] = {"num_steps": 5, "loss": "moments", "seed": 0, "progress": False}


def test_distill_reports_a_teacher_that_has_not_mixed() -> None:
    x = torch.randn(60, 2)
    with pytest.warns(MixingWarning, match="has not mixed.*R-hat .* are worth .*longer warm-up"):
        fast = distill(predictive(two_modes(500)), x, **QUICK)
    assert fast.report["mixing"]["mixed"] is False
    assert fast.report["mixing"]["r_hat_90"] > 1.5


def test_distill_warns_before_it_trains() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MixingWarning)
        with pytest.raises(MixingWarning):
            distill(predictive(two_modes(500)), torch.randn(60, 2), **{**QUICK, "num_steps": 10**9})


@pytest.mark.parametrize("draws", [200, 1200])  # more than are labelled: asked for once more
def test_distill_is_silent_and_unchanged_where_the_teacher_has_mixed(
    monkeypatch: pytest.MonkeyPatch, draws: int
) -> None:
    x, source = torch.randn(60, 2), predictive(torch.randn(draws, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FidelityWarning)  # of so few steps
        fast = distill(source, x, **QUICK)
    assert fast.report["mixing"]["mixed"] is True
    assert fast.report["mixing"]["num_draws"] == draws
    skipped = MixingReport(None, "")
    module = sys.modules["pyro_opu.distillation"]
    monkeypatch.setattr(module, "check_mixing", lambda *_: skipped)
    without = distill(source, x, **QUICK)
    assert without.report["history"] == fast.report["history"]
    for one, other in zip(fast.guide.parameters(), without.guide.parameters(), strict=True):
        assert torch.equal(one, other)


def test_distill_does_not_judge_fresh_draws() -> None:
    fast = distill(
        lambda x, num_draws: torch.rand(num_draws, len(x), 2).softmax(-1),
        torch.randn(60, 2),
        **QUICK,
    )
    assert fast.report["mixing"]["mixed"] is None


def test_distill_warns_of_a_point_estimate() -> None:
    x = torch.randn(60, 2)
    guide = AutoDelta(model)
    guide(x, torch.ones(60))
    source = Predictive(model, guide=guide, num_samples=50, return_sites=("obs",))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        distill(source, x, **QUICK)
    assert any("give the same class probabilities" in str(w.message) for w in said)
