"""``exact(source)`` gives what the posterior's own draws give, of any source."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from posteriors import OUTCOMES, SIGMAS, SOURCES, C, D, S, X, model, network, samples
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import as_teacher, batched, distill, exact
from pyro_opu.ladder.base import Exact
from pyro_opu.ladder.exact import ExactPosterior, ExactPredictive
from pyro_opu.programs.posterior import ROWS
from pyro_opu.teachers.held import HeldTeacher

MAKERS: dict[str, Callable[[], Any]] = {k: make for k, (make, _) in SOURCES.items()} | OUTCOMES
#: Sources whose answers are no program of tensors.
NOT_RECORDED = {"function", "arrays", "forest", "teacher", "mixture", "mixed sites"}
LEVELS = (0.1, 0.5, 0.9)


@cache
def made(name: str) -> Exact:
    """One of each kind, which has been asked once."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Exact = exact(MAKERS[name]())
        found.draws(X[:2])
    return found


def said_by(posterior: Exact, x: Tensor = X) -> Tensor:
    """What the draws that it holds say by the teacher's own evaluation, ``(S, N, K)``."""
    held = posterior._held
    assert isinstance(held, HeldTeacher)
    return held.streamed(x)


@pytest.mark.parametrize("name", MAKERS)
class TestEverySource:
    def test_says_what_its_draws_say(self, name: str) -> None:
        posterior = made(name)
        for x in (X, X[:1], X[3:8]):
            found, expected = posterior.draws(x), posterior.outcome.plain(said_by(posterior, x))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert bool(posterior.reason) == (name in NOT_RECORDED), posterior.reason

    def test_uncertainty_is_that_of_the_draws(self, name: str) -> None:
        posterior = made(name)
        found = posterior.uncertainty(X, quantiles=LEVELS)
        if posterior.outcome.kind != "classes":
            return
        probs = posterior.probs(X)
        expected = pyro_opu.uncertainty(probs)
        some = [k for k in expected.keys() if name != "forest" or k != "differential_entropy"]
        for measure in some:
            torch.testing.assert_close(found[measure], expected[measure], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(found.mean, probs.mean(0))
        levels = torch.quantile(probs, torch.tensor(LEVELS), dim=0)
        torch.testing.assert_close(found.quantiles, levels)

    def test_draws_of_what_is_observed(self, name: str) -> None:
        posterior = made(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = posterior(X)  # type: ignore[operator]
        assert all(len(value) == posterior.max_draws for value in found.values())
        assert as_teacher(posterior) is posterior.teacher or isinstance(posterior, Predictive)


def test_real_numbers_and_counts() -> None:
    for name in ("real", "table"):
        posterior = made(name)
        said = said_by(posterior)
        table = posterior.uncertainty(X, quantiles=(0.5,))
        if name == "table":
            parts = [part.site for part in posterior.outcome.parts]
            assert list(table) == parts
            said, table = said[..., -2:], table["count"]
        mean, noise = said[..., 0].double(), (2 * said[..., 1].double()).exp()
        torch.testing.assert_close(table.mean.double(), mean.mean(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(table.aleatoric.double(), noise.mean(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(table.epistemic.double(), mean.var(0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(table.quantiles[0].double(), mean.quantile(0.5, dim=0))
        torch.testing.assert_close(table.total, table.aleatoric + table.epistemic)


def test_a_shift_of_y_loses_no_digits() -> None:
    far = 1e4 + torch.randn(50, 1)
    posterior = exact(({"w": far}, lambda t, x: (t["w"] + 0 * x[:, 0], torch.tensor(1.0))))
    found = posterior.uncertainty(X).epistemic
    torch.testing.assert_close(found, far.double().var().float().expand(len(X)), rtol=1e-5, atol=0)


def test_trials() -> None:
    def counted(x: Tensor, n: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Binomial(n, logits=x @ w), obs=y)

    n, w = torch.arange(1.0, len(X) + 1), torch.randn(S, D)
    posterior = exact(Predictive(counted, {"w": w}))
    found = posterior.uncertainty((X, n), quantiles=LEVELS)
    p = (w @ X.T).sigmoid().double()
    torch.testing.assert_close(found.mean.double(), n * p.mean(0), rtol=1e-5, atol=1e-6)
    noise = n * (p * (1 - p)).mean(0)
    torch.testing.assert_close(found.aleatoric.double(), noise, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.epistemic.double(), n**2 * p.var(0), rtol=1e-4, atol=1e-6)
    middle = (n * p).quantile(0.5, dim=0).float()
    torch.testing.assert_close(found.quantiles[1], middle, rtol=1e-4, atol=1e-5)
    program, _ = posterior._program(posterior._look((X, n)), "quantile_0.5", None)
    torch.testing.assert_close(program(X, n)["quantile_0.5"], middle, rtol=1e-4, atol=1e-5)


class TestDraws:
    @pytest.mark.parametrize("name", ["guide", "prior", "dropout", "mixture"])
    def test_are_held_where_the_posterior_draws_afresh(self, name: str) -> None:
        posterior = made(name)
        assert torch.equal(posterior.probs(X), posterior.probs(X))

    def test_some_of_them(self) -> None:
        posterior = exact(Predictive(model, samples()))
        few, whole = posterior.probs(X, 7), posterior.probs(X)
        assert few.shape == (7, len(X), C)
        assert all(any(torch.equal(one, other) for other in whole) for one in few)
        with pytest.raises(ValueError, match="`num_draws` must be at most"):
            posterior.probs(X, S + 1)
        assert exact(Predictive(model, samples()), num_draws=7).probs(X).shape[0] == 7
        assert exact(network([nn.Dropout()]), num_draws=9).probs(X).shape[0] == 9

    def test_labels_have_the_probabilities_of_their_draw(self) -> None:
        posterior = made("pair")
        assert isinstance(posterior, ExactPosterior)
        labels = torch.stack([posterior(X)["obs"] for _ in range(400)])
        share = (labels[..., None] == torch.arange(C)).double().mean(0)
        probs = posterior.probs(X).double()
        error = (probs * (1 - probs) / 400).sqrt()
        assert ((share - probs).abs() <= SIGMAS * error + 5 / 400).all()

    def test_of_a_real_y_and_its_mean(self) -> None:
        w = torch.randn(3000, D)
        pair = {"w": w}, lambda t, x: (x @ t["w"], torch.tensor(0.5))
        posterior = exact(as_teacher(pair, return_sites=["obs", "mean"]))
        found = posterior(X)
        torch.testing.assert_close(found["mean"], w @ X.T, rtol=1e-4, atol=1e-5)
        noise = (found["obs"] - found["mean"]) / 0.5
        assert (noise.mean(0).abs() <= SIGMAS / 3000**0.5).all()
        assert ((noise.var(0) - 1).abs() <= SIGMAS * (2 / 3000) ** 0.5).all()


class TestOneProgram:
    def test_no_handler_runs_after_the_first_call(self) -> None:
        runs = []

        def counted(x: Tensor) -> None:
            runs.append(len(x))
            model(x)

        posterior = exact(Predictive(counted, samples()))
        posterior.probs(X)
        posterior.uncertainty(X)
        before = len(runs)
        posterior.probs(X + 1)
        posterior.uncertainty(X - 1)
        assert len(runs) == before

    def test_what_depends_on_the_inputs_alone_runs_once(self) -> None:
        calls = []

        class Trunk(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                calls.append(len(x))
                return x.tanh()

        net = nn.Sequential(Trunk(), nn.Dropout(0.4), nn.Linear(D, C))
        posterior = exact(net, num_draws=50, chunk_size=4)
        found = posterior.probs(X)
        (said,) = posterior._said.values()
        assert said is not None
        trunk = [str(node.target) for node in said.bound.trunk.graph.nodes]
        late = [str(node.target) for node in said.bound.late.graph.nodes]
        assert "aten.tanh.default" in trunk and "aten.tanh.default" not in late
        torch.testing.assert_close(found, said_by(posterior).exp(), rtol=1e-5, atol=1e-6)

    def test_blocks_of_any_size_say_the_same(self) -> None:
        source, x = Predictive(model, samples()), torch.randn(ROWS + 5, D)
        whole = exact(source)
        expected, table = whole.probs(x), whole.uncertainty(x, quantiles=LEVELS)
        small = exact(source, chunk_size=64)
        torch.testing.assert_close(small.probs(x[:40]), expected[:, :40])
        found = small.uncertainty(x[:40], quantiles=LEVELS)
        torch.testing.assert_close(found.epistemic, table.epistemic[:40], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.quantiles, table.quantiles[:, :40])
        assert expected.shape[1] == len(x) == len(table.total)

    def test_a_model_that_looks_at_the_number_of_rows(self) -> None:
        def odd(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            logits = x @ w + (len(x) == 9)
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=logits))

        posterior = exact(Predictive(odd, {"w": torch.randn(S, D)}))
        posterior.probs(X)
        w = posterior.teacher.predictive.posterior_samples["w"]  # type: ignore[attr-defined]
        torch.testing.assert_close(posterior.probs(X[:9])[..., 1], (w @ X[:9].T + 1).sigmoid())
        assert "another way" in posterior.reason

    @pytest.mark.parametrize("seen", [lambda x: x - x.mean(0), lambda x: x.cumsum(0).sort(-1)[0]])
    def test_rows_that_follow_from_one_another_are_answered_together(
        self, seen: Callable[[Tensor], Tensor]
    ) -> None:
        def together(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=seen(x) @ w))

        w, x = torch.randn(S, D), torch.linspace(-1, 3, 2 * ROWS)[:, None] + torch.zeros(D)
        posterior = exact(Predictive(together, {"w": w}))
        expected = (w @ seen(x).T).sigmoid()
        torch.testing.assert_close(posterior.probs(x)[..., 1], expected)
        torch.testing.assert_close(posterior.uncertainty(x).mean[:, 1], expected.mean(0))

    def test_operations_that_nobody_knows_are_run_by_blocks_where_rows_are_apart(self) -> None:
        w = {"w": torch.randn(S, D, C)}
        posterior = exact((w, lambda draw, x: (x.sort(1)[0] @ draw["w"]).softmax(-1)))
        posterior.probs(x := torch.randn(ROWS + 5, D))
        (said,) = posterior._said.values()
        assert not said._apart and said.rows_at_once(x) < len(x)

    def test_the_reason_is_that_of_the_last_inputs(self) -> None:
        posterior = exact(MAKERS["samples"]())
        with pytest.raises(Exception, match="shapes cannot be multiplied"):
            posterior.draws(X[:, :-1])
        posterior.draws(X)
        assert posterior.reason == ""

    def test_a_tensor_that_is_written_into(self) -> None:
        scale = torch.ones(())

        def scaled(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                p = pyro.deterministic("p", torch.sigmoid(x @ (scale * w)))
                pyro.sample("obs", dist.Bernoulli(p))

        w = torch.randn(S, D)
        posterior = exact(Predictive(scaled, {"w": w}, return_sites=("p",)))
        posterior.probs(X), posterior(X)
        scale.fill_(2.0)
        expected = (2 * w @ X.T).sigmoid()
        torch.testing.assert_close(posterior(X)["p"], expected)
        torch.testing.assert_close(posterior.probs(X)[..., 1], expected)


class TestInItsPlace:
    def test_batched_is_another_name(self) -> None:
        assert batched is exact
        found = batched(Predictive(model, samples()))
        assert isinstance(found, ExactPredictive) and isinstance(found, Predictive)
        assert type(exact(found)) is ExactPredictive

    def test_several_inputs_and_indices(self) -> None:
        def grouped(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
            a = pyro.sample("a", dist.Normal(torch.zeros(4), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=a[group] + x[:, 0]), obs=y)

        group, a = torch.arange(len(X)) % 4, torch.randn(S, 4)
        posterior = exact(Predictive(grouped, {"a": a}))
        expected = (a[:, group] + X[:, 0]).sigmoid()
        torch.testing.assert_close(posterior.probs((X, group))[..., 1], expected)
        assert posterior(X, group)["obs"].shape == (S, len(X))

    def test_a_site_by_name(self) -> None:
        def two(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("one", dist.Bernoulli(logits=x @ w))
                pyro.sample("two", dist.Bernoulli(logits=-(x @ w)))

        source = Predictive(two, {"w": torch.randn(S, D)})
        one, other = exact(source, "one"), exact(source, "two")
        torch.testing.assert_close(one.probs(X), other.probs(X).flip(-1))
        assert as_teacher(other).probs(X).shape == (S, len(X), 2)
        assert set(exact(source).uncertainty(X)) == {"one", "two"}

    def test_it_is_a_teacher(self) -> None:
        posterior = made("pair")
        assert posterior.num_classes == C and isinstance(posterior, pyro_opu.Teacher)
        fast = distill(posterior, X, num_steps=2, progress=False, seed=0)
        assert fast.num_classes == C

    @pytest.mark.parametrize(
        ("bad", "error", "says"),
        [
            (lambda: exact(3), TypeError, "`source` must be"),
            (lambda: exact(network(), num_draws=0), ValueError, "`num_draws` must be a positive"),
            (lambda: exact(network(), "obs"), ValueError, "`site` names a site"),
            (
                lambda: made("samples").uncertainty(X, quantiles=(1.5,)),
                ValueError,
                "`quantiles` must be levels",
            ),
            (lambda: made("real").probs(X), TypeError, "`probs` needs"),
            (lambda: made("samples").probs(X[:, :2]), ValueError, "x"),
            (lambda: setattr(made("samples"), "return_sites", ()), ValueError, "`return_sites`"),
            (lambda: setattr(made("samples"), "num_samples", 3), ValueError, "must stay as it is"),
        ],
        ids=["no posterior", "draws", "site", "levels", "no classes", "shape", "sites", "samples"],
    )
    def test_refusals(self, bad: Callable[[], Any], error: type, says: str) -> None:
        with pytest.raises(error, match=says):
            bad()
