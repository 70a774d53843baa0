"""The first models: shapes, the sites of their trace, and that training trains."""

from __future__ import annotations

import pytest
import torch
from pyro import poutine

from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_logistic_regression_sites(num_classes):
    x = torch.randn(7, 4)
    trace = poutine.trace(logistic_regression(num_classes)).get_trace(x)
    outputs = 1 if num_classes == 2 else num_classes
    assert trace.nodes["weight"]["value"].shape == (4, outputs)
    assert trace.nodes["bias"]["value"].shape == (outputs,)
    assert trace.nodes["obs"]["value"].shape == (7,)


def test_logistic_regression_likelihood_is_the_softmax():
    x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 1, 0])
    weight, bias = torch.randn(2, 3), torch.randn(3)
    model = poutine.condition(logistic_regression(3), {"weight": weight, "bias": bias})
    trace = poutine.trace(model).get_trace(x, y)
    trace.compute_log_prob()
    expected = (x @ weight + bias).log_softmax(-1)[range(5), y]
    torch.testing.assert_close(trace.nodes["obs"]["log_prob"], expected)


def test_dropout_network_learns_separable_data():
    x = torch.randn(200, 2)
    y = (x[:, 0] > 0).long()
    network = fit_network(dropout_network((2, 16, 2), p=0.2), x, y, epochs=30, learning_rate=1e-2)
    assert not network.training
    # Two straightforward half planes: nearly all rows right, some beside the boundary may not be.
    assert (network(x).argmax(-1) == y).float().mean() > 0.95
