"""Posteriors that several studies begin with: how each is made, on which data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyro
import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from benchmarks.main_job import principal_components
from papers import datasets
from papers.digits import digits
from pyro_opu import PolyaGammaGibbs
from pyro_opu.models.dropout import DropoutGuide
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.laplace import laplace
from pyro_opu.models.last_layer import last_layer_network, on_features
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import (
    bayesian_network,
    dropout_network,
    fit_network,
    perceptron,
)
from pyro_opu.models.sgpmc import svgp
from pyro_opu.models.variational import fit_svi

#: Draws that are held: two independent halves of 500 for the floor.
DRAWS = 1000
SIZES = (64, 128, 128, 10)


class Data(NamedTuple):
    """Rows the posterior is made from, unlabelled transfer inputs, and inputs to judge by."""

    x: Tensor
    y: Tensor
    transfer: Tensor
    test: Tensor


class Posterior(NamedTuple):
    """A model with held draws, or with a guide that draws afresh, and its data."""

    source: Predictive
    data: Data


def table(name: str) -> Data:
    """A table of the papers, standardized; from nine tenths of the rows, which transfer too."""
    train, test = datasets.split(getattr(datasets, name)(), test=0.1, seed=0)
    train, test = datasets.standardize(train, test)
    return Data(train.x, train.y.float(), train.x, test.x)


def images() -> Data:
    data = digits(0)
    return Data(*data.train, data.transfer.x, data.test.x)


def as_images(data: Data) -> Data:
    return Data(*(part.unflatten(1, (8, 8)) if part.ndim == 2 else part for part in data))


def components() -> Data:
    data = principal_components(0).data
    return Data(*data.train, data.transfer.x, data.test.x)


def from_guide(model, guide, data: Data) -> Posterior:
    return Posterior(Predictive(model, guide=guide, num_samples=500, return_sites=("obs",)), data)


def polya_gamma() -> Posterior:
    data, model = table("pima"), logistic_regression(2)
    run = MCMC(PolyaGammaGibbs(model), DRAWS, 100, disable_progbar=True)
    run.run(data.x, data.y)
    return Posterior(Predictive(model, run.get_samples()), data)


def laplace_of_pima() -> Posterior:
    data = table("pima")
    return from_guide(logistic_regression(2), laplace(data.x, data.y, 2).guide, data)


def dropout() -> Posterior:
    data = images()
    network = fit_network(dropout_network(SIZES), data.x, data.y)
    return from_guide(bayesian_network(network), DropoutGuide(network), data)


def last_layer_gaussian() -> Posterior:
    data = images()
    network = fit_network(perceptron(SIZES[:-2] + (32, 10)), data.x, data.y, epochs=50)
    trunk, head = last_layer_network(network, prior=0.5)
    guide = AutoMultivariateNormal(head)
    with torch.no_grad():
        features = trunk(data.x)
    fit = fit_svi(head, guide, features, data.y, steps=3000, learning_rate=0.03)
    model = on_features(trunk, head)
    return from_guide(model, fit.guide, data)


def sparse_process(data: Data, classes: int) -> Posterior:
    model = gaussian_process(inducing_points(data.x), classes, joint_rows=0)
    return from_guide(model, svgp(model, data.x, data.y), data)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "pima-polya-gamma": polya_gamma,
    "pima-laplace": laplace_of_pima,
    "digits-dropout": dropout,
    "digits-last-layer": last_layer_gaussian,
    "pima-svgp": lambda: sparse_process(table("pima"), 2),
    "components-svgp": lambda: sparse_process(components(), 10),
}


def make(name: str, seed: int) -> Posterior:
    """The posterior of this name, reproducibly."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    return POSTERIORS[name]()
