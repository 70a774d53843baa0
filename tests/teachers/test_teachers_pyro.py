"""A Pyro model as a teacher: its draws are those of the obvious loop over the posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.nn import PyroModule, PyroSample
from pyro_models import (
    ROUNDING,
    D,
    assert_moments,
    line_model,
    logit_of,
    softmax_loop,
    softmax_model,
    softmax_samples,
)
from torch import Tensor

from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.teachers import Teacher, as_teacher


class TestDraws:
    @pytest.mark.parametrize(
        ("draws", "rows", "classes"),
        [(7, 4, 3), (4, 4, 3), (5, 1, 3), (1, 5, 3), (1, 1, 2), (6, 6, 2), (2, 2, 2), (3, 9, 2)],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equal_to_the_loop(
        self, draws: int, rows: int, classes: int, dtype: torch.dtype
    ) -> None:
        samples, x = softmax_samples(draws, classes, dtype), torch.randn(rows, D, dtype=dtype)
        log_probs = as_teacher(Predictive(softmax_model(classes), samples)).log_probs(x)
        assert log_probs.shape == (draws, rows, classes) and log_probs.dtype == dtype
        torch.testing.assert_close(log_probs, softmax_loop(samples, x), **ROUNDING)

    def test_pyro_module_with_random_weights(self) -> None:
        class Network(PyroModule):
            def __init__(self) -> None:
                super().__init__()
                self.hidden = PyroModule[torch.nn.Linear](D, 5)
                self.hidden.weight = PyroSample(dist.Normal(torch.zeros(5, D), 1.0).to_event(2))
                self.out = PyroModule[torch.nn.Linear](5, 3)
                self.out.weight = PyroSample(dist.Normal(torch.zeros(3, 5), 1.0).to_event(2))
                self.norm = torch.nn.BatchNorm1d(5)

            def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
                logits = self.out(self.norm(torch.tanh(self.hidden(x))))
                with pyro.plate("data", len(x)):
                    return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)

        network = Network()
        network.norm.eval()  # the only part in evaluation mode, and it stays so
        samples = {"hidden.weight": torch.randn(6, 5, D), "out.weight": torch.randn(6, 3, 5)}
        x = torch.randn(4, D)
        log_probs = as_teacher(Predictive(network, samples)).log_probs(x)
        expected = []
        for hidden, out in zip(*samples.values(), strict=True):
            h = network.norm(torch.tanh(x @ hidden.T + network.hidden.bias))
            expected.append((h @ out.T + network.out.bias).log_softmax(-1).detach())
        torch.testing.assert_close(log_probs, torch.stack(expected), **ROUNDING)
        assert network.training and not network.norm.training

    @pytest.mark.parametrize("rows", [1, 4, 6])
    def test_predictive_that_is_parallel(self, rows: int) -> None:
        """Its own parallel answer is wrong at S = N; the teacher does not use it."""
        samples, x = softmax_samples(4), torch.randn(rows, D)
        teacher = as_teacher(Predictive(softmax_model(), samples, parallel=True))
        torch.testing.assert_close(teacher.log_probs(x), softmax_loop(samples, x), **ROUNDING)

    @pytest.mark.parametrize(
        ("width", "rows", "expected"),
        [
            (100, 12, [4] * 6),  # 3 blocks of rows, in 2 parts of 4 draws
            (100, 40, [16] * 16 + [8] * 4),  # draws one by one; with the rest of the rows in twos
            (20, 40, [4] * 20),  # thin: never one by one
        ],
    )
    def test_chunks_are_bounded_by_the_widest_tensor(
        self, width: int, rows: int, expected: list[int]
    ) -> None:
        """A wide layer inside the model makes chunks smaller, though its answer is narrow."""
        seen: list[int] = []

        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            hidden = (x @ w)[:, None] * torch.ones(width)
            seen.append(len(x))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=hidden.mean(-1)))

        teacher = as_teacher(Predictive(model, {"w": torch.randn(8, D)}))
        teacher.chunk_size = 16 * width  # of rows times draws
        teacher.probs(torch.randn(rows, D))
        seen.clear()
        teacher.probs(torch.randn(rows, D))
        assert seen == expected

    @pytest.mark.parametrize("seen", [lambda x: x - x.mean(0), lambda x: x.cumsum(0)])
    def test_rows_that_follow_from_one_another_are_not_cut(
        self, seen: Callable[[Tensor], Tensor]
    ) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=seen(x) @ w))

        teacher = as_teacher(Predictive(model, {"w": (w := torch.randn(4, D))}))
        teacher.chunk_size, x = 10 * D, torch.randn(40, D) / 9 + 0.1
        torch.testing.assert_close(teacher.probs(x)[..., 1], (w @ seen(x).T).sigmoid())

    def test_nothing_is_left_behind(self) -> None:
        def model(x: Tensor) -> None:
            bias = pyro.param("bias", torch.zeros(()))
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=x @ w + bias))

        pyro.param("bias", torch.ones(()))
        samples, x = {"w": torch.randn(4, D, requires_grad=True)}, torch.randn(3, D)
        assert torch.distributions.Distribution._validate_args  # conftest checks Pyro's switches
        with poutine.trace() as outer:
            log_probs = as_teacher(Predictive(model, samples)).log_probs(x)
        assert torch.distributions.Distribution._validate_args
        assert not outer.trace.nodes  # handlers of the caller see nothing
        assert not log_probs.requires_grad
        assert list(pyro.get_param_store()) == ["bias"]
        torch.testing.assert_close(logit_of(log_probs), (samples["w"] @ x.T + 1).detach())

    def test_inputs_of_other_shapes_afterwards(self) -> None:
        """What is learnt at the first inputs (site, chunks) holds for others."""

        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=w * x.flatten(1).sum(-1)))

        teacher = as_teacher(Predictive(model, {"w": torch.randn(4)}))
        for shape in [(5, 2), (3, 7), (2, 2, 2), (1, 2)]:
            assert teacher.probs(torch.randn(shape)).shape == (4, shape[0], 2)

    def test_is_a_teacher_before_and_after_its_first_input(self) -> None:
        teacher = as_teacher(Predictive(line_model, {"w": torch.randn(4)}))
        assert isinstance(teacher, Teacher)
        for name in ("num_classes", "observed"):
            with pytest.raises(AttributeError, match=rf"{name} is not known.*call \.probs"):
                getattr(teacher, name)
        teacher.probs(torch.ones(1, 1))
        assert isinstance(teacher, Teacher) and teacher.num_classes == 2
        assert as_teacher(teacher) is teacher


class TestFallback:
    @staticmethod
    def _branching(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        slope = w if w > 0 else 3 * w  # depends on the draw's value
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=slope * x[:, 0]))

    def test_control_flow_on_values_is_looped_over_with_one_warning(self) -> None:
        w, x = torch.randn(6), torch.randn(4, 1)
        teacher = as_teacher(Predictive(self._branching, {"w": w}))
        with pytest.warns(
            UserWarning, match=r"the model is evaluated draw by draw.*torch\.where"
        ) as seen:
            logits = logit_of(teacher.log_probs(x))
        assert len(seen) == 1
        expected = torch.where(w > 0, w, 3 * w)[:, None] * x[:, 0]
        torch.testing.assert_close(logits, expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(logit_of(teacher.log_probs(x)), logits)

    def test_control_flow_met_only_later(self) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            if x.max() > 10 and w < 0:
                w = w * 3
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]))

        w = torch.tensor([-1.0, 1.0, 2.0])
        teacher = as_teacher(Predictive(model, {"w": w}))
        torch.testing.assert_close(
            logit_of(teacher.log_probs(torch.ones(1, 1))), w[:, None], **ROUNDING
        )
        with pytest.warns(UserWarning, match="evaluated draw by draw"):
            logits = logit_of(teacher.log_probs(torch.full((1, 1), 20.0)))
        torch.testing.assert_close(logits.flatten(), torch.tensor([-60.0, 20.0, 40.0]))

    def test_an_error_of_the_model_itself_is_raised(self) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            if x.max() > 10:
                raise ZeroDivisionError("too large")
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]))

        teacher = as_teacher(Predictive(model, {"w": torch.randn(3)}))
        teacher.probs(torch.ones(1, 1))
        with pytest.raises(RuntimeError, match="`source`.*ZeroDivisionError: too large, at call 2"):
            teacher.probs(torch.full((1, 1), 20.0))

    def test_a_buffer_filled_in_place_does_not_go_unnoticed(self) -> None:
        """vmap cannot fill a tensor differently for every draw; the loop can."""

        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            noise = torch.empty(len(x))
            noise.normal_()  # what it returns is not used
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0] + noise))

        teacher = as_teacher(Predictive(model, {"w": torch.zeros(500)}))
        with pytest.warns(UserWarning, match="evaluated draw by draw"):
            logits = logit_of(teacher.log_probs(torch.zeros(2, 1)))
        assert_moments(logits, 0.0, 1.0)


def test_operations_of_a_linear_model_are_those_of_its_product() -> None:
    for classes, outputs in ((2, 1), (4, 4)):
        samples = {"weight": torch.randn(6, 5, outputs), "bias": torch.randn(6, outputs)}
        teacher = as_teacher(Predictive(logistic_regression(classes), samples))
        assert teacher.operations(torch.randn(3, 5)) == 2 * 5 * outputs
