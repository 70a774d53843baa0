"""Langevin dynamics against its formula, closed forms of its law, and conjugate posteriors."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from itertools import islice

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC
from pyro.infer.autoguide.initialization import init_to_value
from pyro.infer.mcmc.util import initialize_model
from scipy import integrate, stats
from torch import Tensor

from pyro_opu.samplers.minibatches import Minibatches
from pyro_opu.samplers.potential import Potential
from pyro_opu.samplers.schedules import Constant, Halving, PolynomialDecay
from pyro_opu.samplers.sgld import SGLD

DOUBLE = torch.float64
NOISE = 0.5  # standard deviation of targets


def regression(x: Tensor, y: Tensor | None = None) -> None:
    """Linear regression, one independent posterior N(m, P^-1) for each column of targets."""
    zeros = torch.zeros(x.shape[1], 1 if y is None else y.shape[1], dtype=x.dtype)
    weight = pyro.sample("weight", dist.Normal(zeros, 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weight, NOISE).to_event(1), obs=y)


def regression_data(
    rows: int, features: int = 2, copies: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (N, D), y (N, R) of equal columns, and the posterior's mean (D, 1) and precision (D, D)."""
    x = torch.randn(rows, features, dtype=DOUBLE)
    x[:, -1] += 0.5 * x[:, 0]  # correlated
    y = x.sum(1, keepdim=True) + NOISE * torch.randn(rows, 1, dtype=DOUBLE)
    precision = torch.eye(features, dtype=DOUBLE) + x.mT @ x / NOISE**2
    mean = torch.linalg.solve(precision, x.mT @ y / NOISE**2)
    return x, y.expand(-1, copies).contiguous(), mean, precision


def gamma_model(y: Tensor) -> None:
    """Normal data of a latent precision; one independent posterior for each column."""
    prior = dist.Gamma(y.new_tensor(2.0), 1.0).expand([y.shape[1]]).to_event(1)
    scale = pyro.sample("latent", prior).rsqrt()
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(0.0, scale).to_event(1), obs=y)


def half_normal_model(y: Tensor) -> None:
    """The same of a latent scale."""
    prior = dist.HalfNormal(y.new_tensor(1.0)).expand([y.shape[1]]).to_event(1)
    scale = pyro.sample("latent", prior)
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(0.0, scale).to_event(1), obs=y)


def run(kernel: SGLD, *args: Tensor, draws: int, warmup: int = 0, **options: object) -> MCMC:
    mcmc = MCMC(kernel, draws, warmup, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


def covariance_of(draws: Tensor) -> Tensor:
    """Of (S, D, R) over S and R."""
    return torch.cov(draws.transpose(0, 1).reshape(draws.shape[1], -1))


# --- the update ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.0])
def test_steps_by_hand(batch_size: int | None, temperature: float) -> None:
    x, y, *_ = regression_data(20)
    z = torch.tensor([[0.3], [-0.2]], dtype=DOUBLE)
    kernel = SGLD(
        regression,
        step_size=PolynomialDecay(1e-2, 2.0, 0.6),
        batch_size=batch_size,
        temperature=temperature,
        initial_params={"weight": z},
    )
    torch.manual_seed(3)
    got = run(kernel, x, y, draws=3).get_samples()["weight"]

    torch.manual_seed(3)
    order = torch.arange(20) if batch_size is None else torch.randperm(20)
    rows = [order] * 3 if batch_size is None else order.split(batch_size)
    for t in range(3):
        eta, xb, yb = 1e-2 * (2.0 + t) ** -0.6, x[rows[t]], y[rows[t]]
        slope = -z + 20 / len(xb) * xb.mT @ (yb - xb @ z) / NOISE**2
        z = z + eta / 2 * slope
        if temperature:
            z = z + math.sqrt(temperature * eta) * torch.empty(2, dtype=DOUBLE).normal_()[:, None]
        torch.testing.assert_close(got[t], z, rtol=1e-12, atol=1e-12)


def test_preconditioned_steps_by_hand() -> None:
    x, y, mean, precision = regression_data(20)
    z = torch.tensor([[0.3], [-0.2]], dtype=DOUBLE)
    kernel = SGLD(
        regression,
        step_size=1e-3,
        preconditioner="rmsprop",
        rms_decay=0.9,
        rms_floor=0.1,
        initial_params={"weight": z},
    )
    torch.manual_seed(3)
    got = run(kernel, x, y, draws=3).get_samples()["weight"]
    torch.manual_seed(3)
    squared = None
    for t in range(3):
        slope = precision @ (mean - z)
        new = (slope / 20) ** 2
        squared = new if squared is None else 0.9 * squared + 0.1 * new
        scale = 1 / (0.1 + squared.sqrt())
        noise = torch.empty(2, dtype=DOUBLE).normal_()[:, None]
        z = z + 1e-3 / 2 * scale * slope + (1e-3 * scale).sqrt() * noise
        torch.testing.assert_close(got[t], z, rtol=1e-10, atol=1e-12)


def many_sites(x: Tensor, y: Tensor) -> None:
    """Every way a prior can enter: fixed or latent parameters, masks, scales, constraints."""
    one = x.new_ones(())
    level = pyro.sample("level", dist.Normal(0.5 * one, 2.0))
    spread = pyro.sample("spread", dist.HalfNormal(one))
    with pyro.plate("groups", 3):
        group = pyro.sample("group", dist.Normal(level, spread))
        with poutine.scale(scale=0.7):
            scaled = pyro.sample("scaled", dist.Normal(one, 0.5))
        with poutine.mask(mask=torch.tensor([True, False, True])):
            masked = pyro.sample("masked", dist.Normal(one, 0.5))
    scales = torch.tensor([0.5, 1.0, 3.0], dtype=DOUBLE)
    unequal = pyro.sample("unequal", dist.Normal(scales - 1, scales).to_event(1))
    share = pyro.sample("share", dist.Dirichlet(x.new_ones(3)))
    wide = pyro.sample("wide", dist.Normal(one, 2.0).expand([2, 3]).to_event(2))
    weight = pyro.deterministic("sum", group + scaled + masked + unequal + share + wide.sum(0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weight, 1.0), obs=y)
    pyro.factor("extra", -(weight**4).sum())


def test_gradient_equals_that_of_pyro() -> None:
    x, y = torch.randn(7, 3, dtype=DOUBLE), torch.randn(7, dtype=DOUBLE)
    params, reference, transforms, _ = initialize_model(many_sites, (x, y))
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    expected = torch.autograd.grad(reference(leaves), [leaves[name] for name in sorted(leaves)])
    curved = {name: transforms[name] for name in ("share", "spread")}
    potential = Potential(many_sites, params, curved)
    value, got = potential.gradient(potential.latents.join(params), (x, y))
    torch.testing.assert_close(got, torch.cat([g.reshape(-1) for g in expected]))

    # Differences of U need no constant.
    other = {name: value + 0.3 for name, value in params.items()}
    moved, _ = potential.gradient(potential.latents.join(other), (x, y))
    assert moved - value == pytest.approx(float(reference(other) - reference(params)), rel=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_variance_of_the_noise_is_the_schedule(temperature: float) -> None:
    x, y, mean, precision = regression_data(10, copies=500)
    schedule = Halving(1e-2, every=3)
    kernel = SGLD(
        regression,
        step_size=schedule,
        temperature=temperature,
        initial_params={"weight": mean.expand(-1, 500)},
    )
    z = mean.expand(-1, 500)
    for t, draw in enumerate(kernel.stream(x, y, num_samples=9)):
        eta, new = schedule(t), draw["weight"]
        noise = new - z - eta / 2 * precision @ (mean - z)
        # chi-square of 1000 normals, false alarms 1e-6 per step
        low, high = stats.chi2.interval(1 - 1e-6, 1000)
        assert low < float(noise.square().sum()) / (temperature * eta) < high
        z = new


# --- the law of the draws -----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_law_at_a_large_step_size_is_the_biased_one(temperature: float) -> None:
    x, y, mean, precision = regression_data(20, copies=400)
    top = torch.linalg.eigvalsh(precision)[-1]
    eta = float(1.5 / top)
    kernel = SGLD(regression, step_size=eta, thinning=10, temperature=temperature)
    draws = run(kernel, x, y, draws=100, warmup=10).get_samples()["weight"]
    expected = temperature * torch.linalg.inv(precision - eta / 4 * precision @ precision)
    whitened = torch.linalg.solve(expected, covariance_of(draws))
    # 100 x 400 draws, nearly independent: deviation of a variance sqrt(2 / 4e4) = 0.7 %; 5 sigma.
    # The bias is 60 % of the variance along the steepest direction.
    torch.testing.assert_close(whitened, torch.eye(2, dtype=DOUBLE), rtol=0, atol=0.036)
    standard = expected.diagonal().sqrt()
    gap = (draws.mean((0, 2)) - mean[:, 0]) / standard
    assert gap.abs().max() < 5 / 4e4**0.5 * 1.5  # 1.5: what correlation the thinning leaves


@pytest.mark.slow
def test_law_at_a_small_step_size_is_the_posterior() -> None:
    x, y, mean, precision = regression_data(500, copies=1000)
    values = torch.linalg.eigvalsh(precision)
    eta = float(0.02 / values[-1])
    kernel = SGLD(
        regression,
        step_size=eta,
        batch_size=100,
        thinning=100,
        initial_params={"weight": torch.zeros(2, 1000, dtype=DOUBLE)},
    )
    slow = float(eta * values[0] / 2)  # the slowest direction decays by 1 - slow a step
    assert math.exp(-1500 * slow) < 0.02  # the start is forgotten after the burn-in
    draws = run(kernel, x, y, draws=10, warmup=15).get_samples()["weight"]
    whitened = torch.linalg.solve(torch.linalg.inv(precision), covariance_of(draws))
    # Discretisation eta lambda / 4 = 0.5 %; minibatches eta lambda / 4 (N / M - 1) = 2 % for row
    # gradients with covariance P / N; Monte Carlo at some 3000 draws: 2.6 %, 5 sigma 13 %.
    torch.testing.assert_close(whitened, torch.eye(2, dtype=DOUBLE), rtol=0, atol=0.15)
    # The minibatches are common to all copies: their 2 % of the variance is not averaged over them.
    gap = (draws.mean((0, 2)) - mean[:, 0]) * precision.diagonal().sqrt()
    assert gap.abs().max() < 5 * (1 / 3000 + 0.02) ** 0.5


@pytest.mark.parametrize(
    "model", [pytest.param(gamma_model, marks=pytest.mark.slow), half_normal_model]
)
def test_constrained_latent_against_quadrature(model: Callable[[Tensor], None]) -> None:
    data = torch.randn(8, dtype=DOUBLE) * 0.7
    kernel = SGLD(model, step_size=0.02, thinning=20, batch_size=None)
    draws = run(kernel, data[:, None].expand(-1, 500), draws=60, warmup=30).get_samples()["latent"]
    assert draws.shape == (60, 500) and draws.min() > 0

    def density(value: float) -> float:
        fixed = poutine.condition(model, {"latent": torch.tensor([value], dtype=DOUBLE)})
        return float(poutine.trace(fixed).get_trace(data[:, None]).log_prob_sum().exp())

    moments = [
        integrate.quad(lambda v, k=k: v**k * density(v), 1e-3, 15, limit=50)[0] for k in range(3)
    ]
    mean = moments[1] / moments[0]
    variance = moments[2] / moments[0] - mean**2
    # Monte Carlo at some 60 x 500 / 3 = 1e4 draws: 1 % of a deviation, 5 sigma 5 %; step size
    # eta lambda / 4 with lambda about N / 2 = 4: 2 % of the variance. Without the Jacobian the mean
    # is off by a fifth of a deviation or more.
    assert abs(float(draws.mean()) - mean) < 0.07 * variance**0.5
    assert float(draws.var()) == pytest.approx(variance, rel=0.15)


@pytest.mark.slow
def test_preconditioner_mixes_in_fewer_steps() -> None:
    scales, copies = torch.tensor([0.1, 10.0], dtype=DOUBLE), 200

    def model(y: Tensor) -> None:
        zeros = torch.zeros(copies, 2, dtype=DOUBLE)
        mean = pyro.sample("mean", dist.Normal(zeros, 100.0).to_event(2))
        with pyro.plate("data", len(y)):
            pyro.sample("obs", dist.Normal(mean, scales).to_event(2), obs=y)

    y = scales * torch.randn(100, 1, 2, dtype=DOUBLE)
    deviations = scales / 10  # of the posterior, variances 1e-4 and 1
    start = {"mean": (y.mean(0) + 5 * deviations).expand(copies, 2)}
    settings = {"batch_size": 50, "thinning": 3000, "initial_params": start}

    def after_3000_steps(kernel: SGLD) -> tuple[Tensor, Tensor]:
        mean = next(kernel.stream(y))["mean"]
        return (mean.mean(0) - y.mean((0, 1))) / deviations, mean.std(0) / deviations

    # The steep direction allows a step size of some 1e-4, the flat one then decays with 2e4 steps.
    off, _ = after_3000_steps(SGLD(model, step_size=1e-4, **settings))
    assert off[1] > 3.9  # 5 exp(-0.15) = 4.3 less 5 sigma at 200 copies
    # Far off, G is N over the drift: eta N / 2 = 1 / 400 a step, there after 2000 steps.
    off, spread = after_3000_steps(
        SGLD(model, step_size=5e-5, preconditioner="rmsprop", **settings)
    )
    # 5 sigma at 200 copies, 0.35; what is left of the start, 0.1; the noise of minibatches, common
    # to all copies, a tenth of the variance at 2 sigma.
    assert off.abs().max() < 1.0
    # 5 sigma at 200 copies, 0.25; step size and what leaving out Gamma costs, 1.15 over seeds.
    assert 0.75 < spread.min() and spread.max() < 1.45


# --- what MCMC sees -----------------------------------------------------------------------------


class Recorder:
    """A schedule that keeps the steps it was asked for."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, step: int) -> float:
        self.steps.append(step)
        return 1e-3


def test_thinning_and_burn_in_count_steps() -> None:
    x, y, *_ = regression_data(20)
    schedule = Recorder()
    kernel = SGLD(regression, step_size=schedule, batch_size=6, thinning=4)
    mcmc = run(kernel, x, y, draws=7, warmup=3)
    assert schedule.steps == [0, *range(40)]  # the first is the check at the start
    assert mcmc.get_samples()["weight"].shape == (7, 2, 1)
    assert mcmc.diagnostics()["steps"] == {"chain 0": 40}
    # Draws are every fourth state of the chain that keeps all of them.
    torch.manual_seed(1)
    thinned = run(kernel, x, y, draws=2, warmup=1).get_samples()["weight"]
    torch.manual_seed(1)
    every = run(SGLD(regression, step_size=1e-3, batch_size=6), x, y, draws=12)
    assert torch.equal(thinned, every.get_samples()["weight"][[7, 11]])


@pytest.mark.parametrize("preconditioner", [None, "rmsprop"])
def test_stream_equals_mcmc(preconditioner: str | None) -> None:
    y = torch.randn(30, 4)
    kernel = SGLD(
        gamma_model, step_size=1e-2, batch_size=7, thinning=3, preconditioner=preconditioner
    )
    torch.manual_seed(5)
    stored = run(kernel, y, draws=6, warmup=2).get_samples()["latent"]
    torch.manual_seed(5)
    streamed = []
    for draw in kernel.stream(y, num_samples=6, warmup_steps=2):
        streamed.append(draw["latent"].clone())
        draw["latent"].zero_()  # the caller's own
    assert torch.equal(torch.stack(streamed), stored)
    assert len(list(islice(kernel.stream(y), 3))) == 3  # without an end


@pytest.mark.parametrize("preconditioner", [None, "rmsprop"])
def test_resumed_equals_unbroken(preconditioner: str | None) -> None:
    y = torch.randn(30, 4)

    def kernel(resume: dict | None = None) -> SGLD:
        return SGLD(
            gamma_model,
            step_size=Halving(1e-2, every=5),
            batch_size=8,
            preconditioner=preconditioner,
            resume=resume,
        )

    torch.manual_seed(5)
    unbroken = run(kernel(), y, draws=20).get_samples()["latent"]
    torch.manual_seed(5)
    first = kernel()
    head = run(first, y, draws=9).get_samples()["latent"]
    file = io.BytesIO()
    torch.save(first.state, file)
    file.seek(0)
    second = kernel(torch.load(file, weights_only=True))
    tail = run(second, y, draws=11).get_samples()["latent"]
    assert torch.equal(torch.cat([head, tail]), unbroken)
    assert second.state["step"] == 20
    with pytest.raises(ValueError, match="`initial_params` must be left out"):
        run(second, y, draws=1, initial_params={"latent": torch.zeros(4)})


def test_pickles_before_within_and_after_a_run() -> None:
    x, y, *_ = regression_data(20)
    kernel = SGLD(regression, step_size=PolynomialDecay(1e-2), batch_size=5)
    fresh = pickle.loads(pickle.dumps(kernel))
    torch.manual_seed(2)
    stream = kernel.stream(x, y)
    draws = [next(stream)["weight"] for _ in range(3)]
    within = pickle.loads(pickle.dumps(kernel))
    torch.manual_seed(3)
    following = next(stream)["weight"]
    torch.manual_seed(3)
    assert torch.equal(within.sample(within.initial_params)["weight"], following)
    stream.close()
    after = pickle.loads(pickle.dumps(kernel))
    assert torch.equal(after.state["params"]["weight"], following)
    for copy in (fresh, after):
        torch.manual_seed(2)
        assert torch.equal(run(copy, x, y, draws=3).get_samples()["weight"], torch.stack(draws))


def test_progress_bar_and_starts() -> None:
    x, y, *_ = regression_data(20)
    value = torch.full((2, 1), 0.7, dtype=DOUBLE)
    kernel = SGLD(
        regression, step_size=1e-12, init_strategy=init_to_value(values={"weight": value})
    )
    next(kernel.stream(x, y))
    # one step of deviation 1e-6
    torch.testing.assert_close(kernel.state["params"]["weight"], value, rtol=0, atol=1e-5)
    stream = kernel.stream(x, y)
    next(stream)
    shown = kernel.logging()
    assert shown["step size"] == "1.00e-12" and math.isfinite(float(shown["potential"]))
    given = run(kernel, x, y, draws=1, initial_params={"weight": -value}).get_samples()["weight"]
    torch.testing.assert_close(given[0], -value, rtol=0, atol=1e-5)


def test_minibatches() -> None:
    x, label, table = torch.arange(10.0), torch.arange(10), torch.zeros(3, 10)
    batches = Minibatches((None, x, table), {"y": label, "flag": True}, 4)
    assert batches.scale == 2.5
    seen = []
    for _ in range(2):
        (nothing, some, same), kwargs = batches.next()
        assert nothing is None and same is table and kwargs["flag"] is True
        assert torch.equal(some, kwargs["y"].float())
        seen.append(some)
    assert len(torch.cat(seen).unique()) == 8  # without replacement
    before = batches.order
    batches.next()  # two rows are left over: a new permutation
    assert batches.position == 4 and not torch.equal(batches.order, before)


def test_schedules() -> None:
    assert Constant(0.3)(0) == Constant(0.3)(10**6) == 0.3
    decay = PolynomialDecay(2.0, b=9.0, gamma=0.5)
    assert [decay(t) for t in (0, 7)] == pytest.approx([2 / 3, 2 / 4])
    halving = Halving(8.0, every=10)
    assert [halving(t) for t in (0, 9, 10, 19, 20, 30)] == [8, 8, 4, 4, 2, 1]
    assert Halving(8.0, every=10, factor=0.1)(10) == pytest.approx(0.8)
    for schedule in (decay, halving, Constant(1.0)):
        assert pickle.loads(pickle.dumps(schedule)) == schedule
    with pytest.raises(ValueError, match=r"`gamma` must be a positive finite number.*got -1"):
        PolynomialDecay(1.0, gamma=-1.0)
    with pytest.raises(ValueError, match=r"`every` must be a positive finite number.*got 0"):
        Halving(1.0, every=0)


# --- failures -----------------------------------------------------------------------------------


def discrete(x: Tensor, y: Tensor) -> None:
    k = pyro.sample("k", dist.Categorical(torch.ones(2)))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(k.float(), 1.0), obs=y[:, 0])


def local(x: Tensor, y: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(z, 1.0), obs=y[:, 0])


def subsampling(x: Tensor, y: Tensor) -> None:
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x), subsample_size=2) as rows:
        pyro.sample("obs", dist.Normal(z, 1.0), obs=y[rows, 0])


def mixed(x: Tensor, y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=DOUBLE), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(a + b, 1.0), obs=y[:, 0])


def no_latents(x: Tensor, y: Tensor) -> None:
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x[:, 0], 1.0), obs=y[:, 0])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (regression, {"batch_size": 21}, "`batch_size` must be from 1 to 20, .*; got 21"),
        (regression, {"batch_size": 0}, "`batch_size` must be a positive integer; got 0"),
        (regression, {"step_size": lambda t: 0.1 - t}, "must be positive.*got -0.9 at step 1"),
        (regression, {"step_size": lambda t: math.inf}, "must be positive.*got inf at step 0"),
        (discrete, {}, "latent site 'k' must be continuous.*got Categorical"),
        (local, {"batch_size": 5}, "'z' must not depend on the number of rows.*at 5 rows"),
        (subsampling, {}, "plate 'data' must not subsample.*subsample_size=2"),
        (mixed, {}, "latents must have one dtype"),
        (no_latents, {}, "`model` must have latent sites"),
        (
            regression,
            {"initial_params": {"w": torch.zeros(2, 1)}},
            r"`initial_params` must hold .* unconstrained .* shapes \{'weight': \(2, 1\)\}",
        ),
        (
            regression,
            {"initial_params": {"weight": torch.zeros(2)}},
            r"`initial_params` must hold .* unconstrained .* got \{'weight': \(2,\)\}",
        ),
    ],
)
def test_failures_in_a_run(model: Callable[..., None], options: dict, message: str) -> None:
    x, y, *_ = regression_data(20)
    with pytest.raises(ValueError, match=message):
        run(SGLD(model, **{"step_size": 1e-3, **options}), x, y, draws=2)


def test_failures_of_data() -> None:
    x, y, *_ = regression_data(20)
    kernel = SGLD(regression, step_size=1e-3, batch_size=5)
    with pytest.raises(ValueError, match="must observe data; got no observed site"):
        run(kernel, x, draws=1)
    with pytest.raises(ValueError, match=r"arguments must hold a tensor of N rows.*got 1 argum"):
        run(kernel, [1.0, 2.0], draws=1)
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer; got 2.5"):
        SGLD(regression, step_size=1e-3, batch_size=2.5)
    y[3] = math.nan
    with pytest.raises(ValueError, match=r"`args\[1\]` must be finite.*first: row 3"):
        run(kernel, x, y, draws=1)
    with pytest.raises(AttributeError, match="no state before its first run"):
        kernel.state  # noqa: B018
    with pytest.raises(AttributeError, match="runs no chain"):
        kernel.sample({})


def test_local_latents_with_all_rows() -> None:
    x, y, *_ = regression_data(20)
    draws = run(SGLD(local, step_size=1e-2), x, y, draws=2).get_samples()["z"]
    assert draws.shape == (2, 20)


def test_labels_that_cannot_be_are_refused():
    x, y = torch.randn(30, 2), torch.tensor([0.0, 1.0, 2.0]).repeat(10)

    def model(x, y=None, mask=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            fn = dist.Bernoulli(logits=x @ w)
            pyro.sample("obs", fn if mask is None else fn.mask(mask), obs=y)

    kernel = SGLD(model, step_size=1e-3, batch_size=10)
    message = r"`obs` at site 'obs' .* Boolean\(\); got others in 10 of 30 rows, such as 2"
    with pytest.raises(ValueError, match=message):
        MCMC(kernel, 2, 1, disable_progbar=True).run(x, y)
    MCMC(kernel, 2, 1, disable_progbar=True).run(x, y, y < 2)  # a mask hides them
