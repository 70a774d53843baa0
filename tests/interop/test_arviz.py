"""Students, teachers and this package's samplers in ArviZ, 0.x or 1.x, against closed forms."""

from __future__ import annotations

import math
import sys
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from either_arviz import NEW, az, groups, loo
from pyro import poutine
from pyro.infer import MCMC, Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import SGLD, OnePassPredictive, PolyaGammaGibbs, to_inference_data
from pyro_opu.distributions import Empirical
from pyro_opu.interop import summary
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.outcomes import SiteLayout

pytestmark = pytest.mark.usefixtures("coarse")

N = 40
model = logistic_regression(2)


def data(classes: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, 2, generator=generator)
    noise = torch.randn(N, classes, generator=generator)
    return x, (2 * x[:, :1] * torch.arange(classes) + noise).argmax(-1)


class Fixed(nn.Module):
    """A guide that answers row i with the i-th answer, whatever x."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer if len(x) == N else dist.Dirichlet(torch.ones(len(x), 3))


def fixed(answer: Any, sites: tuple[SiteLayout, ...] = (), draws: int = 4000) -> OnePassPredictive:
    return OnePassPredictive(Fixed(answer), (2,), answer.event_shape[0], sites, draws)


def alphas() -> Tensor:
    """Three classes, no entry below 5."""
    return 5 + 20 * torch.rand(N, 3, generator=torch.Generator().manual_seed(1))


@cache
def pair() -> tuple[Predictive, OnePassPredictive]:
    """A posterior of 400 independent draws, and a student that was distilled from it."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.tensor([[1.5], [0.0]]) + 0.4 * torch.randn(400, 2, 1, generator=generator)
    bias = 0.3 * torch.randn(400, 1, generator=generator)
    predictive = Predictive(model, {"weight": weight, "bias": bias})
    options = {"loss": "moments", "num_steps": 400, "progress": False}
    fast = pyro_opu.distill(predictive, data()[0], seed=0, **options)
    return predictive, fast


# What comes out ---------------------------------------------------------------------------------


def test_every_group_of_a_student() -> None:
    (x, _), y = data(), torch.arange(N) % 3
    fast = fixed(dist.Dirichlet(alphas()), draws=300)
    names = {"class": ["cat", "dog", "fox"]}
    found = to_inference_data(fast, x, y, probs=True, coords=names, seed=0)
    probs = found["posterior"]["probs"]
    assert probs.dims == ("chain", "draw", "data", "class") and probs.shape == (1, 300, N, 3)
    np.testing.assert_allclose(probs.sum("class"), 1, atol=1e-5)  # float32
    # 300 draws of each entry: within 5 standard deviations of their mean.
    answer = dist.Dirichlet(alphas())
    scale = 5 * (answer.variance / 300).sqrt()
    assert (abs(probs.mean(("chain", "draw")).values - answer.mean.numpy()) < scale.numpy()).all()
    assert probs.sel({"class": "fox"}).shape == (1, 300, N)
    labels = found["posterior_predictive"]["obs"]
    assert labels.dims == ("chain", "draw", "data") and labels.dtype == np.int64
    np.testing.assert_array_equal(found["posterior_predictive"]["probs"], probs)
    pointwise = found["log_likelihood"]["obs"]
    assert pointwise.dims == ("chain", "draw", "data")
    for i in range(N):  # the slow way; float32 logarithms
        expected = np.log(probs.values[0, :, i, int(y[i])])
        np.testing.assert_allclose(pointwise[0, :, i], expected, atol=1e-5)
    np.testing.assert_array_equal(found["observed_data"]["obs"], y)
    np.testing.assert_array_equal(found["constant_data"]["x"], x)
    assert found["constant_data"]["x"].dims[0] == "data"
    assert found["posterior"].attrs["chains"].startswith("student's draws, independent")


def test_labels_are_drawn_from_their_own_draw() -> None:
    """So a teacher's labels are joint over the inputs: here all rows of a draw have one class."""
    classes = torch.arange(12) % 3
    teacher = torch.nn.functional.one_hot(classes, 3).float()[:, None]
    found = to_inference_data(lambda x: teacher.expand(12, len(x), 3), data()[0], num_chains=3)
    labels = found["posterior_predictive"]["obs"]
    np.testing.assert_array_equal(labels, np.broadcast_to(classes.view(3, 4, 1), (3, 4, N)))
    assert found["posterior"].attrs["chains"] == "teacher's draws, cut into 3 chain(s)"
    assert groups(found) == {"posterior", "posterior_predictive", "constant_data"}  # no y


def test_every_kind_of_teacher() -> None:
    (x, y), predictive = data(), pair()[0]
    run = to_inference_data(predictive, x, y.float(), probs=True)
    same = to_inference_data(pyro_opu.as_teacher(predictive), x, y)  # by the class probabilities
    expected = run["posterior_predictive"]["probs"]
    np.testing.assert_allclose(same["posterior"]["probs"], expected, atol=1e-5)  # float32
    np.testing.assert_allclose(
        same["log_likelihood"]["obs"], run["log_likelihood"]["obs"], atol=1e-5
    )
    np.testing.assert_array_equal(same["observed_data"]["obs"], run["observed_data"]["obs"])
    network = nn.Sequential(nn.Linear(2, 8), nn.Dropout(), nn.Linear(8, 3))
    for source in (network, [nn.Linear(2, 3) for _ in range(7)], [predictive, predictive]):
        found = to_inference_data(source, x, y, num_draws=6, seed=0)
        assert found["log_likelihood"]["obs"].shape == (1, 6, N)


def test_the_site_is_the_students() -> None:
    layouts = (
        SiteLayout("p", "probs", "float32", (-1, 3)),
        SiteLayout("y", "label", "int64", (-1,)),
    )
    fast = fixed(dist.Dirichlet(alphas()), layouts)
    x, y = data(3)
    found = to_inference_data(fast, x, y=y, num_draws=5)
    assert all("y" in found[group] for group in ("log_likelihood", "observed_data"))
    assert found["posterior"].sizes["draw"] == 5
    found = to_inference_data(fast.guide, x, y)  # a guide has no sites, and 500 draws
    assert found["log_likelihood"]["obs"].shape == (1, 500, N)


def test_groups_can_be_left_out() -> None:
    fast, (x, y) = fixed(dist.Dirichlet(alphas())), data(3)
    found = to_inference_data(fast, x, y, log_likelihood=False, posterior_predictive=False)
    assert groups(found) == {"posterior", "observed_data", "constant_data"}


def test_a_seed_fixes_the_draws_and_leaves_the_generator() -> None:
    fast, (x, y) = fixed(dist.Dirichlet(alphas()), draws=9), data(3)
    before = torch.get_rng_state()
    one, same, other = (to_inference_data(fast, x, y, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for group in ("posterior", "posterior_predictive", "log_likelihood"):
        assert one[group].equals(same[group]) and not one[group].equals(other[group])


def test_a_students_summary_judges_no_chains() -> None:
    (x, y), fast = data(3), fixed(dist.Dirichlet(alphas()))
    found = to_inference_data(fast, x, y, num_draws=2000, seed=0)
    table = summary(found, coords={"data": [0]}, round_to="none")
    assert {"mean", "sd"} <= set(table.columns)
    assert not [name for name in table if name.startswith(("r_hat", "ess", "mcse"))]
    # 2000 draws, 5 standard errors of a Dirichlet's mean, and of its deviation (kurtosis below 6).
    answer = dist.Dirichlet(alphas()[0])
    mean, sd = (table[name].astype(float).to_numpy() for name in ("mean", "sd"))
    deviation = answer.variance.sqrt().numpy()
    assert (abs(mean - answer.mean.numpy()) < 5 * deviation / math.sqrt(2000)).all()
    np.testing.assert_allclose(sd, deviation, rtol=5 * math.sqrt(5 / 4 / 2000))
    assert "r_hat" in summary(found, kind="all", coords={"data": [0]})  # asked for
    teacher = to_inference_data(pyro_opu.as_teacher(pair()[0]), *data(), num_chains=2)
    assert "r_hat" in summary(teacher, coords={"data": [0]})
    with pytest.raises(TypeError, match="`data` must have a group 'posterior'.*got Predictive"):
        summary(pair()[0])


# LOO --------------------------------------------------------------------------------------------


def test_leaving_a_row_out_takes_a_count_off_a_dirichlet() -> None:
    (x, _), y, alpha = data(), torch.arange(N) % 3, alphas()
    elpd, p, pointwise, _ = loo(to_inference_data(fixed(dist.Dirichlet(alpha)), x, y, seed=0))
    chosen = alpha.gather(-1, y[:, None]).squeeze(-1)
    exact = ((chosen - 1) / (alpha.sum(-1) - 1)).log().numpy()
    # 4000 draws of 1/pi, whose deviation is at most 0.6 of its mean: 5 standard errors.
    np.testing.assert_allclose(pointwise, exact, atol=5 * 0.6 / math.sqrt(4000))
    assert elpd == pytest.approx(exact.sum(), abs=5 * 0.6 * math.sqrt(N / 4000))  # their sum
    full = (chosen / alpha.sum(-1)).log().numpy()
    assert p == pytest.approx((full - exact).sum(), abs=5 * 0.6 * math.sqrt(N / 4000))


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
def test_pareto_k_warns_where_there_is_no_count_to_take_off() -> None:
    alpha = torch.full((N, 3), 20.0)
    alpha[: N // 2, 0] = 0.7
    found = to_inference_data(fixed(dist.Dirichlet(alpha)), data()[0], torch.zeros(N), seed=0)
    k = loo(found)[3]
    # 1 / alpha is 1.4 and 0.05; a fit to the tail of 4000 draws is within 0.4 of it.
    np.testing.assert_allclose(k[: N // 2], 1 / 0.7, atol=0.5)
    assert (k[N // 2 :] < 0.5).all()


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
@pytest.mark.parametrize("kind", ["student", "teacher", "categorical", "one-hot", "bernoulli"])
def test_rows_whose_probability_rounds_to_one(kind: str) -> None:
    """Their log-likelihoods differ from draw to draw; ``az.loo`` of ArviZ 1 fails at equal ones."""
    slope = 20 + 3 * torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    x, y = torch.linspace(1, 2, N)[:, None].expand(N, 2), torch.ones(N)
    z = slope * x[:, 0]
    exact = -(z.double().exp().reciprocal().log1p())  # of class 1, with logits 0 and z

    def model(x: Tensor, y: Tensor | None = None) -> None:
        logit = pyro.sample("slope", dist.Normal(0.0, 30.0)) * x[:, 0]
        pair = torch.stack([torch.zeros_like(logit), logit], -1)
        one_hot = None if y is None else torch.eye(2)[y.long()]
        with pyro.plate("data", len(x)):
            if kind == "categorical":
                pyro.sample("obs", dist.Categorical(logits=pair), obs=y)
            elif kind == "one-hot":
                pyro.sample("obs", dist.OneHotCategorical(logits=pair), obs=one_hot)
            else:
                pyro.sample("obs", dist.Bernoulli(logits=logit), obs=y)

    if kind == "student":
        pairs = torch.stack([torch.zeros_like(z), z], -1).log_softmax(-1)
        found = to_inference_data(fixed(Empirical(pairs), draws=400), x, y)
        some = found["log_likelihood"]["obs"].values[0]
        # 400 of 400 with replacement: 253 different ones, with a deviation of 6.
        assert not NEW or all(len(np.unique(row)) > 200 for row in some.T)
    else:
        source = Predictive(model, {"slope": slope.flatten()})
        source = pyro_opu.as_teacher(source) if kind == "teacher" else source
        found = to_inference_data(source, x, y)
        # Logits up to 60 are rounded by up to 4e-6, which is the relative error of the density.
        # For ArviZ 0.x less than 1e-15 is 0, from whose differences it makes NaN.
        atol = 0 if NEW else 1e-15
        np.testing.assert_allclose(found["log_likelihood"]["obs"][0], exact, rtol=1e-4, atol=atol)
    assert np.isfinite(loo(found)[0])


@pytest.mark.filterwarnings("ignore:For one or more samples the posterior variance")
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.sort_values")
def test_a_student_beside_its_teacher() -> None:
    predictive, fast = pair()
    x, y = data()
    both = {
        "teacher": to_inference_data(predictive, x, y.float(), seed=0),
        "student": to_inference_data(fast, x, y, num_draws=4000, seed=0),
    }
    table = az.compare(both)
    assert set(table.index) == {"teacher", "student"}
    teacher, student = (loo(both[name]) for name in ("teacher", "student"))
    # 400 steps of distillation; at the two rows with the wrong label, whose LOO lives in the tail
    # of the draws, a Dirichlet's tail is not that of a logistic normal.
    np.testing.assert_allclose(student[2], teacher[2], atol=0.4)
    assert np.median(abs(student[2] - teacher[2])) < 0.01
    assert student[1] == pytest.approx(teacher[1], rel=0.3)  # p_loo: those two rows, again
    if not NEW:  # ArviZ 1 has no WAIC
        waic = [az.waic(both[name]).elpd_waic for name in ("teacher", "student")]
        assert waic == pytest.approx([teacher[0], student[0]], abs=0.6)  # two cumulants


def test_what_a_student_cannot_give() -> None:
    """The spread of a sum over rows, which share the parameters of a teacher's draw."""
    joint, alone = (
        to_inference_data(source, data()[0], seed=0)["posterior"]["probs"][..., 1].sum("data").std()
        for source in (pyro_opu.as_teacher(pair()[0]), pair()[1])
    )
    assert alone < 0.5 * joint


@pytest.mark.filterwarnings("ignore")  # ArviZ: all importance weights are equal
def test_a_mean_alone_has_no_effective_parameters() -> None:
    x, y = data(3)
    point = alphas().log().log_softmax(-1)
    found = to_inference_data(fixed(Empirical(point[None]), draws=100), x, y)
    if NEW:
        with pytest.raises(ValueError, match="All tail values are the same"):
            az.loo(found)
        return
    elpd, p, _, _ = loo(found)
    expected = float(point.gather(-1, y[:, None]).sum())
    assert elpd == pytest.approx(expected, abs=1e-3)  # float32 sums of 40 terms
    assert p == pytest.approx(0, abs=1e-3)


# Plots ------------------------------------------------------------------------------------------

ONE_INPUT = {"var_names": ["probs"], "coords": {"data": [0], "class": [1]}}
OLD_PLOTS = [
    ("plot_ppc", {"num_pp_samples": 20}),
    ("plot_separation", {"y": "obs"}),
    ("plot_loo_pit", {"y": "obs"}),
    ("plot_trace", ONE_INPUT),
]
NEW_PLOTS = [
    ("plot_ppc_rootogram", {}),
    ("plot_ppc_pava", {}),
    ("plot_loo_pit", {}),
    ("plot_trace", ONE_INPUT),
]


@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")
@pytest.mark.parametrize(("name", "options"), NEW_PLOTS if NEW else OLD_PLOTS)
@pytest.mark.parametrize("who", ["teacher", "student"])
@pytest.mark.slow
def test_arviz_draws_it(name: str, options: dict[str, Any], who: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    predictive, fast = pair()
    x, y = data()
    source = fast if who == "student" else pyro_opu.as_teacher(predictive)
    getattr(az, name)(to_inference_data(source, x, y, num_draws=100, seed=0), **options)
    assert any(axes.has_data() for axes in pyplot.gcf().axes)
    pyplot.gcf().canvas.draw()
    pyplot.close("all")


# Samplers ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["Polya-Gamma", "SGLD"])
def test_our_samplers_convert_as_nuts_does(
    kind: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyro.infer.mcmc.api.mp, "cpu_count", lambda: 1)  # no process is forked
    if kind == "Polya-Gamma":
        pytest.importorskip("polyagamma")
    regression = logistic_regression(classes)
    kernel = (
        PolyaGammaGibbs(regression)
        if kind == "Polya-Gamma"
        else SGLD(regression, step_size=1e-2, batch_size=10)
    )
    x, y = data(classes)
    y = y.float() if classes == 2 else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains one after another, on few cores
        mcmc = MCMC(kernel, 30, 5, num_chains=2, disable_progbar=True)
        mcmc.run(x, y)
    found = to_inference_data(mcmc, probs=True)
    assert found["posterior"]["weight"].shape == (2, 30, 2, 1 if classes == 2 else classes)
    assert found["sample_stats"]["diverging"].shape == (2, 30)
    assert not found["sample_stats"]["diverging"].values.any()
    grouped = mcmc.get_samples(group_by_chain=True)
    for chain in range(2):
        for s in range(30):
            draw = {name: value[chain, s] for name, value in grouped.items()}
            trace = poutine.trace(poutine.condition(regression, draw)).get_trace(x, y)
            trace.compute_log_prob()
            expected = trace.nodes["obs"]["log_prob"].numpy()  # float32
            np.testing.assert_allclose(
                found["log_likelihood"]["obs"][chain, s], expected, atol=1e-5
            )
            lp = found["sample_stats"]["lp"][chain, s]
            assert float(lp) == pytest.approx(float(trace.log_prob_sum()), rel=1e-5)
    assert found["posterior_predictive"]["probs"].shape == (2, 30, N, classes)
    assert np.isfinite(loo(found)[0])


# The other ArviZ, and failures ------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.23.4", "1.3.0"])
def test_what_each_arviz_is_given(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the signature of ``from_dict`` of that version; what it makes is not run."""
    given: dict[str, Any] = {}

    def new(data: dict[str, Any], *, coords: Any = None, dims: Any = None) -> dict[str, Any]:
        given.update(data)
        return {"posterior": SimpleNamespace(attrs={})}

    def old(
        posterior: Any = None,
        *,
        posterior_predictive: Any = None,
        log_likelihood: Any = None,
        observed_data: Any = None,
        constant_data: Any = None,
        coords: Any = None,
        dims: Any = None,
    ) -> dict[str, Any]:
        inside = {name: value for name, value in locals().items() if isinstance(value, dict)}
        return new({name: value for name, value in inside.items() if name != "dims"})

    stand_in = SimpleNamespace(__version__=version, from_dict=new if version > "1" else old)
    monkeypatch.setitem(sys.modules, "arviz", stand_in)
    fast, (x, y) = fixed(dist.Dirichlet(alphas()), draws=7), data(3)
    found = to_inference_data(fast, x, y)
    assert "student's draws" in found["posterior"].attrs["chains"]
    shapes = {group: {k: v.shape for k, v in values.items()} for group, values in given.items()}
    assert shapes == {
        "posterior": {"probs": (1, 7, N, 3)},
        "posterior_predictive": {"obs": (1, 7, N)},
        "log_likelihood": {"obs": (1, 7, N)},
        "observed_data": {"obs": (N,)},
        "constant_data": {"x": (N, 2)},
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": None}, TypeError, "`x` must be a torch.Tensor .* got NoneType"),
        ({"x": torch.zeros(N, 3)}, ValueError, r"`x` must have shape \(N, 2\)"),
        ({"y": [0] * N}, TypeError, r"`y` must be .* of shape \(40,\); got list"),
        ({"y": torch.zeros(N, 3)}, ValueError, r"got shape \(40, 3\).*one-hot rows pass"),
        ({"y": torch.full((N,), 3)}, ValueError, "numbers from 0 to 2, .* from 3 to 3"),
        ({"y": torch.full((N,), -1)}, ValueError, "values from -1 to -1"),
        ({"y": torch.full((N,), 0.5)}, ValueError, "values from 0.5 to 0.5"),
        ({"num_draws": 0}, ValueError, "`num_draws` must be a positive integer; got 0"),
        ({"num_draws": True}, ValueError, "`num_draws` must be a positive integer; got True"),
        ({"num_chains": 3}, ValueError, "divisor of the 4000 posterior samples; got 3"),
        ({"run": "student"}, TypeError, "`run` must be a pyro.infer.MCMC .*; got str"),
        ({"run": nn.Linear(2, 3)}, ValueError, "must be a network with dropout"),
        ({"run": lambda x: x[:, 0]}, ValueError, "."),
    ],
)
def test_failures(change: dict[str, Any], error: type[Exception], message: str) -> None:
    x, y = data(3)
    call = {"run": fixed(dist.Dirichlet(alphas())), "x": x, "y": y, **change}
    with pytest.raises(error, match=message):
        to_inference_data(**call)


def test_a_run_has_its_draws() -> None:
    predictive, (x, y) = pair()[0], data()
    with pytest.raises(ValueError, match="`num_draws` is for a student or a teacher; got 5 and a"):
        to_inference_data(predictive, x, y.float(), num_draws=5)
