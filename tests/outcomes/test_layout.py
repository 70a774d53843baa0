"""The swap: keys, shapes and dtypes of every requested site are those of Predictive."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyro_opu.distillation import distill
from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.parts import SiteLayout
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.teachers import as_teacher

pytestmark = pytest.mark.usefixtures("brief")

D = 3


def _weights(classes: int) -> Tensor:
    return pyro.sample("w", dist.Normal(torch.zeros(D, classes), 1.0).to_event(2))


def _softmax(build: Callable, classes: int = 3) -> Callable:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        z = x @ _weights(classes).to(x.dtype)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", build(z), obs=y)

    return model


def _event(x: Tensor, y: Tensor | None = None) -> None:
    z = x @ _weights(3)
    pyro.sample("obs", dist.Categorical(logits=z).to_event(1), obs=y)


def _onehot_event(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("obs", dist.OneHotCategorical(logits=x @ _weights(3)).to_event(1), obs=y)


def _with_probs(x: Tensor, y: Tensor | None = None) -> None:
    probs = pyro.deterministic("share", (x @ _weights(3)).softmax(-1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(probs), obs=y)


def _with_probs_event(x: Tensor, y: Tensor | None = None) -> None:
    z = x @ _weights(3)
    with pyro.plate("data", len(x)):
        probs = pyro.deterministic("share", z.softmax(-1), event_dim=1)
        pyro.sample("obs", dist.Categorical(probs), obs=y)


def _with_probs_of_that_name(x: Tensor, y: Tensor | None = None) -> None:
    z = x @ _weights(3)
    with pyro.plate("data", len(x)):
        probs = pyro.deterministic("probs", z.softmax(-1), event_dim=1)
        pyro.sample("obs", dist.Categorical(probs), obs=y)


def _with_p(x: Tensor, y: Tensor | None = None) -> None:
    z = (x @ _weights(1))[:, 0]
    with pyro.plate("data", len(x)):
        p = pyro.deterministic("p", z.sigmoid(), event_dim=0)
        pyro.sample("obs", dist.Bernoulli(p), obs=y)


def _with_p_before_the_plate(x: Tensor, y: Tensor | None = None) -> None:
    p = pyro.deterministic("p", (x @ _weights(1))[:, 0].sigmoid())
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(p), obs=y)


def _with_both(x: Tensor, y: Tensor | None = None) -> None:
    """Two classes written out, and the column of the second."""
    p = (x @ _weights(1)).sigmoid()
    pyro.deterministic("column", p)
    both = pyro.deterministic("both", torch.cat([1 - p, p], -1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(both), obs=y)


def _nested(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("groups", 4, dim=-2):
        pyro.sample("a", dist.Normal(torch.zeros(4, 1), 1.0))
    share = pyro.deterministic("share", (x @ _weights(3)).softmax(-1))
    with pyro.plate("data", len(x), dim=-1):
        pyro.sample("obs", dist.Categorical(share), obs=y)


def _outer(x: Tensor, y: Tensor | None = None) -> None:
    z = x @ _weights(1)
    with pyro.plate("data", len(x), dim=-2):
        pyro.sample("obs", dist.Bernoulli(logits=z), obs=y)


class Network(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = PyroModule[nn.Linear](D, 3)
        self.layer.weight = PyroSample(dist.Normal(torch.zeros(3, D), 1.0).to_event(2))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        z = self.layer(x)
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Categorical(logits=z), obs=y)


# Model, shape of its latent "w", the sites that can be asked for (None: as Predictive chooses).
MODELS = {
    "categorical": (_softmax(lambda z: dist.Categorical(logits=z)), (D, 3), [None, ("obs",)]),
    "two-classes": (_softmax(lambda z: dist.Categorical(logits=z), 2), (D, 2), [None]),
    "onehot": (_softmax(lambda z: dist.OneHotCategorical(logits=z)), (D, 3), [None, ("obs",)]),
    "multinomial": (_softmax(lambda z: dist.Multinomial(1, logits=z)), (D, 3), [None]),
    "bernoulli": (_softmax(lambda z: dist.Bernoulli(logits=z[:, 0]), 1), (D, 1), [None]),
    "binomial": (_softmax(lambda z: dist.Binomial(1, logits=z[:, 0]), 1), (D, 1), [None]),
    "masked": (_softmax(lambda z: dist.Categorical(logits=z).mask(False)), (D, 3), [None]),
    "event": (_event, (D, 3), [None]),
    "onehot-event": (_onehot_event, (D, 3), [None]),
    "share": (_with_probs, (D, 3), [None, ("share",), ["obs", "share"], {"obs"}]),
    "share-event": (_with_probs_event, (D, 3), [None, ("share",)]),
    "probs": (_with_probs_of_that_name, (D, 3), [None, ("probs",), ("probs", "obs")]),
    "p": (_with_p, (D, 1), [None, ("p",), ("p", "obs")]),
    "p-event": (_with_p_before_the_plate, (D, 1), [None, ("p",)]),
    "both": (_with_both, (D, 1), [None, ("both",), ("column", "obs"), ("obs",)]),
    "nested": (_nested, (D, 3), [("obs",), ("share",), ("obs", "share")]),
    "outer": (_outer, (D, 1), [None]),
    "module": (Network(), (3, D), [None, ("obs",)]),
}
CASES = [
    pytest.param(model, shape, sites, id=f"{name}-{sites}")
    for name, (model, shape, choices) in MODELS.items()
    for sites in choices
]


def samples_for(model: Callable, shape: tuple[int, ...], draws: int) -> dict[str, Tensor]:
    name = "layer.weight" if isinstance(model, nn.Module) else "w"
    samples = {name: torch.randn(draws, *shape)}
    return samples if model is not _nested else {**samples, "a": torch.randn(draws, 4, 1)}


def drop_in(
    predictive: Predictive, x: Tensor, sites: object = None, site: str | None = None
) -> OnePassPredictive:
    """An untrained student with the form of the answer that `distill` gives it."""
    teacher = as_teacher(predictive, site)
    classes = teacher.probs(x[:1], 1).shape[-1]
    return OnePassPredictive(
        PredictiveGuide.for_inputs(x.float(), classes),
        x.shape[1:],
        classes,
        teacher.layouts(x, sites),
        predictive.num_samples,
        arguments=["x"],
    )


def assert_same_form(fast: OnePassPredictive, predictive: Predictive, x: Tensor) -> None:
    mine, theirs = fast(x), predictive(x)
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        assert mine[name].shape == value.shape, name
        assert mine[name].dtype == value.dtype, name
        assert torch.isfinite(mine[name]).all()
    assert [v.shape for v in fast.call(x)] == [v.shape for v in predictive.call(x)]
    assert [v.dtype for v in fast.call(x)] == [v.dtype for v in predictive.call(x)]


class TestSwap:
    @pytest.mark.parametrize(("model", "shape", "sites"), CASES)
    @pytest.mark.parametrize(("draws", "rows"), [(1, 1), (4, 1), (4, 4), (3, 5)])
    def test_form_of_every_site(
        self, model: Callable, shape: tuple, sites: object, draws: int, rows: int
    ) -> None:
        samples = samples_for(model, shape, draws)
        predictive = Predictive(model, samples, return_sites=sites or ())
        # Asked for on the Predictive, then in the call.
        assert_same_form(drop_in(predictive, torch.randn(6, D)), predictive, torch.randn(rows, D))
        fast = drop_in(Predictive(model, samples), torch.randn(6, D), sites)
        assert_same_form(fast, predictive, torch.randn(rows, D))

    @pytest.mark.parametrize("name", ["categorical", "bernoulli", "onehot", "p-event", "nested"])
    def test_one_transfer_input_and_zeros_tell_as_much(self, name: str) -> None:
        model, shape, choices = MODELS[name]
        predictive = Predictive(model, samples_for(model, shape, 3), return_sites=choices[-1] or ())
        for x in (torch.randn(1, D), torch.zeros(5, D)):
            assert_same_form(drop_in(predictive, x), predictive, torch.randn(4, D))

    @pytest.mark.parametrize("name", ["categorical", "bernoulli", "onehot"])
    def test_float64(self, name: str) -> None:
        model, shape, _ = MODELS[name]
        samples = {"w": torch.randn(4, *shape, dtype=torch.float64)}
        predictive, x = Predictive(model, samples), torch.randn(5, D, dtype=torch.float64)
        assert_same_form(drop_in(predictive, x), predictive, x)

    def test_images(self) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(8, 8), 1.0).to_event(2))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=(x[:, 0] * w).sum((-2, -1))))

        predictive, x = Predictive(model, {"w": torch.randn(4, 8, 8)}), torch.randn(5, 1, 8, 8)
        fast = drop_in(predictive, x)
        assert_same_form(fast, predictive, x)
        with pytest.raises(ValueError, match=r"must have shape \(N, 1, 8, 8\).*got \(5, 8, 8\)"):
            fast(x[:, 0])

    def test_binary_site_is_the_second_column(self) -> None:
        """Both show the same draws of the same distribution."""
        model, shape, _ = MODELS["both"]
        predictive = Predictive(model, samples_for(model, shape, 5))
        answer = drop_in(predictive, torch.randn(6, D))(torch.randn(4, D))
        assert torch.equal(answer["both"][..., 1:], answer["column"])


class TestDefaults:
    def test_guide_leaves_latents_out_with_a_warning(self) -> None:
        model = MODELS["share"][0]
        guide = AutoNormal(pyro.poutine.block(model, hide=["obs"]))
        predictive, x = Predictive(model, guide=guide, num_samples=7), torch.randn(6, D)
        with pytest.warns(
            UserWarning, match=r"cannot give the sites \['w'\].*return_sites=\['obs'"
        ):
            fast = drop_in(predictive, x)
        named = Predictive(model, guide=guide, num_samples=7, return_sites=("obs", "share"))
        assert_same_form(fast, named, x)
        assert set(predictive(x)) - set(fast(x)) == {"w"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same_form(drop_in(named, x), named, x)

    def test_prior_leaves_latents_out_with_a_warning(self) -> None:
        predictive, x = Predictive(MODELS["bernoulli"][0], num_samples=3), torch.randn(6, D)
        with pytest.warns(UserWarning, match=r"\['w'\]"):
            fast = drop_in(predictive, x)
        assert fast(x)["obs"].shape == predictive(x)["obs"].shape

    def test_all_sites_of_return_sites_none(self) -> None:
        model, shape, _ = MODELS["share"]
        predictive = Predictive(model, samples_for(model, shape, 3), return_sites=None)
        with pytest.warns(UserWarning, match=r"cannot give the sites \['w'\]"):
            fast = drop_in(predictive, torch.randn(6, D))
        assert set(fast(torch.randn(2, D))) == {"obs", "share"}

    def test_what_holds_no_probabilities_is_left_out_with_a_warning(self) -> None:
        def model(x: Tensor) -> None:
            z = pyro.deterministic("z", x @ _weights(3))
            with pyro.plate("data", len(x)):
                pyro.sample("noise", dist.Normal(0.0, 1.0))
                pyro.sample("obs", dist.Categorical(logits=z))

        with pytest.warns(UserWarning, match=r"cannot give the sites \['noise', 'z'\]"):
            predictive = Predictive(model, {"w": torch.randn(4, D, 3)})
            fast = drop_in(predictive, torch.randn(6, D), site="obs")
        assert list(fast(torch.randn(2, D))) == ["obs"]

    def test_probs_without_such_a_site(self) -> None:
        model, shape, _ = MODELS["bernoulli"]
        predictive, x = Predictive(model, samples_for(model, shape, 4)), torch.randn(6, D)
        assert list(drop_in(predictive, x)(x)) == ["obs"]
        answer = drop_in(predictive, x, ["probs"])(x)
        assert list(answer) == ["probs"] and answer["probs"].shape == (4, 6, 2)

    def test_latent_called_probs(self) -> None:
        def model(x: Tensor) -> None:
            probs = pyro.sample("probs", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Categorical(logits=probs))

        guide = AutoNormal(pyro.poutine.block(model, hide=["obs"]))
        predictive, x = Predictive(model, guide=guide, num_samples=4), torch.randn(6, D)
        with pytest.warns(UserWarning, match=r"cannot give the sites \['probs'\]"):
            assert list(drop_in(predictive, x)(x)) == ["obs"]
        with pytest.raises(ValueError, match="asks for 'probs', a latent site"):
            as_teacher(predictive).layouts(x, ["probs"])

    def test_sources_without_sites(self) -> None:
        teacher, x = as_teacher([nn.Linear(D, 4), nn.Linear(D, 4)]), torch.randn(2, D)
        teacher.probs(x)
        (obs,) = teacher.layouts(x, None)
        assert obs == SiteLayout("obs", "label", "int64", (-1,))
        assert teacher.layouts(x, []) == (obs,)
        probs, again = teacher.layouts(x, ["probs", "obs"])
        assert probs == SiteLayout("probs", "probs", "float32", (-1, 4)) and again == obs
        with pytest.raises(
            ValueError, match=r"asks for 'w', .*can give some of \['obs', 'probs'\]"
        ):
            teacher.layouts(x, ["w"])

    def test_nothing_random_is_touched(self) -> None:
        model, shape, _ = MODELS["p"]
        teacher, x = as_teacher(Predictive(model, samples_for(model, shape, 4))), torch.randn(6, D)
        before = torch.get_rng_state()
        teacher.layouts(x, None)
        assert torch.equal(before, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:The student has learned little")  # after so few steps
class TestReturned:
    """The model's value, "_RETURN", as ``Predictive`` gives it."""

    @pytest.mark.parametrize("what", ["label", "probs", "prob1"])
    def test_of_classes(self, what: str) -> None:
        def model(x: Tensor) -> Tensor:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            p = torch.sigmoid(x @ w)
            with pyro.plate("once", 1, dim=-2), pyro.plate("data", len(x), dim=-1):
                y = pyro.sample("y", dist.Bernoulli(p))
            return {"label": y, "probs": torch.stack([1 - p, p], -1), "prob1": p}[what]

        mine, theirs = returned(model)
        assert shapes(mine) == shapes(theirs)
        assert torch.equal(mine["_RETURN"].flatten(), mine["y"].flatten()) == (what == "label")

    def test_of_a_real_y(self) -> None:
        def model(x: Tensor) -> Tensor:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(x @ w, 1.0))
            return x @ w

        mine, theirs = returned(model)
        assert shapes(mine) == shapes(theirs)
        assert mine["_RETURN"].var(0).mean() < mine["y"].var(0).mean()  # without the noise


def returned(model: Callable) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a student and its ``Predictive`` give of y and of the model's value."""
    samples = {"w": torch.randn(50, D)}
    predictive, x = Predictive(model, samples, return_sites=("y", "_RETURN")), torch.randn(20, D)
    return distill(predictive, x, num_steps=20, progress=False)(x), predictive(x)


def shapes(values: dict[str, Tensor]) -> dict[str, tuple]:
    return {name: (value.shape, value.dtype) for name, value in values.items()}


class TestRefused:
    def test_other_number_of_the_same_name(self) -> None:
        """1 - p is no probability of the second class."""

        def model(x: Tensor) -> None:
            p = (x @ _weights(1))[:, 0].sigmoid()
            pyro.deterministic("q", 1 - p)
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(p))

        teacher = as_teacher(Predictive(model, {"w": torch.randn(4, D, 1)}))
        x = torch.cat([torch.zeros(1, D), torch.randn(5, D)])  # both are 1/2 at the first input
        with pytest.raises(ValueError, match="asks for 'q', which is neither"):
            teacher.layouts(x, ["q"])

    def test_one_label_for_all_inputs(self) -> None:
        def model(x: Tensor) -> None:
            pyro.sample("obs", dist.Bernoulli(pyro.sample("p", dist.Beta(1.0, 1.0))))

        teacher = as_teacher(Predictive(model, {"p": torch.rand(4)}))
        with pytest.raises(
            ValueError, match=r"'obs' must hold a value for every input; got .*plate"
        ):
            teacher.layouts(torch.randn(6, D), None)
