"""``batched(predictive)`` gives what ``predictive`` gives: sites, shapes, dtypes, and the draws."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from posteriors import OUTCOMES, SIGMAS, SOURCES, C, D, S, X, guide, model, network, samples
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from pyro.infer.predictive import WeighedPredictive
from pyro_models import BINARY, MULTI, OBSERVE, ROUNDING, softmax_model, softmax_samples
from torch import Tensor, nn
from torch._C import _len_torch_function_stack

from pyro_opu import as_teacher, batched, rng
from pyro_opu.models.dropout import DropoutGuide
from pyro_opu.models.neural_network import bayesian_network
from pyro_opu.programs.site_programs import SitePrograms
from pyro_opu.programs.vmap_rewrites import Rewrites

Draws = dict[str, Tensor]
NETWORK = network([nn.Dropout()])
NAMED = SimpleNamespace(x=X)
PREDICTIVES = {
    **{k: make for k, (make, _) in SOURCES.items() if k in ("samples", "guide", "prior")},
    **OUTCOMES,
    "guide, all sites": lambda: Predictive(model, guide=guide, num_samples=S),
    "prior, all sites": lambda: Predictive(model, num_samples=S),
    "samples, all sites": lambda: Predictive(model, samples(), return_sites=None),
    "autoguide": lambda: Predictive(model, guide=auto(AutoNormal), num_samples=S),
    "autoguide, joint": lambda: Predictive(
        model, guide=auto(AutoLowRankMultivariateNormal), num_samples=S
    ),
    "local latents": lambda: Predictive(local, guide=local_guide, num_samples=S),
    "of a guide without sites": lambda: Predictive(model, guide=lambda x: None, num_samples=S),
    "every kind of site": lambda: Predictive(many, {"a": torch.randn(S, D)}, return_sites=None),
    "samples with another axis": lambda: Predictive(many, {"a": torch.randn(S, 1, D)}),
    "dropout guide": lambda: Predictive(
        bayesian_network(NETWORK), guide=DropoutGuide(NETWORK), num_samples=S
    ),
    "one draw": lambda: Predictive(model, samples(1)),
    "two draws": lambda: Predictive(model, samples(2), return_sites=None),
}


def auto(kind: type) -> Any:
    found = kind(poutine.block(model, hide=["obs"]))
    found(X)
    return found


def local(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A latent of the whole model, and one of each row."""
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(x[:, 0], scale))
        return pyro.sample("obs", dist.Bernoulli(logits=z), obs=y)


def local_guide(x: Tensor) -> None:
    pyro.sample("scale", dist.Delta(torch.tensor(0.5)))
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(2 * x[:, 0], 0.1))


def many(x: Tensor, scale: float = 1.0, y: Tensor | None = None) -> Tensor:
    """Deterministic sites in and out of plates, and samples of several kinds."""
    a = pyro.sample("a", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    z = pyro.deterministic("z", scale * (x @ a.flatten()))
    pyro.deterministic("norm", a.square().sum())
    b = pyro.sample("b", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        probs = pyro.deterministic("probs", torch.stack([-z, z], -1).softmax(-1), event_dim=1)
        pyro.sample("onehot", dist.OneHotCategorical(probs))
        pyro.sample("count", dist.Poisson(z.exp()))
        real = pyro.sample("real", dist.Normal(z, b))
        pyro.deterministic("shifted", real - real)
        return pyro.sample("obs", dist.Categorical(probs), obs=y)


def layout(found: Draws) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, value.shape, value.dtype) for name, value in found.items()]


def seeded(call: Callable[..., Draws], *args: Any) -> Draws:
    torch.manual_seed(3)
    return call(*args)


@pytest.mark.parametrize("make", PREDICTIVES.values(), ids=PREDICTIVES)
class TestEveryPredictive:
    def test_keys_shapes_and_dtypes(self, make: Callable[[], Predictive]) -> None:
        predictive = make()
        exact = batched(predictive)
        for rows in (1, len(X)):
            found = exact(X[:rows])
            assert layout(found) == layout(predictive(X[:rows]))
            assert not any(value.requires_grad for value in found.values())

    def test_no_warning_and_the_same_seed(self, make: Callable[[], Predictive]) -> None:
        predictive = make()
        exact = batched(predictive)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, again = (seeded(exact, X) for _ in range(2))
        state = torch.get_rng_state()
        assert all(torch.equal(first[name], again[name]) for name in first)
        exact(X)
        assert torch.equal(torch.get_rng_state(), state) == (not first)

    def test_what_held_draws_determine(self, make: Callable[[], Predictive]) -> None:
        predictive = make()
        if not predictive.posterior_samples:
            pytest.skip("draws afresh")
        found, expected = batched(predictive)(X), predictive(X)
        told = {"z", "norm", "probs", "shifted", *predictive.posterior_samples} & set(found)
        for name in told:
            torch.testing.assert_close(found[name], expected[name], **ROUNDING)
        for name in set(predictive.posterior_samples) & set(found):
            assert torch.equal(found[name], expected[name])
            assert found[name].data_ptr() != predictive.posterior_samples[name].data_ptr()

    def test_moments_of_what_is_sampled(self, make: Callable[[], Predictive]) -> None:
        predictive = make()
        exact = batched(predictive)
        mine, theirs = ([call(X) for _ in range(12)] for call in (exact, predictive))
        for name in mine[0]:
            # Means over draws of every call are independent, but for the held draws they share.
            a, b = (
                torch.stack([c[name].double().mean(0) for c in calls]) for calls in (mine, theirs)
            )
            error = ((a.var(0) + b.var(0)) / len(a)).sqrt()
            # Heavy tails and 12 calls: twice as many standard errors as of normal means.
            off = (a.mean(0) - b.mean(0)).abs()
            assert (off <= 2 * SIGMAS * error + 1e-5 * (1 + b.mean(0).abs())).all(), name


@pytest.mark.parametrize("observe", OBSERVE.values(), ids=OBSERVE)
@pytest.mark.parametrize("kind", [*MULTI, *BINARY])
def test_every_kind_of_observed_site(kind: str, observe: Callable[..., None]) -> None:
    classes = 3 if kind in MULTI else 2
    source = softmax_model(classes, {**MULTI, **BINARY}[kind], observe)
    predictive = Predictive(source, softmax_samples(6, classes), return_sites=None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = batched(predictive)(X)
    looped = kind.startswith("multinomial")  # its sampler writes into a tensor that it makes
    assert [("draw by draw" in str(each.message)) for each in said] == [True] * looped
    assert layout(found) == layout(predictive(X))


class TestLabels:
    def test_of_given_uniforms(self) -> None:
        predictive = Predictive(model, samples())
        with rng.seeded(3):
            found = batched(predictive)(X)["obs"]
        with rng.seeded(3):
            u = torch.rand(S, len(X), 1)
        bounds = as_teacher(predictive).probs(X).cumsum(-1)
        assert torch.equal(found, (bounds[..., :-1] <= u).sum(-1))

    def test_of_two_classes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        probs, u = torch.rand(S, len(X)), torch.rand(S, len(X))
        monkeypatch.setattr(torch, "rand_like", lambda like: u.reshape(like.shape))
        with Rewrites():
            found = torch.func.vmap(torch.bernoulli, randomness="different")(probs)
        assert torch.equal(found, (u < probs).float())

    def test_frequencies(self) -> None:
        probs = torch.tensor([[0.0, 0.1, 0.0, 0.9], [0.25, 0.0, 0.5, 0.25]])
        with Rewrites():
            drawn = torch.func.vmap(
                lambda p: torch.multinomial(p, 1, True), randomness="different"
            )(probs.expand(40_000, 2, 4))[..., 0]
        seen = torch.stack([(drawn == k).double().mean(0) for k in range(4)], -1)
        assert ((seen - probs).abs() <= SIGMAS * (probs * (1 - probs) / 40_000).sqrt()).all()

    @pytest.mark.parametrize("bad", [float("nan"), -0.5, 1.5])
    def test_bad_probabilities(self, bad: float) -> None:
        with Rewrites(), pytest.raises(RuntimeError, match="from 0 to 1"):
            torch.bernoulli(torch.tensor([0.5, bad]))

    @pytest.mark.parametrize("bad", [float("nan"), -0.5, float("inf")])
    def test_bad_weights(self, bad: float) -> None:
        with Rewrites(), pytest.raises(RuntimeError, match="finite and not negative"):
            torch.multinomial(torch.tensor([0.5, bad]), 1, True)

    def test_softmax_is_torchs(self) -> None:
        x = torch.tensor([[0.0, 1000.0, -1000.0], [1.0, 2.0, 3.0]])
        with Rewrites():
            found = torch.nn.functional.softmax(x, dim=-1)
        torch.testing.assert_close(found, x.softmax(-1))


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (5, 7), (1, 4)])
@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}])
def test_pooling_is_torchs(size: tuple[int, int], options: dict[str, Any]) -> None:
    x = torch.randn(3, 2, *size)
    pool = nn.MaxPool2d(2, **options)
    try:
        expected = pool(x)
    except RuntimeError:  # nothing to pool
        with Rewrites(), pytest.raises(RuntimeError):
            pool(x)
    else:
        with Rewrites():
            assert torch.equal(pool(x), expected)


class TestCalls:
    def test_keywords_and_labels_that_are_given(self) -> None:
        y = torch.ones(len(X), dtype=torch.long)
        predictive = Predictive(many, {"a": torch.randn(S, D)}, return_sites=("z", "obs"))
        found = batched(predictive)(x=X, scale=2.0, y=y)
        assert torch.equal(found["obs"], y.expand(S, len(X)))
        torch.testing.assert_close(found["z"], predictive(X, 2.0, y)["z"], **ROUNDING)

    def test_sites_of_a_draw_belong_together(self) -> None:
        def drawing(x: Tensor) -> None:
            pyro.sample("a", dist.Normal(torch.ones(D), 1.0).to_event(1))

        found = batched(Predictive(many, guide=drawing, num_samples=S), chunk_size=300)(X)
        a = found["a"].squeeze(1)
        assert len(a.unique(dim=0)) == S
        torch.testing.assert_close(found["z"].squeeze(1), a @ X.T, **ROUNDING)

    def test_what_the_model_returns(self) -> None:
        predictive = Predictive(model, samples(), return_sites=("_RETURN", "obs", "nowhere"))
        found = batched(predictive)(X)
        assert layout(found) == layout(predictive(X))
        assert torch.equal(found["obs"], found["_RETURN"])

    def test_no_tensor_is_returned(self) -> None:
        predictive = Predictive(softmax_model(), softmax_samples(4), return_sites=("_RETURN",))
        with pytest.raises(TypeError, match="must return a tensor"):
            batched(predictive)(X)

    def test_it_is_a_predictive(self) -> None:
        exact = batched(Predictive(model, samples()))
        assert isinstance(exact, Predictive) and isinstance(exact.call(X), tuple)
        torch.testing.assert_close(
            as_teacher(exact).probs(X), as_teacher(exact.eval()).probs(X), **ROUNDING
        )

    def test_latents_alone_take_one_run(self) -> None:
        runs = []

        def counted(x: Tensor) -> None:
            runs.append(len(x))
            model(x)

        held = samples()
        found = batched(Predictive(counted, held, return_sites=("a.weight",)))(X)
        assert torch.equal(found["a.weight"].flatten(), held["a.weight"].flatten())
        assert len(runs) == 1  # which tells the shapes

    def test_handlers_of_the_caller_see_every_draw(self) -> None:
        exact = batched(Predictive(many, {"a": torch.randn(S, D)}, return_sites=("b",)))
        with poutine.condition(data={"b": torch.tensor(7.0)}):
            assert torch.equal(exact(X)["b"], torch.full((S, 1), 7.0))

    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            (
                lambda: batched(WeighedPredictive(model, guide=guide, num_samples=3)),
                TypeError,
                "carry weights",
            ),
            (
                lambda: batched(Predictive(model, samples()), chunk_size=0),
                ValueError,
                "`chunk_size` must be a positive integer",
            ),
        ],
        ids=["weights", "chunk size"],
    )
    def test_refusals(self, bad: Callable[[], Any], error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            bad()


class TestBlocks:
    def test_of_any_size_give_the_same(self) -> None:
        predictive = Predictive(many, {"a": torch.randn(S, D)})
        whole = batched(predictive)(X)
        for size in (1, 100, 1000):
            found = batched(predictive, chunk_size=size)(X)
            assert layout(found) == layout(whole)
            for name in ("z", "norm", "probs"):
                torch.testing.assert_close(found[name], whole[name], **ROUNDING)

    def test_hold_as_many_draws_as_the_chunk_allows(self) -> None:
        exact = batched(Predictive(model, samples()), chunk_size=10 * C * len(X))
        seen: list[int] = []
        block = SitePrograms._block

        def watched(self: SitePrograms, part: slice, *given: Any) -> Any:
            seen.append(part.stop - part.start)
            return block(self, part, *given)

        with mock.patch.object(SitePrograms, "_block", watched):
            for _ in range(4):
                exact(X)
        assert sum(seen) == 4 * S
        assert 1 <= max(seen) <= 10

    @pytest.mark.parametrize("rows", [1, 40, 400])
    @pytest.mark.parametrize("site", ["p", "p, q", "p of two axes"])
    def test_a_deterministic_site_in_a_plate_is_as_wide_as_its_rows(
        self, site: str, rows: int
    ) -> None:
        """Without ``event_dim`` its distribution is a view of N x N numbers."""

        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                p = pyro.deterministic("p", torch.sigmoid(x @ w))
                if site == "p, q":
                    p = pyro.deterministic("q", 1 - p)
                if site == "p of two axes":
                    pyro.deterministic("both", torch.stack([p, 1 - p], -1))
                pyro.sample("obs", dist.Bernoulli(p))

        predictive = Predictive(source, {"w": torch.randn(S, D)})
        exact = batched(predictive)
        x = torch.randn(rows, D)
        found = exact(x)
        (programs,) = exact._programs._kept.values()
        assert programs._bound.width(rows) <= 2 * max(rows, D)
        torch.testing.assert_close(found["p"], predictive(x)["p"])

    def test_weights_do_not_shrink_the_blocks_of_a_row(self) -> None:
        layers = nn.Linear(D, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, C)
        source = bayesian_network(nn.Sequential(*layers))
        nodes = poutine.trace(source).get_trace(X).nodes
        held = {
            name: torch.randn(S, *node["value"].shape) / 20
            for name, node in nodes.items()
            if node["type"] == "sample" and name not in ("obs", "data")
        }
        exact = batched(Predictive(source, held))
        exact(X[:1])
        assert [programs._bound.width(1) for programs in exact._programs._kept.values()] == [200]

    @pytest.mark.parametrize(
        ("attends", "most", "recorded"),
        [(True, 1, False), (True, 4, False), (True, 5, True), (False, 1, True), (False, 4, True)],
    )
    def test_wide_draws_with_attention_run_as_in_the_loop(
        self, attends: bool, most: int, recorded: bool
    ) -> None:
        """Without a mode over torch's functions, under which a transformer has no fused kernel."""
        seen: list[int] = []

        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            seen.append(_len_torch_function_stack())
            x = nn.functional.scaled_dot_product_attention(x, x, x) if attends else x
            pyro.deterministic("probs", torch.sigmoid(x @ w))

        predictive = Predictive(source, {"w": torch.randn(S, D)})
        exact = batched(predictive, chunk_size=most * len(X))
        torch.testing.assert_close(exact(X), predictive(X))
        seen.clear()
        exact(X)
        if recorded:
            assert not seen
        else:
            assert len(seen) == 1 + S  # one for the shapes
            assert set(seen[1:]) == {0}


class TestForms:
    """What is known of a call serves others of its form alone."""

    def test_sites_that_depend_on_the_values_of_the_inputs(self) -> None:
        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("sum", x.sum(0) @ w)
            if x.min() > 0:
                pyro.deterministic("logs", x.log() @ w)

        predictive = Predictive(source, {"w": torch.randn(S, D)}, return_sites=None)
        exact = batched(predictive)
        for x in (X, X.abs() + 1, X, X.abs() + 1):
            found, expected = exact(x), predictive(x)
            assert layout(found) == layout(expected)
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value)

    def test_arguments_that_change_what_is_observed(self) -> None:
        exact = batched(Predictive(many, {"a": torch.randn(S, D)}))
        free, held = exact(X), exact(X, y=torch.ones(len(X), dtype=torch.long))
        assert (held["obs"] == 1).all() and not (free["obs"] == 1).all()
        assert not (exact(X)["obs"] == 1).all()

    def test_a_record_made_under_autocast_is_none_outside(self) -> None:
        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("mean", x @ w)

        predictive = Predictive(source, {"w": torch.randn(S, D)})
        exact = batched(predictive)
        for cast in (True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                torch.testing.assert_close(exact(X)["mean"], predictive(X)["mean"])

    def test_is_copied_when_inputs_want_gradients(self) -> None:
        exact = batched(Predictive(many, {"a": torch.randn(S, D)}))
        exact(X.clone().requires_grad_() * 2)
        assert copy.deepcopy(exact)(X).keys() == exact(X).keys()

    def test_an_object_may_hold_something_else(self) -> None:
        def source(batch: SimpleNamespace) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("mean", batch.x @ w)

        predictive, batch = Predictive(source, {"w": torch.randn(S, D)}), SimpleNamespace(x=X)
        exact = batched(predictive)
        for batch.x in (X, 2 * X, X[:3]):
            torch.testing.assert_close(exact(batch)["mean"], predictive(batch)["mean"])
        batch.x.mul_(3)
        torch.testing.assert_close(exact(batch)["mean"], predictive(batch)["mean"])

    def test_zeros_of_either_sign(self) -> None:
        def source(x: Tensor, zero: float) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("sign", x @ w + math.copysign(1.0, zero))

        predictive = Predictive(source, {"w": torch.randn(S, D)})
        exact = batched(predictive)
        for zero in (0.0, -0.0, 0.0):
            torch.testing.assert_close(exact(X, zero)["sign"], predictive(X, zero)["sign"])

    @pytest.mark.parametrize("table", [False, True])
    def test_models_that_take_arrays_or_tables_themselves(self, table: bool) -> None:
        def source(x: Any) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            values = np.stack([x[name] for name in x.columns], 1) if table else x
            pyro.deterministic("mean", torch.from_numpy(values).float() @ w)

        predictive = Predictive(source, {"w": torch.randn(S, D)})
        exact = batched(predictive)
        for rows in (X[:5].numpy(), X.numpy()):
            given = pd.DataFrame(rows, columns=list("abc")) if table else rows
            torch.testing.assert_close(exact(given)["mean"], predictive(given)["mean"])


class TestFallback:
    def test_a_branch_on_a_value(self) -> None:
        modes: list[Any] = []

        def source(x: Tensor) -> None:
            modes.append(torch.overrides._get_current_function_mode())
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            z = pyro.deterministic("z", x[:, 0] * (w if w > 0 else 2 * w))
            pyro.sample("obs", dist.Bernoulli(logits=z).to_event(1))

        predictive = Predictive(source, {"w": torch.randn(S)})
        exact = batched(predictive)
        with pytest.warns(UserWarning, match="the model is evaluated draw by draw"):
            found = exact(X)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exact(X)
        assert modes[-1] is None  # the loop of ``Predictive`` itself, with nothing that slows it
        assert layout(found) == layout(predictive(X))
        torch.testing.assert_close(found["z"], predictive(X)["z"])

    def test_a_guide_that_branches(self) -> None:
        def branching(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            pyro.sample("v", dist.Delta(w if w > 0 else -w))

        def source(x: Tensor) -> None:
            v = pyro.sample("v", dist.HalfNormal(1.0))
            pyro.sample("obs", dist.Normal(v * x[:, 0], 1.0).to_event(1))

        exact = batched(Predictive(source, guide=branching, num_samples=S))
        with pytest.warns(UserWarning, match="the guide is evaluated draw by draw"):
            found = exact(X)
        assert (found["v"] > 0).all() and len(found["v"].unique()) == S

    @pytest.mark.parametrize("wrong", ["value", "density"])
    def test_other_numbers_than_the_loop(self, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model that finds out about vmap, and then gives something else."""

        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            off = 1.0 if torch._C._functorch.is_batchedtensor(w) else 0.0
            z = pyro.deterministic("z", w * x[:, 0] + off * (wrong == "value"))
            pyro.sample("obs", dist.Normal(z + off * (wrong == "density"), 1.0).to_event(1))

        predictive = Predictive(source, {"w": torch.randn(S)})
        exact = batched(predictive)
        with pytest.warns(UserWarning, match="other numbers than the loop"):
            found = exact(X)
        assert torch.equal(found["z"], predictive(X)["z"])

    @pytest.mark.parametrize("given", [(X, True), (X[:1],), (X.double(),), (NAMED,)])
    def test_other_numbers_at_another_form(self, given: tuple[Any, ...]) -> None:
        """One form tells nothing of the next, where random numbers may be Python's."""

        def source(x: Any, noisy: bool = False) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            x, noisy = (x.x, True) if isinstance(x, SimpleNamespace) else (x, noisy)
            noisy = noisy or len(x) == 1 or x.dtype == torch.float64
            pyro.deterministic("mean", x.float() @ w + (random.random() if noisy else 0.0))

        exact = batched(Predictive(source, {"w": torch.zeros(S, D)}))
        assert len(exact(X)["mean"].unique()) == 1
        with pytest.warns(UserWarning, match="other numbers than the loop"):
            found = exact(*given)["mean"]
        assert len(found[..., 0].unique()) == S

    def test_a_model_that_seeds_draws_the_same_numbers_in_every_draw(self) -> None:
        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.set_rng_seed(0)
            pyro.deterministic("mean", x @ w + torch.randn(()))

        exact = batched(Predictive(source, {"w": torch.zeros(S, D)}))
        with pytest.warns(UserWarning, match="other numbers than the loop"):
            assert len(exact(X)["mean"].unique()) == 1

    def test_a_sampler_that_fills_what_vmap_cannot(self) -> None:
        class Filled(dist.Normal):
            def rsample(self, sample_shape: Any = ()) -> Tensor:
                noise = torch.empty(self.loc.shape[-1:])
                noise.normal_()
                return self.loc + noise

        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            pyro.sample("obs", Filled(w * x[:, 0], 1.0).to_event(1))

        exact = batched(Predictive(source, {"w": torch.randn(S)}))
        with pytest.warns(UserWarning, match="a site that it samples is NaN"):
            assert exact(X)["obs"].isfinite().all()

    def test_an_error_of_the_model_is_its_own(self) -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            batched(Predictive(model, samples()))(torch.randn(5, D + 1))


def test_a_network_drops_other_units_in_every_draw() -> None:
    network = nn.Sequential(nn.Linear(D, 50), nn.Dropout(), nn.Linear(50, C)).train()

    def source(x: Tensor) -> None:
        bias = pyro.sample("bias", dist.Normal(torch.zeros(C), 1.0).to_event(1))
        logits = pyro.deterministic("logits", network(x) + bias)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=logits))

    found = batched(Predictive(source, {"bias": torch.zeros(S, C)}))(X)
    assert len(found["logits"].unique(dim=0)) == S


@pytest.mark.parametrize("drawn", [random.random, np.random.rand, lambda: float(np.random.rand())])
@pytest.mark.parametrize("beside", [False, True])
def test_random_numbers_that_are_not_torchs_differ_between_draws(
    drawn: Callable[[], float], beside: bool
) -> None:
    """As in the loop of ``Predictive``, also beside some of torch."""

    def source(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        noise = drawn() + (1e-3 * torch.rand(()) if beside else 0.0)
        mean = pyro.deterministic("mean", x @ w + noise, event_dim=0)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=mean))

    predictive = Predictive(source, {"w": torch.zeros(S, D)}, return_sites=("mean", "obs"))
    with pytest.warns(UserWarning, match="is evaluated draw by draw.*numbers of Python or NumPy"):
        found = batched(predictive)(X)["mean"]
    assert len(found[:, 0].round(decimals=2).unique()) > S // 4
    with pytest.warns(UserWarning, match="is evaluated draw by draw"):
        probs = as_teacher(predictive).probs(X)[..., 1]
    assert len(probs[:, 0].logit().round(decimals=2).unique()) > S // 4


def test_on_the_device(device: torch.device) -> None:
    held = {name: value.to(device) for name, value in softmax_samples(S).items()}
    predictive, x = Predictive(softmax_model(), held, return_sites=None), X.to(device)
    exact = batched(predictive)
    found = exact(x)
    assert layout(found) == layout(predictive(x))
    assert all(value.device == x.device for value in found.values())
    assert torch.equal(found["w"], held["w"].unsqueeze(1))


@pytest.mark.gpu
def test_blocks_of_a_gpu() -> None:
    draws = {name: value.cuda() for name, value in softmax_samples(S).items()}
    predictive, x = Predictive(softmax_model(), draws), X.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (None, 100):
            found = batched(predictive, chunk_size=size)(x)["obs"]
            assert found.is_cuda and found.shape == (S, len(X))
