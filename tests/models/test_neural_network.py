"""Bayesian networks: sites, likelihoods against their formulas, the batched teacher, NUTS, SVI."""

from __future__ import annotations

import math
import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.autoguide import AutoDelta
from pyro.ops.stats import gelman_rubin
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_opu import as_teacher
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.neural_network import (
    Skeleton,
    bayesian_network,
    convolutional_network,
    dropout_network,
    perceptron,
)
from pyro_opu.models.normals import IsotropicNormal
from pyro_opu.models.variational import OwnParameters, fit_svi, mean_field

DOUBLE = torch.float64
NETWORKS = {
    "perceptron": (lambda: perceptron((5, 7, 6, 3)), (5,)),
    "dropout": (lambda: dropout_network((5, 7, 3)), (5,)),
    "images": (lambda: convolutional_network((8, 9), 3, (2, 4)), (8, 9)),
    "colour": (lambda: convolutional_network((2, 8, 8), 3, (2, 4)), (2, 8, 8)),
}
networks = pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=NETWORKS)


def draws(network, count, scale=0.5, dtype=None):
    """Values of all sites, ``(count, *shape)``."""
    named = network.named_parameters()
    return {n: scale * torch.randn(count, *p.shape, dtype=dtype or p.dtype) for n, p in named}


class TestIsotropicNormal:
    @pytest.mark.parametrize("shape", [(), (4,), (3, 2), (2, 3, 2, 2)])
    @pytest.mark.parametrize("batch", [(), (5,)])
    def test_is_the_normal(self, shape, batch):
        scale = torch.rand(batch, dtype=DOUBLE) + 0.5
        mine = IsotropicNormal(scale, shape)
        theirs = dist.Normal(0.0, scale.reshape(batch + (1,) * len(shape))).expand(batch + shape)
        theirs = theirs.to_event(len(shape))
        value = torch.randn(7, *batch, *shape, dtype=DOUBLE)
        torch.testing.assert_close(mine.log_prob(value), theirs.log_prob(value))
        assert mine.batch_shape == theirs.batch_shape and mine.event_shape == theirs.event_shape
        wide = mine.expand((6, *batch))
        assert wide.sample((2,)).shape == (2, 6, *batch, *shape) == wide.shape((2,))
        assert wide.log_prob(wide.sample()).shape == (6, *batch)

    def test_draws(self):
        drawn = IsotropicNormal(torch.tensor([0.5, 2.0], dtype=DOUBLE), (40, 50)).rsample((20,))
        # 40,000 numbers per batch entry; five standard errors of the mean and of the variance.
        scale = torch.tensor([0.5, 2.0], dtype=DOUBLE)
        assert (drawn.mean((0, 2, 3)).abs() < 5 * scale / 200).all()
        ratio = drawn.var((0, 2, 3)) / scale**2
        assert ((ratio - 1).abs() < 5 * (2 / 40_000) ** 0.5).all()

    def test_a_scale_that_is_no_scale(self):
        with pytest.raises(ValueError, match="parameter scale"):
            IsotropicNormal(torch.tensor(-1.0), (3,), validate_args=True)


class TestSkeleton:
    def test_equals_functional_call(self):
        network = convolutional_network((8, 8), 3)
        theta, x = {n: v[0] for n, v in draws(network, 1).items()}, torch.randn(4, 8, 8)
        expected = torch.func.functional_call(network, theta, (x,))
        torch.testing.assert_close(Skeleton(network)(theta, x), expected)

    def test_tied_parameters(self):
        network = perceptron((3, 3, 3))
        network[2].weight = network[0].weight
        skeleton, x = Skeleton(network), torch.randn(4, 3)
        assert list(skeleton.shapes) == ["0.weight", "0.bias", "2.bias"]
        theta = {name: value.detach() for name, value in network.named_parameters()}
        torch.testing.assert_close(skeleton(theta, x), network(x).detach())

    def test_recurrent_layers_and_buffers(self):
        class Last(nn.Module):
            def __init__(self):
                super().__init__()
                self.recurrent, self.norm = nn.GRU(2, 4, batch_first=True), nn.BatchNorm1d(4)

            def forward(self, x):
                return self.norm(self.recurrent(x)[0][:, -1])

        network, x = Last(), torch.randn(5, 6, 2)
        network(x)  # in training mode, so that the statistics are not the initial ones
        theta = {n: v[0] for n, v in draws(network, 1).items()}
        expected = torch.func.functional_call(network.eval(), theta, (x,))
        torch.testing.assert_close(Skeleton(network)(theta, x), expected)

    def test_an_error_leaves_nothing_behind(self):
        skeleton = Skeleton(nn.Linear(2, 3))
        theta = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}
        with pytest.raises(RuntimeError):
            skeleton(theta, torch.ones(1, 5))
        assert not hasattr(skeleton.network, "weight")
        assert torch.equal(skeleton(theta, torch.ones(1, 2)), torch.full((1, 3), 2.0))


class TestModel:
    @networks
    def test_sites(self, build, shape):
        network = build()
        trace = poutine.trace(bayesian_network(network)).get_trace(torch.randn(4, *shape))
        expected = {name: p.shape for name, p in network.named_parameters()}
        assert {n: trace.nodes[n]["value"].shape for n in expected} == expected
        latent = set(trace.stochastic_nodes) - {"data", "obs"}
        assert latent == set(expected)
        assert trace.nodes["obs"]["value"].shape == (4,)
        assert [f.name for f in trace.nodes["obs"]["cond_indep_stack"]] == ["data"]

    def test_a_prior_of_ones_own(self):
        def prior(name, shape):
            scale = 0.1 if name.endswith("bias") else shape[-1] ** -0.5
            return dist.Normal(0.0, scale).expand(shape).to_event()

        trace = poutine.trace(bayesian_network(perceptron((5, 4, 3)), prior=prior)).get_trace(
            torch.randn(2, 5)
        )
        assert torch.equal(
            trace.nodes["0.weight"]["fn"].base_dist.scale, torch.full((4, 5), 5**-0.5)
        )
        assert torch.equal(trace.nodes["2.bias"]["fn"].base_dist.scale, torch.full((3,), 0.1))

    def test_the_network_given_is_left_alone(self):
        network, x = dropout_network((5, 7, 3)).train(), torch.randn(4, 5)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        model = bayesian_network(network)
        theta = {name: v[0] for name, v in draws(network, 1).items()}
        logits = [
            poutine.trace(poutine.condition(model, theta)).get_trace(x).nodes["obs"]["fn"].logits
            for _ in range(2)
        ]
        torch.testing.assert_close(*logits)  # no dropout inside the model
        assert network.training and all(p.requires_grad for p in network.parameters())
        assert all(torch.equal(before[n], v) for n, v in network.state_dict().items())

    def test_images_with_and_without_a_channel_axis(self):
        network, x = convolutional_network((8, 8), 3), torch.randn(4, 8, 8)
        torch.testing.assert_close(network(x), network(x[:, None]))

    def test_pickle(self):
        network, x = perceptron((5, 4, 1)), torch.randn(3, 5)
        model = bayesian_network(network, likelihood=regression(2.0))
        torch.manual_seed(0)
        first = model(x)
        torch.manual_seed(0)
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), first)


class TestRegression:
    @pytest.mark.parametrize("outputs", [1, 2])
    def test_noise_of_a_fixed_precision(self, outputs):
        network, x = perceptron((5, 4, outputs)).double(), torch.randn(6, 5, dtype=DOUBLE)
        y = torch.randn(6, dtype=DOUBLE) if outputs == 1 else torch.randn(6, 2, dtype=DOUBLE)
        model = poutine.condition(
            bayesian_network(network, likelihood=regression(4.0)), dict(network.named_parameters())
        )
        trace = poutine.trace(model).get_trace(x, y)
        trace.compute_log_prob()
        mean = network(x).squeeze(-1)
        expected = -2.0 * (y - mean) ** 2 + 0.5 * math.log(4.0 / (2 * math.pi))
        expected = expected if outputs == 1 else expected.sum(-1)
        torch.testing.assert_close(trace.nodes["obs"]["log_prob"], expected)

    def test_latent_precision(self):
        likelihood = regression(dist.Gamma(6.0, 6.0))
        model = bayesian_network(perceptron((5, 4, 1)), likelihood=likelihood)
        fixed = poutine.condition(model, {"precision": torch.tensor(16.0)})
        trace = poutine.trace(fixed).get_trace(torch.randn(6, 5))
        assert trace.nodes["precision"]["fn"].concentration == 6.0
        torch.testing.assert_close(trace.nodes["obs"]["fn"].scale, torch.full((6,), 0.25))

    @pytest.mark.slow
    def test_noise_is_found(self):
        """With no signal, Gamma(1, 1) and N = 400 rows: precision | y in closed form."""
        x, y = torch.zeros(400, 1), 0.5 * torch.randn(400)
        model = poutine.condition(
            bayesian_network(nn.Linear(1, 1), likelihood=regression(dist.Gamma(1.0, 1.0))),
            {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)},
        )
        guide = AutoDelta(poutine.block(model, expose=["precision"]))
        fit_svi(model, guide, x, y, steps=600, learning_rate=0.05)
        mode = (1.0 + 200 - 1) / (1.0 + y.square().sum() / 2)
        # AutoDelta's optimum is the mode; 1e-3: where Adam stops.
        torch.testing.assert_close(guide.median()["precision"], mode, rtol=1e-3, atol=0.0)


class TestTeacher:
    @networks
    def test_batched_without_a_warning_and_equal_to_the_loop(self, build, shape):
        network, x = build(), torch.randn(6, *shape)
        samples = draws(network, 9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the fall-back to the loop is a warning
            teacher = as_teacher(Predictive(bayesian_network(network), samples))
            probs = teacher.probs(x)
        assert teacher.program.run.use_vmap
        for s in range(9):
            network.eval().load_state_dict({name: value[s] for name, value in samples.items()})
            # Rounding of float32 products summed in another order, on logits of size 10.
            torch.testing.assert_close(probs[s], network(x).softmax(-1), rtol=1e-4, atol=1e-5)

    def test_from_the_prior(self):
        model = bayesian_network(perceptron((5, 4, 3)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            probs = as_teacher(Predictive(model, num_samples=8)).probs(torch.randn(6, 5))
        assert probs.shape == (8, 6, 3) and len(probs[:, 0].unique(dim=0)) == 8

    def test_the_model_is_lean(self):
        """A gradient of the log-joint costs less than with torch's normal as the prior."""
        network = perceptron((784, 400, 400, 10))
        x, y = torch.randn(100, 784), torch.randint(10, (100,))
        theta = {n: p.detach().requires_grad_() for n, p in network.named_parameters()}

        def plain(name, shape):
            return dist.Normal(torch.zeros(shape), 1.0).to_event()

        models = {
            "lean": bayesian_network(network),
            "plain": bayesian_network(network, prior=plain),
        }

        def gradient(name):
            with pyro.validation_enabled(False):
                model = poutine.condition(models[name], theta)
                log_joint = poutine.trace(model).get_trace(x, y).log_prob_sum()
            return torch.autograd.grad(log_joint, list(theta.values()))

        for mine, theirs in zip(*map(gradient, models), strict=True):
            # Rounding of float32 sums over 100 rows, of gradients up to 10.
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        written = {}
        for name in models:
            with Written() as counted:
                gradient(name)
            written[name] = counted.numbers
        assert written["lean"] < 0.75 * written["plain"]


class Written(TorchDispatchMode):
    """Counts the numbers that operations write, which take the time of most of them."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.numbers += result.numel() if isinstance(result, torch.Tensor) else 0
        return result


def blobs(rows=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 2
    return torch.randn(rows, 2, generator=generator) + 2.0 * y[:, None] - 1.0, y


@pytest.mark.slow
def test_nuts_on_a_small_network():
    x, y = blobs()
    model = bayesian_network(perceptron((2, 4, 2)))
    chains = []
    for _ in range(2):  # one after the other; in processes they would take a test's time to start
        kernel = NUTS(model, max_tree_depth=5)
        mcmc = MCMC(kernel, 100, 80, disable_progbar=True)
        mcmc.run(x, y)
        chains.append(mcmc.get_samples())
    samples = {name: torch.cat([chain[name] for chain in chains]) for name in chains[0]}
    assert samples["0.weight"].shape == (200, 4, 2)
    grid = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [2.0, -1.0]])
    probs = as_teacher(Predictive(model, samples)).probs(grid)[..., 1]
    # Weights may be permuted between chains, so only the probabilities are compared; 1.1 is the
    # usual bound for two chains.
    assert (gelman_rubin(probs.unflatten(0, (2, 100)), 0, 1) < 1.1).all()
    assert probs[:, 0].mean() < 0.1 and probs[:, 1].mean() > 0.9


def linear_data(rows=80):
    x = torch.randn(rows, 3, dtype=DOUBLE)
    x[:, 2] += 0.8 * x[:, 1]  # so that the posterior is correlated
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE) + 0.3 + torch.randn(rows).double()


class TestVariational:
    @pytest.mark.parametrize(
        ("beta", "batch_size"),
        [(0.25, None), pytest.param(1.0, 20, marks=pytest.mark.slow)],
    )
    def test_mean_field_of_linear_regression(self, beta, batch_size):
        """The optimum has the exact mean, and variances 1 / diag(precision) (eqs. 11 and 13).

        A tempered bound is beta times that of the likelihood to the power 1 / beta.
        """
        x, y = linear_data()
        network = nn.Linear(3, 1).double()
        model = bayesian_network(network, prior=2.0, likelihood=regression(1.5))
        guide = mean_field(model, network)
        fit = fit_svi(
            model,
            guide,
            x,
            y,
            steps=1200,
            batch_size=batch_size,
            learning_rate=0.05,
            final_rate=0.0005,
            beta=beta,
            seed=0,
        )
        phi = torch.cat([x, torch.ones(80, 1, dtype=DOUBLE)], 1)
        precision = 1.5 / beta * phi.T @ phi + torch.eye(4, dtype=DOUBLE) / 4.0
        mean = torch.linalg.solve(precision, 1.5 / beta * phi.T @ y)
        scale = precision.diagonal().rsqrt()
        found = torch.cat([guide.locs.weight.flatten(), guide.locs.bias]).detach()
        scales = torch.cat([guide.scales.weight.flatten(), guide.scales.bias]).detach()
        # Noise of Adam's last steps (one draw each), in posterior scales; larger for minibatches
        # of a quarter of the rows.
        wide = 1.0 if batch_size is None else 5.0
        torch.testing.assert_close(found, mean, rtol=0.0, atol=0.1 * wide * float(scale.max()))
        torch.testing.assert_close(scales, scale, rtol=0.07 * wide**0.5, atol=0.0)
        assert fit.elbo.shape == (1200,) and fit.elbo[-200:].mean() > fit.elbo[:50].mean()

    @pytest.mark.parametrize("beta", [1.0, 0.3])
    def test_elbo_is_the_tempered_bound(self, beta):
        """At fixed q: E_q log p(D|theta) - beta KL in closed form, by minibatches too."""
        x, y = linear_data()
        model = bayesian_network(nn.Linear(3, 1), prior=2.0, likelihood=regression(1.5))
        weight = torch.randn(1, 3, dtype=DOUBLE)
        q = {"weight": (weight, 0.3), "bias": (torch.zeros(1, dtype=DOUBLE), 0.2)}

        def guide(x, y=None):
            for name, (loc, scale) in q.items():
                pyro.sample(name, dist.Normal(loc, scale).to_event())

        x_one = torch.cat([x, torch.ones(80, 1, dtype=DOUBLE)], 1)
        variance = torch.tensor([0.09, 0.09, 0.09, 0.04], dtype=DOUBLE)
        loc = torch.cat([weight[0], torch.zeros(1, dtype=DOUBLE)])
        squares = (y - x_one @ loc) ** 2 + x_one.square() @ variance
        expected = -0.75 * squares.sum() + 40 * math.log(1.5 / (2 * math.pi))
        ratio = (variance + loc**2) / 4.0 - 1.0 - (variance / 4.0).log()
        expected = expected - beta * 0.5 * ratio.sum()
        for batch_size in (None, 16):
            arguments = {"steps": 500, "batch_size": batch_size, "beta": beta, "seed": 1}
            elbo = fit_svi(model, guide, x, y, **arguments).elbo.double()
            # Five standard errors of 500 estimates.
            assert abs(elbo.mean() - expected) < 5 * elbo.std() / 500**0.5

    def test_two_fits_keep_their_parameters(self):
        """Pyro's own store would hand the first guide's parameters to the second."""
        x, y = blobs()
        network, fits = perceptron((2, 2)), []
        model = bayesian_network(network)
        for labels in (y, 1 - y):
            guide = mean_field(model, network)
            fits.append(fit_svi(model, guide, x, labels, steps=300, learning_rate=0.05).guide)
        probs = [
            as_teacher(Predictive(model, guide=guide, num_samples=20)).probs(x).mean(0)[:, 1]
            for guide in (*fits, fits[0])
        ]
        assert (probs[0] - probs[2]).abs().max() < 0.1 < 0.8 < (probs[0] - probs[1]).abs().max()
        assert len(pyro.get_param_store()) == 0
        assert set(fits[0].parameters) == set(fits[1].parameters) != set()

    def test_a_guide_with_plain_parameters(self):
        x, y = linear_data()

        def guide(x, y=None):
            loc = pyro.param("loc", torch.zeros(1, 3, dtype=DOUBLE))
            pyro.sample("weight", dist.Delta(loc, event_dim=2))
            pyro.sample("bias", dist.Delta(pyro.param("shift", loc.new_zeros(1)), event_dim=1))

        model = bayesian_network(nn.Linear(3, 1), likelihood=regression())
        fit = fit_svi(model, guide, x, y, steps=1000, learning_rate=0.05)
        phi = torch.cat([x, torch.ones(80, 1, dtype=DOUBLE)], 1)
        exact = torch.linalg.solve(phi.T @ phi + torch.eye(4, dtype=DOUBLE), phi.T @ y)
        # Deterministic; 1e-3: where Adam stops.
        torch.testing.assert_close(fit.guide.parameters["loc"][0], exact[:3], rtol=0.0, atol=1e-3)
        again = OwnParameters(guide)
        again(x)
        assert torch.equal(again.parameters["loc"], torch.zeros(1, 3, dtype=DOUBLE))

    def test_a_seed_fixes_all_and_leaves_the_generator(self):
        x, y = blobs()
        model = bayesian_network(perceptron((2, 2)))
        before = torch.get_rng_state()
        start = {"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(2)}
        runs = [
            fit_svi(model, mean_field(model, start), x, y, steps=5, batch_size=10, seed=3).elbo
            for _ in range(2)
        ]
        assert torch.equal(*runs) and torch.equal(before, torch.get_rng_state())
