"""The observed sites of Pyro models: every kind, several of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro_models import (
    BINARY,
    MULTI,
    OBSERVE,
    ROUNDING,
    D,
    line_model,
    logit_of,
    softmax_loop,
    softmax_model,
    softmax_samples,
)
from torch import Tensor

from pyro_opu.programs.sites import class_log_probs
from pyro_opu.teachers import as_teacher


class TestSites:
    @pytest.mark.parametrize("observe", OBSERVE.values(), ids=OBSERVE)
    @pytest.mark.parametrize("kind", [*MULTI, *BINARY])
    def test_every_kind_and_wrapper_equals_the_loop(self, kind: str, observe: Callable) -> None:
        classes = 3 if kind in MULTI else 2
        model = softmax_model(classes, {**MULTI, **BINARY}[kind], observe)
        samples, x = softmax_samples(5, classes), torch.randn(4, D)
        teacher = as_teacher(Predictive(model, samples))
        log_probs = teacher.log_probs(x)
        torch.testing.assert_close(log_probs, softmax_loop(samples, x), **ROUNDING)
        torch.testing.assert_close(teacher.probs(x), log_probs.exp())
        assert teacher.num_classes == classes and teacher.observed == ("obs",)

    def test_one_distribution_expanded_by_the_plate(self) -> None:
        def model(x: Tensor) -> None:
            probs = pyro.sample("pi", dist.Dirichlet(torch.ones(4)))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Categorical(probs))

        samples = {"pi": dist.Dirichlet(torch.ones(4)).sample((6,))}
        probs = as_teacher(Predictive(model, samples)).probs(torch.zeros(5, 2))
        torch.testing.assert_close(probs, samples["pi"][:, None].expand(6, 5, 4), **ROUNDING)

    def test_one_distribution_for_all_rows_without_a_plate(self) -> None:
        def model(x: Tensor) -> None:
            p = pyro.sample("p", dist.Beta(1.0, 1.0))
            pyro.sample("obs", dist.Bernoulli(p))

        samples = {"p": torch.tensor([0.25, 0.5])}
        probs = as_teacher(Predictive(model, samples)).probs(torch.zeros(3, 1))
        expected = torch.tensor([[0.75, 0.25], [0.5, 0.5]])[:, None].expand(2, 3, 2)
        torch.testing.assert_close(probs, expected)

    def test_expanded_wrapper(self) -> None:
        base = dist.Categorical(logits=torch.randn(1, 3))
        wide = dist.ExpandedDistribution(base, (4,)).mask(False)
        torch.testing.assert_close(
            class_log_probs(wide, 4, "obs"), base.logits.expand(4, 3), **ROUNDING
        )

    @pytest.mark.parametrize("size", [30.0, 1e4])
    def test_corners_of_the_simplex_keep_their_digits(self, size: float) -> None:
        logits = torch.tensor([[0.0, size, 1.0], [size, 1.0, 0.0]])
        expected = logits.double().log_softmax(-1).float()
        for fn in (dist.Categorical(logits=logits), dist.OneHotCategorical(logits=logits)):
            fn.probs  # noqa: B018 - cached by torch; must not be taken for what was given
            torch.testing.assert_close(class_log_probs(fn, 2, "obs"), expected)
        z = torch.tensor([size, -size])
        expected = torch.stack([-z, z], -1).double()
        expected = torch.nn.functional.logsigmoid(expected).float()
        torch.testing.assert_close(class_log_probs(dist.Bernoulli(logits=z), 2, "obs"), expected)

    def test_small_probabilities_keep_their_digits(self) -> None:
        p = torch.tensor([1e-30, 1.0, 0.0])
        log_no, log_yes = class_log_probs(dist.Bernoulli(p), 3, "obs").unbind(-1)
        # Float32 spacing below one is 6e-8: p = 1.0 says p > 1 - 6e-8 / 2, its complement no more.
        assert torch.allclose(log_no, torch.tensor([0.0, -16.635532, 0.0]))
        assert torch.allclose(log_yes, torch.tensor([1e-30, 1.0, 1.2e-38]).log(), rtol=1e-3)
        fn = dist.Categorical(torch.tensor([[1 - 1e-6, 1e-6 - 1e-20, 1e-20]]))
        assert torch.allclose(class_log_probs(fn, 1, "obs")[0, 2], torch.tensor(1e-20).log())


class TestSeveralSites:
    @staticmethod
    def _two_labels(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("count", dist.Poisson(w.exp() * torch.ones(len(x))))
            pyro.sample("first", dist.Bernoulli(logits=w * x[:, 0]))
            pyro.sample("second", dist.Bernoulli(logits=-w * x[:, 0]))

    def test_named(self) -> None:
        samples, x = {"w": torch.randn(4)}, torch.randn(3, 1)
        predictive = Predictive(self._two_labels, samples)
        expected = samples["w"][:, None] * x[:, 0]
        first = as_teacher(predictive, "first")
        torch.testing.assert_close(logit_of(first.log_probs(x)), expected, **ROUNDING)
        second = as_teacher(first, site="second")  # a teacher can be asked again
        torch.testing.assert_close(logit_of(second.log_probs(x)), -expected, **ROUNDING)

    def test_discrete_latents_of_the_model(self) -> None:
        """A component per row: two categorical sites, and the answer is the mixture's."""

        def mixture(x: Tensor) -> None:
            means = pyro.sample("means", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                k = pyro.sample("k", dist.Categorical(torch.tensor([0.25, 0.75])))
                pyro.sample("obs", dist.Bernoulli(logits=means[k]))

        predictive = Predictive(mixture, {"means": torch.tensor([-1.0, 1.0]).expand(4, 2)})
        low, high = torch.tensor([-1.0, 1.0]).sigmoid()
        for site in ("obs", None):
            probs = as_teacher(predictive, site).probs(torch.zeros(3, 1))[..., 1]
            torch.testing.assert_close(probs, (0.25 * low + 0.75 * high).expand(4, 3))


def _model_of(build: Callable) -> Callable:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", build(w * x[:, 0]))

    return model


class TestRefused:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    @pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
    def test_samples_that_are_no_numbers(self, bad: float, shape: tuple[int, ...]) -> None:
        value = torch.zeros(shape)
        value[2] = bad
        with pytest.raises(
            ValueError, match=r"`posterior_samples\['w'\]` must be finite.*1 of 4 dr"
        ):
            as_teacher(Predictive(line_model, {"w": value}))

    def test_large_inputs_are_no_infinite_ones(self) -> None:
        x = torch.full((4, 1), 2e38)  # their sum overflows
        assert as_teacher(Predictive(line_model, {"w": torch.zeros(4)})).probs(x).eq(0.5).all()

    def test_model_that_gives_no_numbers(self) -> None:
        teacher = as_teacher(
            Predictive(_model_of(lambda z: dist.Bernoulli(logits=z / z)), {"w": torch.ones(4)})
        )
        with pytest.raises(ValueError, match="must be numbers; got NaN. Check the posterior draws"):
            teacher.probs(torch.tensor([[1.0], [1.0], [0.0]]))

    def test_samples_and_inputs_of_different_precision(self) -> None:
        teacher = as_teacher(Predictive(softmax_model(), softmax_samples(4, dtype=torch.float64)))
        with pytest.raises(
            ValueError, match=r"float32, it raised.*samples are torch.float64: conv"
        ):
            teacher.probs(torch.randn(2, D))
        assert teacher.probs(torch.randn(2, D, dtype=torch.float64)).dtype == torch.float64
