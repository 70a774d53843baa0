"""Fits of laplace-torch as teachers: logits and joint draws beside dense matrices."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_opu import as_teacher, laplace_bridge
from pyro_opu.models.laplace_network import NetworkLaplace
from pyro_opu.models.neural_network import fit_network, perceptron
from pyro_opu.rivals import laplace_bridge_predictive

library = pytest.importorskip("laplace", reason="needs laplace-torch")
PRECISION = 2.0


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    """Three blobs in the plane."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    centres = torch.tensor([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    return centres[y] + torch.randn(90, 2, generator=generator), y


@pytest.fixture(scope="module")
def network(data) -> nn.Sequential:
    return fit_network(perceptron((2, 5, 3)), *data, epochs=20, learning_rate=1e-2)


def fitted(network: nn.Module, data: tuple[Tensor, Tensor], weights: str, structure: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and einops, about their own parts
        fit = library.Laplace(
            copy.deepcopy(network), "classification", weights, structure, prior_precision=PRECISION
        )
        fit.fit(DataLoader(TensorDataset(*data), 40))
    return fit


def jacobians(network: nn.Sequential, x: Tensor, last: bool) -> Tensor:
    """(N, C, P) slowly: one backward pass for every input and logit, parameters in their order."""
    weights = list((network[-1] if last else network).parameters())

    def row(z: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(z, weights, retain_graph=True)])

    return torch.stack([torch.stack([row(z) for z in logits]) for logits in network(x)])


@pytest.mark.parametrize("structure", ["diag", "full", "kron"])
@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_logits_and_joint_draws_against_dense_matrices(network, data, weights, structure) -> None:
    fit = NetworkLaplace(fitted(network, data, weights, structure))
    x = data[0]
    jacobian = jacobians(network, x, weights == "last_layer").double()
    if structure == "kron":
        dense = fit.fit.posterior_precision.to_matrix().double()
    else:  # the Gauss-Newton matrix and the prior, added up input by input
        dense = PRECISION * torch.eye(jacobian.shape[-1]).double()
        for j, p in zip(jacobian, network(x).detach().double().softmax(-1), strict=True):
            dense += j.mT @ (p.diag() - torch.outer(p, p)) @ j
        dense = dense.diagonal().diag() if structure == "diag" else dense
    covariance = torch.linalg.inv(dense)
    mean, of_logits = fit.logits(x)
    torch.testing.assert_close(mean, network(x).detach())
    # 1e-4: the library adds its curvature up in float32.
    expected = jacobian @ covariance @ jacobian.mT
    torch.testing.assert_close(of_logits.double(), expected, rtol=1e-4, atol=1e-4)

    # Joint draws: the covariance between inputs too. Logits up to a constant, so centred ones.
    draws = as_teacher(fit).log_probs(x[:4], 20_000)
    z = (draws - draws.mean(-1, keepdim=True)).flatten(1)
    centre = torch.eye(3).double() - 1 / 3
    rows = (centre @ jacobian[:4]).flatten(0, 1)
    whole = rows @ covariance @ rows.mT
    scale = whole.diagonal().sqrt()
    # Standard error of a correlation by 20,000 draws: at most 0.007; 144 of them.
    found, expected = (each / torch.outer(scale, scale) for each in (z.T.cov().double(), whole))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.04)
    gap = z.mean(0) - (centre @ mean[:4].double().mT).mT.flatten()
    assert (gap.abs() < 5 * scale / 20_000**0.5).all()


def test_both_bridges_are_the_librarys(network, data) -> None:
    x, theirs = data[0], fitted(network, data, "all", "kron")
    # They condition the Gaussian on a zero sum first, where this package projects it.
    mean, covariance = (part.double() for part in NetworkLaplace(theirs).logits(x))
    rows = covariance.sum(-1)
    total = rows.sum(-1)[:, None]
    mean = mean - rows * mean.sum(-1, keepdim=True) / total
    covariance = covariance - rows[:, :, None] * rows[:, None] / total[:, :, None]
    for normalize, name in ((False, "bridge"), (True, "bridge_norm")):
        alpha = laplace_bridge(mean, covariance, normalize=normalize)
        expected = theirs(x, pred_type="glm", link_approx=name)
        probs = alpha / alpha.sum(-1, keepdim=True)
        torch.testing.assert_close(probs, expected.double(), rtol=0.0, atol=1e-3)


def test_student_by_the_bridge_and_modes_of_the_network(network, data) -> None:
    x, fit = data[0], fitted(network, data, "last_layer", "kron")
    fit.model.train()
    whole = NetworkLaplace(fit)
    fast = laplace_bridge_predictive(whole, x)
    torch.testing.assert_close(
        fast.dirichlet(x).concentration, laplace_bridge(*whole.logits(x)), rtol=1e-5, atol=0.0
    )
    assert fit.model.training and fast.report["one_pass"]
    assert repr(whole) == "NetworkLaplace(KronLLLaplace, C: 3)"


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        (None, TypeError, "`fit` must be a Laplace of laplace-torch; got NoneType"),
        (lambda net: net, TypeError, "got Sequential"),
        (lambda net: library.Laplace(net, "classification"), ValueError, "must be a fitted"),
        (lambda net: library.Laplace(net, "regression"), ValueError, "is 'regression'"),
    ],
)
def test_refused(network, fit, error, message) -> None:
    with pytest.raises(error, match=message):
        NetworkLaplace(fit and fit(network))
