"""A Pyro model as a teacher: its draws are those of the obvious loop over the posterior."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.infer.predictive import WeighedPredictive
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.teachers import PredictiveTeacher, Teacher, as_teacher
from pyro_opu.teachers.sites import class_log_probs

D = 3
# Rounding of float32 matrix products summed in another order, on logits of size 1.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}

# Every kind of observed site: logits (N, C) -> its distribution. Two classes: z = logits[:, 1].
MULTI = {
    "categorical-logits": lambda z: dist.Categorical(logits=z),
    "categorical-probs": lambda z: dist.Categorical(probs=z.softmax(-1)),
    "onehot-logits": lambda z: dist.OneHotCategorical(logits=z),
    "onehot-probs": lambda z: dist.OneHotCategorical(probs=z.softmax(-1)),
    "multinomial-logits": lambda z: dist.Multinomial(1, logits=z),
    "multinomial-probs": lambda z: dist.Multinomial(1, probs=z.softmax(-1)),
}
BINARY = {
    "bernoulli-logits": lambda z: dist.Bernoulli(logits=z[:, 1] - z[:, 0]),
    "bernoulli-probs": lambda z: dist.Bernoulli(probs=torch.sigmoid(z[:, 1] - z[:, 0])),
    "binomial-logits": lambda z: dist.Binomial(1, logits=z[:, 1] - z[:, 0]),
    "binomial-probs": lambda z: dist.Binomial(1, probs=torch.sigmoid(z[:, 1] - z[:, 0])),
}


def _in_plate(fn: dist.Distribution, rows: int) -> None:
    with pyro.plate("data", rows):
        pyro.sample("obs", fn)


def _in_outer_plate(fn: dist.Distribution, rows: int) -> None:
    with pyro.plate("once", 1, dim=-2), pyro.plate("data", rows, dim=-1):
        pyro.sample("obs", fn)


def _handled(handler: Callable, fn: dist.Distribution, rows: int) -> None:
    with handler(torch.arange(rows) % 2 == 0):
        _in_plate(fn, rows)


OBSERVE = {
    "plate": _in_plate,
    "outer-plate": _in_outer_plate,
    "event": lambda fn, rows: pyro.sample("obs", fn.to_event(1)),
    "bare": lambda fn, rows: pyro.sample("obs", fn),
    "poutine-mask": lambda fn, rows: _handled(lambda m: poutine.mask(mask=m), fn, rows),
    "dist-mask": lambda fn, rows: _in_plate(fn.mask(torch.arange(rows) % 2 == 0), rows),
    "dist-mask-event": lambda fn, rows: pyro.sample("obs", fn.mask(False).to_event(1)),
}


def softmax_model(
    classes: int = 3,
    observation: Callable = MULTI["categorical-logits"],
    observe: Callable = _in_plate,
) -> Callable:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(D, classes), 1.0).to_event(2))
        b = pyro.sample("b", dist.Normal(x.new_zeros(classes), 1.0).to_event(1))
        observe(observation(x @ w + b), len(x))

    return model


def softmax_samples(draws: int, classes: int = 3, dtype: torch.dtype = torch.float32) -> dict:
    return {
        "w": torch.randn(draws, D, classes, dtype=dtype),
        "b": torch.randn(draws, classes).to(dtype),
    }


def softmax_loop(samples: dict, x: Tensor) -> Tensor:
    """The answer by hand, one draw after the other."""
    return torch.stack(
        [(x @ w + b).log_softmax(-1) for w, b in zip(samples["w"], samples["b"], strict=True)]
    )


def logit_of(log_probs: Tensor) -> Tensor:
    """log p / (1 - p) of the second of two classes, (S, N)."""
    return log_probs[..., 1] - log_probs[..., 0]


def line_model(x: Tensor) -> None:
    """Two classes; the logit is the latent itself: w times the first feature."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]))


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
        assert teacher.num_classes == classes and teacher.site == "obs"

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

    def test_labels_of_predictive_have_these_frequencies(self) -> None:
        samples = {
            name: value[:1].expand(1000, *value.shape[1:])
            for name, value in softmax_samples(1).items()
        }
        predictive, x = Predictive(softmax_model(), samples), torch.randn(3, D)
        labels = predictive(x)["obs"]
        seen = torch.stack([(labels == k).float().mean(0) for k in range(3)], -1)
        probs = as_teacher(predictive).probs(x, 2).mean(0)
        # Five standard errors of 1,000 labels: nine comparisons fail together 5e-6 of the time.
        assert ((seen - probs).abs() < 5 * (probs * (1 - probs) / 1000).sqrt()).all()

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

    def test_samples_of_a_chain(self) -> None:
        def model(x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)

        x = torch.randn(20, D)
        mcmc = MCMC(
            NUTS(model, step_size=0.3, adapt_step_size=False, max_tree_depth=3),
            num_samples=6,
            warmup_steps=1,
            disable_progbar=True,
        )
        mcmc.run(x, (x[:, 0] > 0).float())
        samples = mcmc.get_samples()
        logits = logit_of(as_teacher(Predictive(model, samples)).log_probs(x))
        torch.testing.assert_close(logits, samples["w"] @ x.T, **ROUNDING)

    def test_images(self) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(2, 1, 3, 3), 1.0).to_event(4))
            features = torch.nn.functional.conv2d(x, w).relu().mean((-2, -1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Categorical(logits=features))

        samples, x = {"w": torch.randn(5, 2, 1, 3, 3)}, torch.randn(4, 1, 6, 6)
        expected = [
            torch.nn.functional.conv2d(x, w).relu().mean((-2, -1)).log_softmax(-1)
            for w in samples["w"]
        ]
        log_probs = as_teacher(Predictive(model, samples)).log_probs(x)
        torch.testing.assert_close(log_probs, torch.stack(expected), **ROUNDING)

    @pytest.mark.parametrize("rows", [1, 4, 6])
    def test_predictive_that_is_parallel(self, rows: int) -> None:
        """Its own parallel answer is wrong at S = N; the teacher does not use it."""
        samples, x = softmax_samples(4), torch.randn(rows, D)
        teacher = as_teacher(Predictive(softmax_model(), samples, parallel=True))
        torch.testing.assert_close(teacher.log_probs(x), softmax_loop(samples, x), **ROUNDING)

    @pytest.mark.parametrize("size", [1, 10, 60, 500, 10**6])
    def test_chunks_of_any_size_give_the_same(self, size: int) -> None:
        samples, x = softmax_samples(7), torch.randn(11, D)
        teacher = as_teacher(Predictive(softmax_model(), samples))
        teacher.chunk_size = size
        torch.testing.assert_close(teacher.log_probs(x), softmax_loop(samples, x), **ROUNDING)
        blocks = list(teacher.stream(x))
        assert sum(block.shape[1] for block in blocks) == 11
        assert len(blocks) == (1 if size >= 500 else 11 if size == 1 else len(blocks))

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
        for name in ("num_classes", "site"):
            with pytest.raises(AttributeError, match=rf"{name} is not known.*call \.probs"):
                getattr(teacher, name)
        teacher.probs(torch.ones(1, 1))
        assert isinstance(teacher, Teacher) and teacher.num_classes == 2
        assert as_teacher(teacher) is teacher


def _fitted(guide: Callable, model: Callable, *args: Tensor) -> Callable:
    """A guide with its parameters made, two steps from where it started."""
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(2):
        svi.step(*args)
    return guide


def observed_line(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]), obs=y)


def assert_moments(draws: Tensor, mean: Tensor | float, std: Tensor | float) -> None:
    """Mean and standard deviation of normal draws, within five standard errors of each."""
    count = len(draws)
    assert ((draws.mean(0) - mean).abs() < 5 * torch.as_tensor(std) / count**0.5).all()
    assert ((draws.std(0) - std).abs() < 5 * torch.as_tensor(std) / (2 * count) ** 0.5).all()


class TestGuides:
    @pytest.mark.parametrize(
        "kind", [AutoNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal]
    )
    def test_automatic(self, kind: type) -> None:
        x = torch.tensor([[1.0], [1.0], [-2.0]])
        guide = _fitted(kind(observed_line), observed_line, x, torch.tensor([1.0, 1.0, 0.0]))
        teacher = as_teacher(Predictive(observed_line, guide=guide, num_samples=300))
        posterior = guide.get_posterior() if kind is not AutoNormal else None
        mean = guide.locs.w if posterior is None else posterior.mean.reshape(())
        std = guide.scales.w if posterior is None else posterior.stddev.reshape(())
        params = set(pyro.get_param_store())
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it runs through vmap
            logits = logit_of(teacher.log_probs(x, 4000))
        assert_moments(logits[:, 0], mean.detach(), std.detach())
        assert torch.equal(logits[:, 0], logits[:, 1])  # one draw for all rows
        torch.testing.assert_close(logits[:, 2], -2 * logits[:, 0])
        assert teacher.probs(x).shape == (300, 3, 2) and teacher.max_draws is None
        assert set(pyro.get_param_store()) == params

    def test_point_estimate(self) -> None:
        x = torch.ones(3, 1)
        guide = _fitted(AutoDelta(observed_line), observed_line, x, torch.ones(3))
        logits = logit_of(
            as_teacher(Predictive(observed_line, guide=guide, num_samples=4)).log_probs(x)
        )
        torch.testing.assert_close(logits, guide.median()["w"].detach().expand(4, 3))

    def test_written_by_hand_with_correlated_latents(self) -> None:
        def model(x: Tensor) -> None:
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=a * x[:, 0] + b * x[:, 1]))

        def guide(x: Tensor) -> None:
            a = pyro.sample("a", dist.Normal(pyro.param("m", torch.tensor(1.0)), 0.5))
            pyro.sample("b", dist.Normal(-a, 0.1))

        teacher = as_teacher(Predictive(model, guide=guide, num_samples=10))
        logits = logit_of(teacher.log_probs(torch.eye(2).repeat(2, 1), 4000))
        assert_moments(logits[:, 0], 1.0, 0.5)
        assert_moments(logits[:, 0] + logits[:, 1], 0.0, 0.1)
        assert torch.equal(logits[:, :2], logits[:, 2:])

    @pytest.mark.parametrize("chunk_size", [2**21, 200])
    def test_amortised_local_latents(self, chunk_size: int) -> None:
        """Shared w, and one z per row whose guide looks at the row."""

        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("obs", dist.Bernoulli(logits=w + z))

        def guide(x: Tensor) -> None:
            pyro.sample("w", dist.Normal(2.0, 0.5))
            with pyro.plate("data", len(x)):
                pyro.sample("z", dist.Normal(x[:, 0], 0.1))

        teacher = as_teacher(Predictive(model, guide=guide, num_samples=10))
        teacher.chunk_size = chunk_size
        logits = logit_of(teacher.log_probs(torch.tensor([[3.0], [3.0], [-1.0]]), 2000))
        total = (0.5**2 + 0.1**2) ** 0.5
        assert_moments(logits, torch.tensor([5.0, 5.0, 1.0]), total)
        assert_moments(logits[:, 0] - logits[:, 1], 0.0, 0.1 * 2**0.5)  # w is shared, z is not
        assert_moments(logits[:, 1] - logits[:, 2], 4.0, 0.1 * 2**0.5)

    def test_pyro_module_guide(self) -> None:
        class Guide(PyroModule):
            def __init__(self) -> None:
                super().__init__()
                self.loc = PyroParam(torch.tensor(1.5))

            def forward(self, x: Tensor) -> None:
                pyro.sample("w", dist.Normal(self.loc, 0.2))

        teacher = as_teacher(Predictive(line_model, guide=Guide(), num_samples=10))
        assert_moments(logit_of(teacher.log_probs(torch.ones(1, 1), 3000)), 1.5, 0.2)

    @pytest.mark.parametrize(
        "prior", [dist.Normal(0.5, 2.0), dist.Laplace(0.5, 2.0 / 2**0.5), dist.Gamma(4.0, 1.0)]
    )
    def test_prior_predictive(self, prior: dist.Distribution) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", prior)
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]))

        teacher = as_teacher(Predictive(model, num_samples=9))
        x = torch.tensor([[1.0], [1.0]])
        assert teacher.probs(x).shape == (9, 2, 2)
        logits = logit_of(teacher.log_probs(x, 4000))
        assert torch.equal(logits[:, 0], logits[:, 1])
        # Five standard errors of the mean; of the deviation, with room for Laplace's kurtosis of 6.
        assert abs(logits.mean() - prior.mean) < 5 * prior.stddev / 4000**0.5
        assert abs(logits[:, 0].std() - prior.stddev) < 5 * prior.stddev * (5 / 4 / 4000) ** 0.5

    def test_prior_with_a_dirichlet_is_looped_over(self) -> None:
        """Pyro's Dirichlet cannot be sampled inside vmap."""

        def model(x: Tensor) -> None:
            probs = pyro.sample("pi", dist.Dirichlet(torch.tensor([3.0, 1.0])))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Categorical(probs))

        teacher = as_teacher(Predictive(model, num_samples=5))
        with pytest.warns(UserWarning, match="the prior is evaluated draw by draw"):
            probs = teacher.probs(torch.zeros(2, 1), 2000)
        # Beta(3, 1): mean 3/4, deviation sqrt(3/80); five standard errors.
        assert abs(probs[:, 0, 0].mean() - 0.75) < 5 * (3 / 80 / 2000) ** 0.5
        assert torch.equal(probs[:, 0], probs[:, 1])

    def test_local_latents_of_the_model_are_drawn_per_draw_and_row(self) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(w * x[:, 0], 0.5))
                pyro.sample("obs", dist.Bernoulli(logits=z))

        teacher = as_teacher(Predictive(model, {"w": torch.full((3000,), 2.0)}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            logits = logit_of(teacher.log_probs(torch.tensor([[1.0], [1.0], [-1.0]])))
        assert_moments(logits, torch.tensor([2.0, 2.0, -2.0]), 0.5)
        assert_moments(logits[:, 0] - logits[:, 1], 0.0, 0.5 * 2**0.5)


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

        teacher = as_teacher(Predictive(model, {"w": torch.zeros(2000)}))
        with pytest.warns(UserWarning, match="evaluated draw by draw"):
            logits = logit_of(teacher.log_probs(torch.zeros(2, 1)))
        assert_moments(logits, 0.0, 1.0)


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
        """A component per row, drawn afresh for every draw: two categorical sites, one named."""

        def mixture(x: Tensor) -> None:
            means = pyro.sample("means", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                k = pyro.sample("k", dist.Categorical(torch.tensor([0.25, 0.75])))
                pyro.sample("obs", dist.Bernoulli(logits=means[k]))

        predictive = Predictive(mixture, {"means": torch.tensor([-1.0, 1.0]).expand(2000, 2)})
        logits = logit_of(as_teacher(predictive, "obs").log_probs(torch.zeros(3, 1)))
        torch.testing.assert_close(logits.abs(), torch.ones(2000, 3), **ROUNDING)
        # Mean 0.75 - 0.25, deviation sqrt(3)/2; five standard errors.
        assert ((logits.mean(0) - 0.5).abs() < 5 * (0.75 / 2000) ** 0.5).all()

    @pytest.mark.parametrize(
        ("site", "message"),
        [
            (None, r"must name one of .*\['first', 'second'\]; got none.*site='first'"),
            ("w", r"got 'w', a latent site of the posterior\. Candidates: \['first', 'second'\]"),
            ("third", r"got 'third', which the model does not have\. Candidates"),
            ("count", r"must name an observed site that is Categorical.*got 'count', a Poisson"),
        ],
    )
    def test_refused(self, site: str | None, message: str) -> None:
        teacher = as_teacher(Predictive(self._two_labels, {"w": torch.randn(4)}), site)
        with pytest.raises(ValueError, match=message):
            teacher.probs(torch.randn(3, 1))


def _model_of(build: Callable) -> Callable:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", build(w * x[:, 0]))

    return model


class TestRefused:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda z: dist.Normal(z, 1.0), r"that is Categorical.*not fix are \{'obs': 'Normal'"),
            (
                lambda z: dist.Binomial(3, logits=z),
                "one-trial Binomial; got total_count=3. Use Cat",
            ),
            (
                lambda z: dist.Multinomial(2, logits=torch.stack([z, -z], -1)),
                "one-trial Multinomial; got total_count=2",
            ),
            (
                lambda z: dist.Bernoulli(logits=z[:, None].expand(-1, 3)).to_event(1),
                r"one class label per input; got batch shape \(2, 3\) for 2 inputs",
            ),
        ],
    )
    def test_sites(self, build: Callable, message: str) -> None:
        teacher = as_teacher(Predictive(_model_of(build), {"w": torch.randn(4)}))
        with pytest.raises(ValueError, match=message):
            teacher.probs(torch.randn(5, 1))

    def test_label_among_the_samples(self) -> None:
        samples = {"w": torch.randn(4), "obs": torch.zeros(4, 5)}
        with pytest.raises(ValueError, match=r"are none. Is the class label's site among the post"):
            as_teacher(Predictive(line_model, samples)).probs(torch.randn(5, 1))

    def test_large_inputs_are_no_infinite_ones(self) -> None:
        x = torch.full((4, 1), 2e38)  # their sum overflows
        assert as_teacher(Predictive(line_model, {"w": torch.zeros(4)})).probs(x).eq(0.5).all()

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    @pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
    def test_samples_that_are_no_numbers(self, bad: float, shape: tuple[int, ...]) -> None:
        value = torch.zeros(shape)
        value[2] = bad
        with pytest.raises(
            ValueError, match=r"`posterior_samples\['w'\]` must be finite.*1 of 4 dr"
        ):
            as_teacher(Predictive(line_model, {"w": value}))

    def test_samples_of_different_length(self) -> None:
        with pytest.warns(UserWarning):
            predictive = Predictive(line_model, {"w": torch.zeros(4), "v": torch.zeros(3)})
        with pytest.raises(ValueError, match="same number of draws, on axis 0; got 4 of 'w' and 3"):
            as_teacher(predictive)

    def test_samples_that_are_no_tensors(self) -> None:
        with pytest.raises(TypeError, match=r"samples\['w'\]` must be a torch.Tensor; got ndarray"):
            as_teacher(Predictive(line_model, {"w": torch.zeros(4).numpy()}))

    def test_model_that_gives_no_numbers(self) -> None:
        teacher = as_teacher(
            Predictive(_model_of(lambda z: dist.Bernoulli(logits=z / z)), {"w": torch.ones(4)})
        )
        with pytest.raises(ValueError, match="must be numbers; got NaN. Check the posterior draws"):
            teacher.probs(torch.tensor([[1.0], [1.0], [0.0]]))

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (lambda x, y: line_model(x), r"must run as model\(x\).*TypeError.*all others optional"),
            (
                lambda x: (
                    _in_plate(dist.Bernoulli(logits=torch.zeros(7)), 7) if len(x) == 7 else 1 / 0
                ),
                r"at any number of rows; at x of shape \(2, 1\).*ZeroDivisionError",
            ),
        ],
    )
    def test_model_that_cannot_be_run(self, model: Callable, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            as_teacher(Predictive(model, {"w": torch.zeros(4)})).probs(torch.ones(7, 1))

    def test_samples_and_inputs_of_different_precision(self) -> None:
        teacher = as_teacher(Predictive(softmax_model(), softmax_samples(4, dtype=torch.float64)))
        with pytest.raises(
            ValueError, match=r"float32, it raised.*samples are torch.float64: conv"
        ):
            teacher.probs(torch.randn(2, D))
        assert teacher.probs(torch.randn(2, D, dtype=torch.float64)).dtype == torch.float64

    def test_sources(self) -> None:
        with pytest.raises(
            TypeError, match="WeighedPredictive, whose draws carry weights; resample"
        ):
            as_teacher(WeighedPredictive(line_model, guide=line_model, num_samples=2))
        mcmc = MCMC(NUTS(line_model), num_samples=1)
        for site in (None, "obs"):
            with pytest.raises(
                TypeError, match=r"got an MCMC run. Pass Predictive\(model, mcmc.get"
            ):
                as_teacher(mcmc, site)
        for source in (3, "model", {"w": torch.zeros(3)}, None):
            with pytest.raises(TypeError, match="must be a pyro.infer.Predictive, an nn.Module"):
                as_teacher(source)
        with pytest.raises(
            ValueError, match="`site` names a site of a Pyro model.*Leave `site` out"
        ):
            as_teacher(lambda x: x, site="obs")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Time that other programs on the machine do not disturb."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _seconds(call: Callable, *args: object, times: int) -> float:
    """Least processor time of some calls, after one to warm up."""
    spent = []
    for _ in range(times + 1):
        start = time.process_time()
        call(*args)
        spent.append(time.process_time() - start)
    return min(spent[1:])


def test_much_faster_than_predictive(one_thread: None) -> None:
    """500 draws of a logistic regression at 1,000 inputs: over five times (measured: 9 to 19)."""

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=x @ w))

    x = torch.randn(1000, 8)
    predictive = Predictive(model, {"w": torch.randn(500, 8)})
    teacher = as_teacher(predictive)
    assert isinstance(teacher, PredictiveTeacher)
    assert _seconds(predictive, x, times=3) > 5 * _seconds(teacher.probs, x, times=10)


def test_no_slower_than_predictive_where_the_network_is_large(one_thread: None) -> None:
    """784-400-400-10, where time goes into matrix products (measured: 1.15 times faster)."""
    sizes = [(784, 400), (400, 400), (400, 10)]

    def model(x: Tensor) -> None:
        for i, (fan_in, fan_out) in enumerate(sizes):
            w = pyro.sample(f"w{i}", dist.Normal(torch.zeros(fan_in, fan_out), 1.0).to_event(2))
            x = (x if i == 0 else x.relu()) @ w
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=x))

    samples = {f"w{i}": torch.randn(10, *size) / size[0] ** 0.5 for i, size in enumerate(sizes)}
    x, predictive = torch.randn(1000, 784), Predictive(model, samples)
    # Room of a tenth for the noise of timing two calls.
    assert 1.1 * _seconds(predictive, x, times=3) > _seconds(
        as_teacher(predictive).probs, x, times=3
    )


def test_operations_of_a_linear_model_are_those_of_its_product() -> None:
    for classes, outputs in ((2, 1), (4, 4)):
        samples = {"weight": torch.randn(6, 5, outputs), "bias": torch.randn(6, outputs)}
        teacher = as_teacher(Predictive(logistic_regression(classes), samples))
        assert teacher.operations(torch.randn(3, 5)) == 2 * 5 * outputs
