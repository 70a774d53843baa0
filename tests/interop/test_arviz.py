"""Students, teachers and this package's samplers in ArviZ, 0.x or 1.x, against closed forms."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from either_arviz import NEW, az, groups, loo
from flat import distill_flat
from pyro import poutine
from pyro.infer import MCMC, Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import SGLD, OnePassPredictive, PolyaGammaGibbs, exact, to_inference_data
from pyro_opu.distributions import Empirical
from pyro_opu.interop import summary
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.parts import SiteLayout

pytestmark = pytest.mark.usefixtures("brief")

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
    options = {"loss": "moments", "num_steps": 150, "batch_size": 64, "progress": False}
    fast = distill_flat(predictive, data()[0], seed=0, **options)
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


# Events over the rows, deterministic sites, and new rows -----------------------------------------


SLOPES = torch.tensor([1.0, -1.0])
ROW_DRAWS = {"w": SLOPES + 0.1 * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))}


def rows_model(form: str, x: Tensor, y: Tensor | None = None) -> Any:
    """The same regression, or classification, with its rows in a plate or in one event."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    f = pyro.deterministic("f", x @ w)
    pyro.deterministic("twice", 2 * w)
    laws = {"labels": dist.Bernoulli(logits=9 * f), "categories": categories(f)}
    fn = laws.get(form.removeprefix("event of "), dist.Normal(f, 0.5))
    if form == "event of pairs":
        fn = dist.Normal(torch.stack([f, -f], -1), 0.5).to_event(2)
    elif form.startswith("event"):
        fn = fn.to_event(1)
    elif form == "multivariate":
        fn = dist.MultivariateNormal(f, 0.25 * torch.eye(len(x)))
    else:
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", fn, obs=y)
    return pyro.sample("obs", fn, obs=y)


def categories(f: Tensor) -> dist.Categorical:
    return dist.Categorical(logits=torch.stack([0 * f, 9 * f], -1))


def converted(form: str, y: Tensor, **options: Any) -> Any:
    predictive = Predictive(lambda x, y=None: rows_model(form, x, y), ROW_DRAWS)
    return to_inference_data(predictive, data()[0], y, seed=0, **options)


@pytest.mark.parametrize(
    "form", ["event", "multivariate", "event of labels", "event of categories"]
)
def test_rows_of_one_event_are_observations(form: str) -> None:
    """As in the plate, and LOO with them."""
    y = (data()[0] @ SLOPES > 0).float()
    y = y.long() if form == "event of categories" else y
    plain = converted(form.removeprefix("event of ") if " of " in form else "plate", y)
    found = converted(form, y)
    right = plain.log_likelihood["obs"].values
    assert right.shape == (1, 60, N)
    np.testing.assert_allclose(found.log_likelihood["obs"].values, right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.sample_stats["lp"], plain.sample_stats["lp"], rtol=1e-4)
    assert loo(found)[0] == pytest.approx(loo(plain)[0], rel=1e-4)
    assert len(loo(found)[2]) == N


def test_a_row_of_several_numbers_is_one_observation() -> None:
    x, y = data()[0], torch.randn(N, 2)
    found = converted("event of pairs", y).log_likelihood["obs"].values[0]
    f = ROW_DRAWS["w"] @ x.mT
    right = dist.Normal(torch.stack([f, -f], -1), 0.5).log_prob(y).sum(-1)
    np.testing.assert_allclose(found, right.numpy(), rtol=1e-4, atol=1e-4)


def test_a_vector_of_one_row_stays_whole() -> None:
    def vector(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        return pyro.sample("obs", dist.Normal(w.repeat(3), 1.0).to_event(1), obs=y)

    found = to_inference_data(Predictive(vector, ROW_DRAWS), data()[0], torch.zeros(6))
    assert found.log_likelihood["obs"].shape == (1, 60)


def test_correlated_rows_are_left_out_by_their_conditionals() -> None:
    """Against the slow way: the ratio of the densities with and without the row."""
    covariance = torch.eye(5) + 0.5
    x, y = torch.randn(5, 2), torch.randn(5)

    def correlated(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        return pyro.sample("obs", dist.MultivariateNormal(x @ w, covariance), obs=y)

    found = to_inference_data(Predictive(correlated, ROW_DRAWS), x, y).log_likelihood["obs"].values
    for s, w in enumerate(ROW_DRAWS["w"]):
        whole = dist.MultivariateNormal(x @ w, covariance).log_prob(y)
        for i in range(5):
            k = [j for j in range(5) if j != i]
            rest = dist.MultivariateNormal((x @ w)[k], covariance[k][:, k]).log_prob(y[k])
            assert found[0, s, i] == pytest.approx(float(whole - rest), abs=1e-4)


def test_an_event_that_cannot_be_taken_apart_is_named() -> None:
    def walk(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        return pyro.sample("obs", dist.Dirichlet((x @ w).exp()), obs=y)

    y = torch.full((N,), 1 / N)
    with pytest.warns(UserWarning, match=f"Site 'obs' observes {N} rows as one event of a Dirichl"):
        found = to_inference_data(Predictive(walk, ROW_DRAWS), data()[0], y)
    assert found.log_likelihood["obs"].shape == (1, 60)


def test_deterministic_sites_are_in_the_posterior() -> None:
    x = data()[0]
    found = converted("plate", x @ SLOPES)
    assert set(found.posterior.data_vars) == {"w", "f", "twice"}
    np.testing.assert_allclose(found.posterior["f"].values[0], ROW_DRAWS["w"] @ x.mT, atol=1e-6)
    np.testing.assert_allclose(found.posterior["twice"].values[0], 2 * ROW_DRAWS["w"], atol=1e-6)
    assert "f" in summary(found).index[0] or any("f[" in name for name in summary(found).index)


@pytest.mark.parametrize("form", ["plate", "event", "multivariate", "labels"])
@pytest.mark.parametrize("call", ["x alone", "a tuple", "a dict"])
def test_predictions_at_new_rows(form: str, call: str) -> None:
    """Their mean over draws and rows; wrong by chance in one of 10^6."""
    new = torch.linspace(-2, 2, 14).reshape(7, 2)
    given = {"x alone": new, "a tuple": (new,), "a dict": {"x": new}}[call]
    y = (data()[0] @ SLOPES > 0).float()
    found = converted(form, y, predictions=given, probs=form == "labels")
    assert {"predictions", "predictions_constant_data"} <= groups(found)
    drawn = found["predictions"]["obs"].values
    f = ROW_DRAWS["w"] @ new.mT
    right = (9 * f).sigmoid() if form == "labels" else f
    assert drawn.shape == (1, 60, 7)
    assert abs(drawn.mean() - float(right.mean())) < 5 * 0.5 / np.sqrt(60 * 7)
    np.testing.assert_array_equal(found["predictions_constant_data"]["x"].values, new)
    assert found["posterior_predictive"]["obs"].shape == (1, 60, N)
    if form == "labels":
        np.testing.assert_allclose(
            found["predictions"]["probs"].values[0, ..., 1], right, atol=1e-6
        )


def test_a_students_predictions_at_new_rows() -> None:
    predictive, fast = pair()
    (x, y), new = data(), torch.randn(5, 2)
    found = to_inference_data(fast, x, y, predictions=new, num_draws=3000, seed=0)
    assert found["predictions"]["probs"].shape == (1, 3000, 5, 2)
    right = fast.dirichlet(new).mean
    np.testing.assert_allclose(
        found["predictions"]["probs"].mean(("chain", "draw")), right, atol=0.02
    )
    assert found["posterior"]["probs"].shape == (1, 3000, N, 2)
    taught = to_inference_data(predictive, x, y.float(), predictions=new)
    assert taught["predictions"]["obs"].shape == (1, 400, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(4, 9), "`predictions` must be what the model is called with"),
        ("rows", "`predictions` must be what"),
        ((torch.zeros(4, 2), torch.zeros(4)), "`predictions` must leave labels out"),
        ({"z": torch.zeros(4, 2)}, "`predictions` must be what"),
    ],
)
def test_what_are_no_new_rows(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        converted("plate", data()[0] @ SLOPES, predictions=given)


def test_exact_answers_are_converted_as_their_source() -> None:
    x, y = data()
    weights = {"w": torch.randn(40, 2, 2, generator=torch.Generator().manual_seed(1))}
    sources = (pair()[0], (weights, lambda draw, x: (x @ draw["w"]).softmax(-1)))
    for source in sources:
        one, two = (to_inference_data(each, x, y, seed=0) for each in (source, exact(source)))
        assert groups(one) == groups(two)
        for group in ("posterior", "log_likelihood", "observed_data"):
            for name in one[group].data_vars:
                np.testing.assert_allclose(one[group][name], two[group][name], atol=1e-5)
