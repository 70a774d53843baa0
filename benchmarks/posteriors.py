"""One posterior of every kind in ``models``: how each is made, on which data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyro
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn

from benchmarks.digits import digits
from benchmarks.main_job import principal_components
from papers import datasets
from pyro_opu import SGLD, PolyaGammaGibbs
from pyro_opu.models.dropout import DropoutGuide
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.laplace import laplace
from pyro_opu.models.last_layer import last_layer_laplace, last_layer_network, on_features
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import (
    bayesian_network,
    convolutional_network,
    dropout_network,
    fit_network,
    perceptron,
)
from pyro_opu.models.sgpmc import sgpmc, svgp
from pyro_opu.models.variational import fit_svi, mean_field

#: Draws that a posterior holds: two independent halves of 500 for the floor.
DRAWS = 1000
SIZES = (64, 128, 128, 10)


class Data(NamedTuple):
    """Rows the posterior is made from, unlabelled transfer inputs, and inputs to judge by."""

    x: Tensor
    y: Tensor
    transfer: Tensor
    test: Tensor


class Posterior(NamedTuple):
    """A model with held draws, or with a guide that draws afresh; several are a mixture."""

    predictives: list[Predictive]
    data: Data

    @property
    def source(self) -> Predictive | list[Predictive]:
        """What ``distill`` takes."""
        return self.predictives[0] if len(self.predictives) == 1 else self.predictives


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


def moons() -> Data:
    train, transfer, test = (datasets.two_moons(n, 0.2, seed=n) for n in (100, 600, 500))
    return Data(train.x, train.y, transfer.x, test.x)


def from_chains(kernel, model, data: Data, warmup: int, chains: int = 2) -> Posterior:
    run = MCMC(kernel, DRAWS // chains, warmup, num_chains=chains, disable_progbar=True)
    run.run(data.x, data.y)
    return Posterior([Predictive(model, run.get_samples())], data)


def from_guide(model, guide, data: Data) -> Posterior:
    return Posterior([drawn_by(guide, model)], data)


def drawn_by(guide, model) -> Predictive:
    return Predictive(model, guide=guide, num_samples=500, return_sites=("obs",))


def nuts(model, data: Data, warmup: int = 300) -> Posterior:
    kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
    return from_chains(kernel, model, data, warmup)


def polya_gamma(name: str, thinned: int = 1) -> Posterior:
    data, model = table(name), logistic_regression(2)
    run = MCMC(PolyaGammaGibbs(model), DRAWS * thinned, 100, disable_progbar=True)
    run.run(data.x, data.y)
    draws = {site: value[::thinned] for site, value in run.get_samples().items()}
    return Posterior([Predictive(model, draws)], data)


def variational(auto: Callable) -> Posterior:
    data, model = table("pima"), logistic_regression(2)
    fit = fit_svi(model, auto(model), data.x, data.y, learning_rate=0.03)
    return from_guide(model, fit.guide, data)


def laplace_of_pima() -> Posterior:
    data = table("pima")
    return from_guide(logistic_regression(2), laplace(data.x, data.y, 2).guide, data)


def dropout() -> Posterior:
    data = images()
    network = fit_network(dropout_network(SIZES), data.x, data.y)
    return from_guide(bayesian_network(network), DropoutGuide(network), data)


def sgld() -> Posterior:
    data, network = images(), perceptron(SIZES)
    model = bayesian_network(network, prior=0.2)
    start = dict(fit_network(network, data.x, data.y, epochs=20).named_parameters())
    kernel = SGLD(model, step_size=2e-4, batch_size=100, thinning=40, initial_params=start)
    return from_chains(kernel, model, data, warmup=250, chains=1)


def mean_field_network(network, data: Data, *, steps: int = 4000) -> Predictive:
    model = bayesian_network(network, prior=0.3)
    fit = fit_svi(
        model, mean_field(model, network), data.x, data.y, steps=steps, batch_size=100, beta=0.1
    )
    return drawn_by(fit.guide, model)


class PatchTransformer(nn.Module):
    """An image ``(N, 8, 8)`` as 16 patches with a learnt place, and a layer of a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(4, width), nn.Parameter(0.1 * torch.randn(16, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unflatten(2, (4, 2)).unflatten(1, (4, 2)).transpose(2, 3).reshape(-1, 16, 4)
        tokens = self.layer(self.embed(patches) + self.place)
        return self.last(tokens.mean(1))


def mean_field_digits() -> Posterior:
    return Posterior([mean_field_network(perceptron(SIZES), images())], images())


def mean_field_convolutions() -> Posterior:
    data = as_images(images())
    return Posterior([mean_field_network(convolutional_network((8, 8), 10), data)], data)


def mean_field_transformer() -> Posterior:
    data = as_images(images())
    return Posterior([mean_field_network(PatchTransformer(), data)], data)


def ensemble() -> Posterior:
    members = [mean_field_network(perceptron(SIZES), images(), steps=2000) for _ in range(4)]
    return Posterior(members, images())


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


def last_layer_laplace_digits() -> Posterior:
    data = images()
    network = fit_network(perceptron(SIZES), data.x, data.y, epochs=50)
    trunk, fit = last_layer_laplace(network, data.x, data.y)
    return from_guide(on_features(trunk, logistic_regression(10)), fit.guide, data)


def sparse_process(data: Data, classes: int, monte_carlo: bool) -> Posterior:
    model = gaussian_process(inducing_points(data.x), classes, joint_rows=0)
    if not monte_carlo:
        return from_guide(model, svgp(model, data.x, data.y), data)
    found = sgpmc(model, data.x, data.y, num_samples=DRAWS // 2, num_chains=2)
    return Posterior([Predictive(model, found.samples)], data)


#: Name -> (inference, data, how it is made).
POSTERIORS: dict[str, tuple[str, str, Callable[[], Posterior]]] = {
    "pima-nuts": (
        "logistic regression, NUTS",
        "Pima",
        lambda: nuts(logistic_regression(2), table("pima")),
    ),
    "pima-polya-gamma": (
        "logistic regression, Polya-Gamma",
        "Pima",
        lambda: polya_gamma("pima"),
    ),
    "pima-mean-field": (
        "logistic regression, mean-field SVI",
        "Pima",
        lambda: variational(AutoNormal),
    ),
    "pima-full-rank": (
        "logistic regression, full-rank SVI",
        "Pima",
        lambda: variational(AutoMultivariateNormal),
    ),
    "pima-laplace": ("logistic regression, Laplace", "Pima", laplace_of_pima),
    "spambase-polya-gamma": (
        "logistic regression, Polya-Gamma",
        "Spambase",
        lambda: polya_gamma("spambase", thinned=10),
    ),
    "components-nuts": (
        "logistic regression, NUTS",
        "digits, 16 components",
        lambda: nuts(logistic_regression(10), components()),
    ),
    "digits-dropout": ("network, MC dropout", "digits", dropout),
    "digits-sgld": ("network, SGLD", "digits", sgld),
    "digits-mean-field": ("network, mean-field SVI", "digits", mean_field_digits),
    "digits-convolutions": (
        "convolutions, mean-field SVI",
        "digits as images",
        mean_field_convolutions,
    ),
    "digits-transformer": (
        "transformer on patches, mean-field SVI",
        "digits as images",
        mean_field_transformer,
    ),
    "digits-last-layer": ("network, last layer Gaussian", "digits", last_layer_gaussian),
    "digits-last-laplace": ("network, last layer Laplace", "digits", last_layer_laplace_digits),
    "digits-ensemble": ("4 networks, mean-field SVI", "digits", ensemble),
    "moons-nuts": (
        "network 2-10-2, NUTS",
        "two moons",
        lambda: nuts(bayesian_network(perceptron((2, 10, 2))), moons()),
    ),
    "pima-sgpmc": (
        "Gaussian process, SGPMC",
        "Pima",
        lambda: sparse_process(table("pima"), 2, monte_carlo=True),
    ),
    "pima-svgp": (
        "Gaussian process, SVGP",
        "Pima",
        lambda: sparse_process(table("pima"), 2, monte_carlo=False),
    ),
    "components-svgp": (
        "Gaussian process, SVGP",
        "digits, 16 components",
        lambda: sparse_process(components(), 10, monte_carlo=False),
    ),
}


def make(name: str, seed: int) -> Posterior:
    """The posterior of this name, reproducibly."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    return POSTERIORS[name][2]()
