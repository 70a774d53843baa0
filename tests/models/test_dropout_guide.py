"""Dropout as a guide: rows and units, torch's convention, the l2 term, training by the ELBO."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import nn

from pyro_opu import as_teacher
from pyro_opu.models.dropout import DropoutGuide, dropout_l2
from pyro_opu.models.neural_network import (
    bayesian_network,
    dropout_network,
    fit_network,
    perceptron,
)
from pyro_opu.models.variational import OwnParameters, fit_svi

DOUBLE = torch.float64


def with_inputs(sizes, p, p_inputs):
    """A dropout network that drops its inputs too."""
    return nn.Sequential(nn.Dropout(p_inputs), *dropout_network(sizes, p))


def draw(guide, x, masks=None):
    """Values of the guide's sites in one run, some masks given."""
    fixed = poutine.condition(guide, masks or {})
    trace = poutine.trace(fixed).get_trace(x)
    return {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}


def run(network, theta, x):
    """The network in evaluation mode with these weights."""
    weights = {name: value for name, value in theta.items() if "keep" not in name}
    return torch.func.functional_call(network.eval(), weights, (x,))


class TestRowsAndUnits:
    def test_dropped_rows_are_dropped_units(self):
        """Eq. 23: y = x W^T + b with rows of W and b zeroed, or the mask on the units."""
        network = dropout_network((5, 7, 6, 3), 0.4).double()
        guide, x = DropoutGuide(network), torch.randn(4, 5, dtype=DOUBLE)
        for _ in range(5):
            theta = draw(guide, x)
            hidden = x
            for layer in ("0", "3", "6"):
                hidden = hidden @ guide.mean(f"{layer}.weight").T + guide.mean(f"{layer}.bias")
                if layer != "6":
                    hidden = theta[f"{layer}.keep"] * hidden.relu()
            torch.testing.assert_close(run(network, theta, x), hidden)
            for layer in ("0", "3"):
                dropped = theta[f"{layer}.keep"] == 0
                assert (theta[f"{layer}.weight"][dropped] == 0).all()
                assert (theta[f"{layer}.bias"][dropped] == 0).all()
                assert (theta[f"{layer}.weight"][~dropped] != 0).all()
            torch.testing.assert_close(theta["6.weight"], network[6].weight.detach())

    @pytest.mark.parametrize("p_inputs", [0.0, 0.25])
    def test_torch_with_the_same_masks(self, p_inputs):
        """The factors 1 / (1 - p) of torch's dropout are in M: same masks, same outputs."""
        network = with_inputs((5, 7, 6, 3), 0.4, p_inputs).double()
        x = torch.randn(4, 5, dtype=DOUBLE)
        theta = draw(DropoutGuide(network), x)
        hidden = x * theta["1.keep_inputs"] / (1 - p_inputs) if p_inputs else x
        hidden = network[1](hidden).relu() * theta["1.keep"] / 0.6
        hidden = network[4](hidden).relu() * theta["4.keep"] / 0.6
        torch.testing.assert_close(run(network, theta, x), network[7](hidden))

    def test_masks_can_be_given_and_have_the_rate(self):
        network = with_inputs((50, 400, 3), 0.3, 0.1)
        guide, x = DropoutGuide(network), torch.zeros(1, 50)
        given = {"1.keep": torch.arange(400.0) % 2, "1.keep_inputs": torch.ones(50)}
        theta = draw(guide, x, given)
        assert (theta["1.weight"][0::2] == 0).all() and (theta["1.weight"][1::2] != 0).all()
        for site, p in (("1.keep", 0.3), ("1.keep_inputs", 0.1)):
            kept = torch.stack([draw(guide, x)[site] for _ in range(200)])
            # Five standard errors of the Bernoulli mean.
            assert abs(kept.mean() - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5

    def test_layers_without_bias_or_dropout(self):
        network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(4, 5, bias=False),
            nn.Dropout(0.0),
            nn.LeakyReLU(),
            nn.Linear(5, 6),
            nn.Dropout(0.5),
            nn.ReLU(),
            nn.Linear(6, 3),
        )
        theta = draw(DropoutGuide(network), torch.zeros(1, 4))
        assert set(theta) == {
            "1.weight", "4.weight", "4.bias", "4.keep", "7.weight", "7.bias",
        }  # fmt: skip
        assert torch.equal(theta["1.weight"], network[1].weight.detach())


class TestPredictive:
    def test_as_the_dropout_teacher(self):
        """Means over draws agree, and so do those of products of two inputs' probabilities."""
        network = dropout_network((4, 12, 8, 3), 0.5)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(3.0)  # so that draws differ
        x, count = torch.randn(5, 4), 4000
        predictive = Predictive(
            bayesian_network(network), guide=DropoutGuide(network), num_samples=count
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap runs model and guide
            mine = as_teacher(predictive).probs(x)
        theirs = as_teacher(network).probs(x, count)
        for statistic in (lambda p: p, lambda p: p**2, lambda p: p[:, :1] * p[:, 1:]):
            a, b = statistic(mine), statistic(theirs)
            # Five standard errors: 42 comparisons fail together 2e-5 of the time.
            error = ((a.var(0) + b.var(0)) / count).sqrt()
            assert ((a.mean(0) - b.mean(0)).abs() < 5 * error).all()

    def test_the_network_is_left_alone(self):
        network = dropout_network((4, 5, 3))
        before = {name: value.clone() for name, value in network.state_dict().items()}
        guide = DropoutGuide(network)
        x, y = torch.randn(20, 4), torch.arange(20) % 3
        fit_svi(bayesian_network(network), guide, x, y, steps=3)
        assert all(torch.equal(before[n], v) for n, v in network.state_dict().items())
        assert not torch.equal(guide.mean("3.weight"), network[3].weight)

    def test_two_guides_in_one_store(self):
        first, second = dropout_network((4, 5, 3)), dropout_network((4, 5, 3))
        x = torch.zeros(1, 4)
        DropoutGuide(first)(x)
        with pytest.raises(ValueError, match="`name` must differ between guides.*'dropout.0.weigh"):
            DropoutGuide(second)(x)
        named = DropoutGuide(second, name="second")(x)
        torch.testing.assert_close(named["3.weight"], second[3].weight)
        own = OwnParameters(DropoutGuide(second))(x)
        torch.testing.assert_close(own["3.weight"], second[3].weight)


class TestL2:
    @pytest.mark.parametrize("p_inputs", [0.0, 0.25])
    def test_is_the_expected_log_prior(self, p_inputs):
        """Summed over all masks, exactly."""
        network = with_inputs((3, 2, 2, 2), 0.4, p_inputs).double()
        guide, sigma = DropoutGuide(network), 0.7
        model, x = bayesian_network(network, prior=sigma), torch.zeros(1, 3, dtype=DOUBLE)
        inputs = list(itertools.product([0.0, 1.0], repeat=3)) if p_inputs else [(1.0,) * 3]
        hidden = list(itertools.product([0.0, 1.0], repeat=2))
        expected, total = torch.zeros((), dtype=DOUBLE), 0.0
        for first, second, third in itertools.product(inputs, hidden, hidden):
            kept = sum(second) + sum(third)
            weight = 0.6**kept * 0.4 ** (4 - kept)
            masks = {"1.keep": torch.tensor(second).double()}
            masks["4.keep"] = torch.tensor(third).double()
            if p_inputs:
                masks["1.keep_inputs"] = torch.tensor(first).double()
                weight *= 0.75 ** sum(first) * 0.25 ** (3 - sum(first))
            theta = draw(guide, x, masks)
            trace = poutine.trace(poutine.condition(model, theta)).get_trace(x)
            names = dict(network.named_parameters())
            trace.compute_log_prob(lambda name, site, names=names: name in names)
            expected = expected + weight * sum(trace.nodes[n]["log_prob_sum"] for n in names)
            total += weight
        assert abs(total - 1) < 1e-12
        size = sum(p.numel() for p in network.parameters())
        constant = -0.5 * size * math.log(2 * math.pi * sigma**2)
        torch.testing.assert_close(-dropout_l2(guide, sigma) + constant, expected)

    def test_weight_decay_is_a_prior(self):
        """lambda = 1 / (N sigma^2 (1 - p)) in torch's weights: the same gradient per row."""
        network, rows, sigma = dropout_network((4, 5, 3), 0.3).double(), 50, 0.7
        guide = DropoutGuide(network)
        dropout_l2(guide, sigma).div(rows).backward()
        for name, kept in (("0.weight", 0.7), ("0.bias", 0.7), ("3.weight", 1.0)):
            weight = network.get_parameter(name)
            decay = 1 / (rows * sigma**2 * kept)
            # d/dW = d/dM / (1 - p), since M = W / (1 - p).
            torch.testing.assert_close(guide.mean(name).grad / kept, decay * weight.detach())


class TestTraining:
    def test_learns(self):
        y = torch.arange(300) % 2
        x = torch.randn(300, 2) + 2.0 * y[:, None] - 1.0
        network = dropout_network((2, 32, 2), 0.2)
        model = bayesian_network(network)
        fit = fit_svi(model, DropoutGuide(network), x, y, steps=400, batch_size=100)
        probs = as_teacher(Predictive(model, guide=fit.guide, num_samples=100)).probs(x)
        # The best rule errs on a normal tail beyond sqrt(2), 8 % of the rows.
        assert (probs.mean(0).argmax(-1) == y).float().mean() > 0.87

    def test_from_a_trained_network(self):
        """A trained network as a guide: same answers as the network's own teacher."""
        y = torch.arange(200) % 2
        x = torch.randn(200, 2) + 2.0 * y[:, None] - 1.0
        network = fit_network(dropout_network((2, 16, 2)), x, y, epochs=10)
        predictive = Predictive(
            bayesian_network(network), guide=DropoutGuide(network), num_samples=3000
        )
        mine, theirs = (
            as_teacher(predictive).probs(x[:10]),
            as_teacher(network, output="classes").probs(x[:10], 3000),
        )
        # Five standard errors of 3,000 draws each.
        error = ((mine.var(0) + theirs.var(0)) / 3000).sqrt()
        assert ((mine.mean(0) - theirs.mean(0)).abs() < 5 * error).all()


def test_without_dropout_it_is_a_point():
    network = perceptron((2, 4, 3))
    theta = draw(DropoutGuide(network), torch.zeros(1, 2))
    assert set(theta) == set(dict(network.named_parameters()))
    for name, value in network.named_parameters():
        assert torch.equal(theta[name], value.detach())
