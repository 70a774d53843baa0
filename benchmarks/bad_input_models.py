"""Bad calls of the models, networks, samplers, schedules, objectives, rivals and data sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_opu
from benchmarks.bad_input import Case
from pyro_opu import datasets, objectives, rivals, samplers
from pyro_opu.export import export
from pyro_opu.export.capture import capture
from pyro_opu.guides.families import LogisticNormalGuide, MixtureGuide
from pyro_opu.models.dropout import DropoutGuide, dropout_l2
from pyro_opu.models.estimator import OnePassClassifier, dropout_teacher, logistic_teacher
from pyro_opu.models.factored import factored
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.kernels import Kernel
from pyro_opu.models.laplace import laplace
from pyro_opu.models.laplace_network import NetworkLaplace, network_laplace, with_trunk
from pyro_opu.models.last_layer import (
    last_layer_laplace,
    last_layer_network,
    last_layer_regression,
    on_features,
    split_last_layer,
)
from pyro_opu.models.likelihoods import classification, regression
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import (
    bayesian_network,
    convolutional_network,
    dropout_network,
    fit_network,
    perceptron,
)
from pyro_opu.models.process_guide import process_guide
from pyro_opu.models.pseudo_observations import transport_to_posterior
from pyro_opu.models.quadrature import gauss_hermite, inverse_link, normal_points
from pyro_opu.models.sgpmc import sgpmc, svgp
from pyro_opu.models.variational import fit_svi, mean_field

NAN, INF = float("nan"), float("inf")
_RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(20, 3, generator=_RANDOM)
Y, Y2 = torch.arange(20) % 3, torch.arange(20) % 2
BROKEN = X.clone()
BROKEN[3, 1] = NAN
WEIGHT = torch.randn(8, 3, 3, generator=_RANDOM)
MODEL, MODEL2 = logistic_regression(3), logistic_regression(2)
NETWORK = perceptron((3, 4, 3))
POSTERIOR = Predictive(MODEL, {"weight": WEIGHT, "bias": torch.zeros(8, 3)})
FEW: dict[str, Any] = {"num_steps": 2, "progress": False, "seed": 0}

CASES: list[Case] = []


def add(name: str, what: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    CASES.append((name, what, partial(call, *args, **kwargs)))


def each(
    name: str, call: Callable[..., Any], argument: str, /, *values: Any, **kwargs: Any
) -> None:
    """One case for every value of one argument."""
    for value in values:
        add(name, f"{argument}={value!r}"[:60], call, **{argument: value}, **kwargs)


def teacher(x: torch.Tensor) -> torch.Tensor:
    """Draws of a teacher of 3 features and 3 classes."""
    return (x @ WEIGHT).softmax(-1)


def student() -> pyro_opu.OnePassPredictive:
    """A student with fresh weights."""
    guide = pyro_opu.PredictiveGuide.for_inputs(X, 3, hidden=(4,))
    return pyro_opu.OnePassPredictive(guide, (3,), 3)


def run(kernel: Any, *data: Any, **settings: Any) -> None:
    MCMC(kernel, 4, 2, disable_progbar=True, **settings).run(*data)


# Models

each("logistic_regression", logistic_regression, "num_classes", 1, 2.5, "3", None)
each("logistic_regression", logistic_regression, "scale", 0.0, -1.0, NAN, INF, "1", num_classes=3)
for _what, _x, _y in (
    ("labels of another length", X, Y[:7]),
    ("one row", X[0], None),
    ("a list", X.tolist(), None),
):
    add("logistic_regression", _what, MODEL, _x, _y)
each("perceptron", perceptron, "sizes", (), (3,), (3, 0), (3, 2.5), (3, -1), 3, "34")
each("dropout_network", dropout_network, "p", 1.0, 1, -0.1, NAN, "0.5", sizes=(3, 4, 3))
each("dropout_network", dropout_network, "sizes", (), (3,), (3, 0, 3))
each("convolutional_network", convolutional_network, "image_shape", (3, 3), (8,), 8, num_outputs=3)
each("convolutional_network", convolutional_network, "num_outputs", 0, 2.5, image_shape=(8, 8))
each("convolutional_network", convolutional_network, "channels", (8,), (0, 8), 8,
     image_shape=(8, 8), num_outputs=3)  # fmt: skip
each("bayesian_network", bayesian_network, "prior", 0.0, -1.0, NAN, INF, "1", None, network=NETWORK)
each("bayesian_network", bayesian_network, "network", nn.ReLU(), torch.relu, None)
each("bayesian_network", bayesian_network, "likelihood", "classification", None, network=NETWORK)
for _what, _x, _y in (("another width", X[:, :2], Y), ("labels of another length", X, Y[:7])):
    add("bayesian_network", _what, bayesian_network(NETWORK), _x, _y)
each("regression", regression, "precision", 0.0, -1.0, NAN, "1")
add("regression", "targets with an axis more", regression(), torch.zeros(3, 1), torch.zeros(3, 1))
add("classification", "labels of another length", classification, torch.zeros(3, 2), Y2[:2])
for _name, _value in (
    ("epochs", 0), ("epochs", 1.5), ("batch_size", 0), ("batch_size", "64"),
    ("learning_rate", 0.0), ("learning_rate", -1.0), ("learning_rate", NAN),
    ("weight_decay", -1.0), ("weight_decay", NAN),
):  # fmt: skip
    add("fit_network", f"{_name}={_value!r}", fit_network, NETWORK, X, Y, **{_name: _value})
for _what, _x, _y in (
    ("NaN", BROKEN, Y),
    ("float labels", X, Y.float()),
    ("labels of another length", X, Y[:7]),
    ("labels out of range", X, Y + 1),
    ("another width", X[:, :2], Y),
    ("a list", X.tolist(), Y),
):
    add("fit_network", _what, fit_network, perceptron((3, 4, 3)), _x, _y, epochs=1)

each("DropoutGuide", DropoutGuide, "network", nn.Linear(3, 3), None)
for _what, _layers in (
    ("a network without dropout", (nn.Linear(3, 4), nn.Tanh())),
    ("a network that drops everything", (nn.Linear(3, 4), nn.Dropout(1.0))),
    ("a network without a weight", (nn.ReLU(),)),
):
    add("DropoutGuide", _what, DropoutGuide, nn.Sequential(*_layers))
each("DropoutGuide", DropoutGuide, "name", None, 3, network=dropout_network((3, 4, 3)))
each("dropout_l2", dropout_l2, "prior_scale", 0.0, -1.0, NAN, INF, "1",
     guide=DropoutGuide(dropout_network((3, 4, 3))))  # fmt: skip
add("dropout_l2", "no dropout guide", dropout_l2, NETWORK, 1.0)

for _what, _x, _y in (
    ("float labels with a part", X, Y + 0.5),
    ("labels of another length", X, Y[:7]),
    ("labels out of range", X, Y + 1),
    ("NaN", BROKEN, Y),
    ("a list of rows", X.tolist(), Y),
    ("a list of labels", X, Y.tolist()),
    ("NaN in the labels", X, torch.where(Y > 1, NAN, Y.float())),
):
    add("laplace", _what, laplace, _x, _y, 3)
each("laplace", laplace, "num_classes", 1, 2.5, "3", x=X, y=Y2)
each("laplace", laplace, "scale", 0.0, -1.0, NAN, "1", x=X, y=Y, num_classes=3)
LAPLACE = laplace(X, Y, 3)
add("Laplace.logits", "another width", LAPLACE.logits, X[:, :2])
add("Laplace.bridge", "NaN", LAPLACE.bridge, BROKEN)
each("NetworkLaplace", NetworkLaplace, "subset", "first", None, network=NETWORK, num_classes=3)
each("NetworkLaplace", NetworkLaplace, "structure", "low rank", network=NETWORK, num_classes=3)
each("NetworkLaplace", NetworkLaplace, "num_classes", 1, 2.5, 5, network=NETWORK)
add("NetworkLaplace", "no network", NetworkLaplace, None, 3)
add("NetworkLaplace.probs", "half a draw", NetworkLaplace(NETWORK, 3).probs, X, 1.5)
add("NetworkLaplace.probs", "no draws", NetworkLaplace(NETWORK, 3).probs, X, 0)
add("NetworkLaplace.logits", "another width", NetworkLaplace(NETWORK, 3).logits, X[:, :2])
each("network_laplace", network_laplace, "prior_precision", 0.0, -1.0, NAN, "best", "validation",
     network=NETWORK, x=X, y=Y)  # fmt: skip
each("network_laplace", network_laplace, "batch_size", 0, 1.5, network=NETWORK, x=X, y=Y)
each("network_laplace", network_laplace, "y", Y + 1, Y.float(), Y[:7], network=NETWORK, x=X)
add("network_laplace", "validation that is no pair", network_laplace, NETWORK, X, Y,
    prior_precision="validation", validation=X)  # fmt: skip
add("with_trunk", "no fit", with_trunk, nn.Identity(), None)
each("split_last_layer", split_last_layer, "network", nn.Linear(3, 3), nn.Sequential(), None)
each("last_layer_network", last_layer_network, "prior", 0.0, NAN, network=NETWORK)
add("on_features", "no trunk", on_features, None, MODEL)
add("on_features", "no model", on_features, nn.Identity(), None)
ONE = perceptron((3, 4, 1))
each("last_layer_regression", last_layer_regression, "precision", 0.0, NAN, INF, "1",
     network=ONE, x=X, y=X[:, 0])  # fmt: skip
each("last_layer_regression", last_layer_regression, "scale", 0.0, -1.0, NAN,
     network=ONE, x=X, y=X[:, 0])  # fmt: skip
each("last_layer_regression", last_layer_regression, "y", X[:7, 0], X, BROKEN[:, 1],
     X[:, 0].tolist(), network=ONE, x=X)  # fmt: skip
each("last_layer_laplace", last_layer_laplace, "y", Y + 1, Y[:7], Y.tolist(), network=NETWORK, x=X)

each("gaussian_process", gaussian_process, "num_classes", 1, 2.5, "2", inducing=X[:4])
each("gaussian_process", gaussian_process, "link", "tanh", None, inducing=X[:4], num_classes=2)
each("gaussian_process", gaussian_process, "constant", -1.0, NAN, "1", inducing=X[:4],
     num_classes=2)  # fmt: skip
each("gaussian_process", gaussian_process, "joint_rows", -1, 1.5, "8", inducing=X[:4],
     num_classes=2)  # fmt: skip
each("gaussian_process", gaussian_process, "ard", "no", None, inducing=X[:4], num_classes=2)
each("gaussian_process", gaussian_process, "inducing", BROKEN, X[0], X.tolist(), X.half(),
     num_classes=2)  # fmt: skip
each("inducing_points", inducing_points, "share", 0.0, 1.5, NAN, "0.1", x=X)
each("inducing_points", inducing_points, "seed", 1.5, "0", -1, x=X)
GP = gaussian_process(X[:4], 2)
add("SparseGaussianProcess", "another width", GP, X[:, :2])
add("SparseGaussianProcess", "labels of another length", GP, X, Y2[:7].float())
for _name, _value in (
    ("num_steps", -1), ("num_steps", 1.5), ("batch_size", 0), ("batch_size", 1.5),
    ("learning_rate", 0.0), ("learning_rate", NAN), ("learning_rate", "1"), ("transport", 3),
):  # fmt: skip
    _fixed = {"num_steps": 2, _name: _value}
    add("svgp", f"{_name}={_value!r}", svgp, GP, X, Y2.float(), **_fixed)
for _name, _value in (
    ("num_samples", 0), ("num_samples", 1.5), ("warmup_steps", -1), ("warmup_steps", 1.5),
    ("num_chains", 0), ("num_chains", "2"), ("trajectory_length", 0.0),
    ("trajectory_length", NAN), ("target_accept_prob", 1.0), ("target_accept_prob", 0.0),
):  # fmt: skip
    _fixed = {"num_samples": 2, "warmup_steps": 1, _name: _value}
    add("sgpmc", f"{_name}={_value!r}", sgpmc, GP, X, Y2.float(), **_fixed)
add("sgpmc", "NaN", sgpmc, GP, BROKEN, Y2.float())
add("svgp", "no model", svgp, None, X, Y2.float())
add("transport_to_posterior", "labels out of range", transport_to_posterior, GP, X, Y.float())
add("factored", "no samples", factored, GP, {})
add("process_guide", "no samples", process_guide, GP, {}, X)
SAMPLES = {name: torch.ones(5) for name in GP.kernel.names} | {"v": torch.randn(5, 4)}
each("process_guide", process_guide, "rank", 0, 1.5, "96", model=GP, samples=SAMPLES, x=X)
each("process_guide", process_guide, "hidden", (), (0,), 8, model=GP, samples=SAMPLES, x=X)
each("Kernel", Kernel, "features", 0, 1.5, "3")
each("Kernel", Kernel, "constant", -1.0, NAN, "1", features=3)
each("gauss_hermite", gauss_hermite, "num_nodes", 0, 1.5)
add("normal_points", "no points", normal_points, 0, 3)
add("normal_points", "no dimensions", normal_points, 8, 0)
add("inverse_link", "no such link", inverse_link, torch.zeros(3), "tanh")

GUIDE = AutoNormal(MODEL)
for _name, _value in (
    ("steps", 0), ("steps", 1.5), ("batch_size", 0), ("batch_size", 21), ("batch_size", 1.5),
    ("learning_rate", 0.0), ("learning_rate", NAN), ("learning_rate", "1"), ("final_rate", 0.0),
    ("final_rate", NAN), ("beta", -1.0), ("beta", NAN), ("num_particles", 0),
    ("num_particles", 1.5), ("seed", 1.5), ("seed", "0"),
):  # fmt: skip
    add(
        "fit_svi", f"{_name}={_value!r}", fit_svi, MODEL, GUIDE, X, Y, **{"steps": 2, _name: _value}
    )
for _what, _x, _y in (
    ("labels of another length", X, Y[:7]),
    ("NaN", BROKEN, Y),
    ("labels out of range", X, Y + 1),
    ("a list", X.tolist(), Y),
):
    add("fit_svi", _what, fit_svi, MODEL, AutoNormal(MODEL), _x, _y, steps=2)
add("fit_svi", "no guide", fit_svi, MODEL, None, X, Y, steps=2)
each("mean_field", mean_field, "scale", 0.0, -1.0, NAN, "1", model=MODEL)
add("mean_field", "a start that is none", mean_field, MODEL, 3)

add("dropout_teacher", "labels of another length", dropout_teacher, X, Y[:7], epochs=1)
each("dropout_teacher", dropout_teacher, "p", 1.0, NAN, x=X, y=Y)
each("logistic_teacher", logistic_teacher, "num_draws", 0, 1.5, x=X, y=Y)
each("logistic_teacher", logistic_teacher, "scale", 0.0, NAN, x=X, y=Y)
add("logistic_teacher", "float labels", logistic_teacher, X, Y + 0.5)
for _what, _settings in (
    ("no such teacher", {"teacher": "forest"}),
    ("a teacher that is a number", {"teacher": 3}),
    ("no such loss", {"teacher": partial(dropout_teacher, epochs=1), "loss": "kl"}),
    ("no steps", {"teacher": partial(dropout_teacher, epochs=1), "num_steps": 0}),
):
    add("OnePassClassifier.fit", _what,
        lambda given: OnePassClassifier(**given).fit(X.numpy(), Y.numpy()), _settings)  # fmt: skip
add("OnePassClassifier.fit", "three rows",
    lambda: OnePassClassifier().fit(X[:3].numpy(), Y[:3].numpy()))  # fmt: skip

# Samplers and schedules

each("Constant", samplers.Constant, "value", 0.0, -1.0, NAN, INF, "1", None)
each("PolynomialDecay", samplers.PolynomialDecay, "a", 0.0, -1.0, NAN, "1")
each("PolynomialDecay", samplers.PolynomialDecay, "b", 0.0, -1.0, NAN, a=1.0)
each("PolynomialDecay", samplers.PolynomialDecay, "gamma", 2.0, 0.0, -0.5, NAN, a=1.0)
each("Halving", samplers.Halving, "initial", 0.0, -1.0, NAN, every=10)
each("Halving", samplers.Halving, "every", 0, -1, 2.5, NAN, "10", initial=1.0)
each("Halving", samplers.Halving, "factor", 0.0, 2.0, -0.5, NAN, initial=1.0, every=10)
each("tempered", samplers.tempered, "likelihood", 0.0, -1.0, NAN, INF, "1", fn=MODEL)
each("tempered", samplers.tempered, "prior", 0.0, -1.0, NAN, fn=MODEL)
each("tempered", samplers.tempered, "fn", None, "model")
SGLD = partial(samplers.SGLD, MODEL)
each("SGLD", SGLD, "step_size", -1e-3, NAN, INF, "1e-3", None)
each("SGLD", SGLD, "thinning", 0, -1, 1.5, "1", step_size=1e-3)
each("SGLD", SGLD, "temperature", -1.0, NAN, INF, "1", step_size=1e-3)
each("SGLD", SGLD, "rms_decay", 1.0, -0.1, NAN, "0.9", step_size=1e-3)
each("SGLD", SGLD, "rms_floor", 0.0, -1.0, NAN, "1", step_size=1e-3)
each("SGLD", SGLD, "batch_size", 0, -1, 2.5, "10", step_size=1e-3)
each("SGLD", SGLD, "preconditioner", "adam", 3, step_size=1e-3)
each("SGLD", SGLD, "init_strategy", "uniform", 3, step_size=1e-3)
each("SGLD", SGLD, "resume", 3, {}, {"params": {}}, step_size=1e-3)
each("SGLD", SGLD, "initial_params", 3, {"weight": 1.0}, step_size=1e-3)
each("SGLD", samplers.SGLD, "model", None, "model", step_size=1e-3)
add("SGLD", "float labels of three classes", run, SGLD(step_size=1e-3), X, Y + 0.5)
add("SGLD", "labels of another length", run, SGLD(step_size=1e-3), X, Y[:7])
add("SGLD", "labels with an axis more", run, samplers.SGLD(MODEL2, step_size=1e-3), X,
    Y2[:, None].float())  # fmt: skip
add("SGLD", "labels out of range", run, SGLD(step_size=1e-3), X, Y + 1)
add("SGLD", "a schedule that falls below zero", run, SGLD(step_size=lambda t: 1e-3 * (2 - t)), X, Y)
add("SGLD", "lists", run, SGLD(step_size=1e-3), X.tolist(), Y.tolist())
add("SGLD", "another start", run, SGLD(step_size=1e-3, initial_params={"w": X}), X, Y)
add("SGLD.stream", "no draws", lambda: list(SGLD(step_size=1e-3).stream(X, Y, num_samples=-1)))
add("SGLD.stream", "burn-in below zero",
    lambda: list(SGLD(step_size=1e-3).stream(X, Y, num_samples=2, warmup_steps=-1)))  # fmt: skip
add("SGLD.stream", "half a draw", lambda: list(SGLD(step_size=1e-3).stream(X, Y, num_samples=1.5)))
each("PolyaGammaGibbs", samplers.PolyaGammaGibbs, "model", None, "model")
GIBBS = partial(samplers.PolyaGammaGibbs, MODEL2)
for _what, _x, _y in (
    ("float labels with a part", X, Y2 + 0.5),
    ("labels of another length", X, Y2[:7].float()),
    ("labels with an axis more", X, Y2[:, None].float()),
    ("another type of labels", X, "labels"),
    ("a list", X.tolist(), Y2.float()),
):
    add("PolyaGammaGibbs", _what, lambda x, y: run(GIBBS(), x, y), _x, _y)
add("PolyaGammaGibbs", "another start",
    lambda: run(GIBBS(), X, Y2.float(), initial_params={"w": X}))  # fmt: skip

# Objectives

each("WassersteinELBO", objectives.WassersteinELBO, "beta", -1.0, NAN, "1")
each("WassersteinELBO", objectives.WassersteinELBO, "likelihood", -1.0, NAN)
each("WassersteinELBO", objectives.WassersteinELBO, "penalty", -1.0, NAN)
each("WassersteinELBO", objectives.WassersteinELBO, "ground", "l3", None)
each("WassersteinELBO", objectives.WassersteinELBO, "num_samples", 0, 1, 2.5)
each("WassersteinELBO", objectives.WassersteinELBO, "critic_steps", 0, 1.5)
each("WassersteinELBO", objectives.WassersteinELBO, "critic_warmup", -1, 1.5)
each("WassersteinELBO", objectives.WassersteinELBO, "critic_learning_rate", 0.0, NAN)
each("WassersteinELBO", objectives.WassersteinELBO, "critic", "network", 3)
each("WassersteinELBO", objectives.WassersteinELBO, "residual", "no", None)
each("EnergyDistance", objectives.EnergyDistance, "num_samples", 0, 1, 2.5, "64")
each("EnergyDistance", objectives.EnergyDistance, "likelihood", -1.0, NAN)
each("MomentMatching", objectives.MomentMatching, "weights", "equal", None)
each("DirichletLikelihood", objectives.DirichletLikelihood, "smoothing", -0.1, 1.0, NAN, "0")
each("EnsembleDistribution", objectives.EnsembleDistribution, "temperature", 0.5, NAN, "10")
each("EnsembleDistribution", objectives.EnsembleDistribution, "smoothing", -0.1, 1.0, NAN)
each("MetaCritic", objectives.MetaCritic, "num_classes", 1, 2.5, x=X)
each("MetaCritic", objectives.MetaCritic, "widths", (0,), 8, x=X, num_classes=3)
each("MetaCritic", objectives.MetaCritic, "hidden", (), (0,), 8, x=X, num_classes=3)
each("MetaCritic", objectives.MetaCritic, "generate", "some", 3, x=X, num_classes=3)
each("MetaCritic", objectives.MetaCritic, "x", X[0], X.tolist(), BROKEN, num_classes=3)
each("as_objective", objectives.as_objective, "loss", "kl", 3, objectives.EnergyDistance)

# Guides and networks

each("MixtureGuide.for_inputs", MixtureGuide.for_inputs, "x", X.tolist(), BROKEN, X[0],
     num_classes=3)  # fmt: skip
each("LogisticNormalGuide", partial(LogisticNormalGuide, nn.Identity(), 3, 3), "rank", 1.5)
add("LogisticNormalGuide", "no trunk", LogisticNormalGuide, None, 3, 3)
for _guide in (MixtureGuide, LogisticNormalGuide):
    add(_guide.__name__, "no features", _guide, nn.Identity(), 0, 3)
    add(_guide.__name__, "one class", _guide, nn.Identity(), 3, 1)

# Rivals

_DARK = partial(rivals.dark_knowledge, teacher, **FEW)
each("dark_knowledge", _DARK, "form", "mean", 3, x=X)
each("dark_knowledge", _DARK, "batch_size", 0, 1.5, x=X)
each("dark_knowledge", _DARK, "learning_rate", 0.0, -1.0, NAN, "1", None, x=X)
each("dark_knowledge", _DARK, "prior_precision", -1.0, NAN, INF, "1", x=X)
each("dark_knowledge", _DARK, "optimizer", "adam", None, x=X)
each("dark_knowledge", _DARK, "guide", "forest", 3, nn.Linear(3, 3), x=X)
each("dark_knowledge", _DARK, "transfer", "jitter", 3, teacher, x=X)
each("dark_knowledge", _DARK, "x", BROKEN, X.tolist(), X[:0])
each("dark_knowledge", partial(rivals.dark_knowledge, teacher, X, progress=False), "num_steps",
     0, 1.5)  # fmt: skip
each("dark_knowledge", partial(rivals.dark_knowledge, teacher, X, num_steps=2), "progress", "no")
each("dark_knowledge", partial(rivals.dark_knowledge, x=X, **FEW), "source", None, 3)
_ONLINE = partial(rivals.online_dark_knowledge, SGLD(step_size=1e-3), num_draws=2, progress=False)
each("online_dark_knowledge", _ONLINE, "data", X, None, x=X)
add("online_dark_knowledge", "data without labels", _ONLINE, (X,), X)
add("online_dark_knowledge", "labels out of range", _ONLINE, (X, Y + 1), X)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X), "warmup_steps", -1, 1.5)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X), "batch_size", 0, 1.5)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X, warmup_steps=0), "num_samples", 0, 1.5)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X, warmup_steps=0), "optimizer", "adam")
add("online_dark_knowledge", "another kernel", rivals.online_dark_knowledge, GIBBS(), (X, Y), X)
_ENDD = partial(rivals.endd, teacher, X, num_steps=2, progress=False)
each("endd", _ENDD, "temperature", 0.5, NAN, "10")
each("endd", _ENDD, "smoothing", -0.1, 1.0, NAN)
each("endd", _ENDD, "learning_rate", 0.0, NAN)
each("endd", _ENDD, "batch_size", 0, "256")
each("endd", _ENDD, "seed", 1.5, "0")
_PROXY = partial(rivals.proxy_dirichlet, teacher, X, progress=False)
each("proxy_dirichlet", _PROXY, "num_steps", 0, 1.5)
each("proxy_dirichlet", partial(_PROXY, num_steps=2), "num_draws", 0, 1, 2.5)
_PRIOR = partial(rivals.prior_network, teacher, outside=9 * X, **FEW)
each("prior_network", _PRIOR, "concentration", 0.0, NAN, INF, "1", x=X)
each("prior_network", _PRIOR, "outside_weight", -1.0, NAN, "1", x=X)
each("prior_network", _PRIOR, "form", "both", 3, x=X)
each("prior_network", _PRIOR, "learning_rate", 0.0, NAN, INF, "1", x=X)
each("prior_network", _PRIOR, "y", Y + 1, Y.float(), Y[:7], Y.tolist(), x=X)
each("prior_network", _PRIOR, "hidden", (0,), 8, "8", x=X)
each("prior_network", _PRIOR, "x", X[:1], BROKEN, X[:, :2])
_COMPACT = partial(rivals.compact_approx, POSTERIOR, X, progress=False)
each("compact_approx", _COMPACT, "size", 0, 9, 1.5, "5")
each("compact_approx", partial(_COMPACT, size=2), "method", "best", 3, None)
each("compact_approx", partial(_COMPACT, size=2), "pool", 0, 99, 1.5)
each("compact_approx", partial(_COMPACT, size=2), "tries", 0, 1.5)
each("compact_approx", partial(_COMPACT, size=2), "return_sites", ["label"], "obs", 3)


def load_compact(source: Any, **settings: Any) -> Any:
    """A compact student is written, and read with another source."""
    path = Path("student")
    try:
        rivals.compact_approx(POSTERIOR, X, size=2, tries=9, progress=False).save(path)
        return rivals.load_compact(path, source, **settings)
    finally:
        path.unlink(missing_ok=True)


def doubled(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """A model with the latents of the logistic regression, and twice its classes."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    logits = (x @ weight + bias).repeat(1, 2)
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


for _what, _source in (
    ("a model of other classes", Predictive(doubled, num_samples=1)),
    ("a model with other latents", Predictive(bayesian_network(NETWORK), num_samples=1)),
    ("a model of two classes", Predictive(MODEL2, num_samples=1)),
    ("an ensemble", [NETWORK, NETWORK]),
    ("a function", teacher),
    ("nothing", None),
):
    add("load_compact", _what, load_compact, _source)
add("load_compact", "no device", load_compact, POSTERIOR, device="tpu9")
add("load_compact", "a missing file", rivals.load_compact, "missing", POSTERIOR)
_BRIDGE = partial(rivals.laplace_bridge_predictive, progress=False)
each("laplace_bridge_predictive", partial(_BRIDGE, POSTERIOR, X), "num_draws", 0, 1, 1.5, 99)
each("laplace_bridge_predictive", partial(_BRIDGE, POSTERIOR, X), "normalize", "no", None)
each("laplace_bridge_predictive", partial(_BRIDGE, POSTERIOR), "x", BROKEN, X.tolist(), X[:, :2])
each("laplace_bridge_predictive", partial(_BRIDGE, x=X), "source", None, 3)

# Data sets

each("datasets.split", partial(datasets.split, datasets.toy_classification()), "test",
     0.0, 1.0, 20, NAN, "0.1", True, None)  # fmt: skip
each("datasets.split", partial(datasets.split, datasets.toy_classification()), "seed", 1.5, "0")
each("datasets.split", datasets.split, "dataset", X, None)
each("datasets.two_moons", datasets.two_moons, "n", 1, 2.5, "200")
each("datasets.two_moons", datasets.two_moons, "noise", -0.1, NAN, "0.1")
each("datasets.two_moons", datasets.two_moons, "seed", 1.5, "0", -1)
each("datasets.toy_regression", datasets.toy_regression, "n", 0, 2.5, "20")
each("datasets.toy_regression", datasets.toy_regression, "seed", 1.5, "0")
each("datasets.toy_classification", datasets.toy_classification, "seed", 1.5, "0")
each("datasets.semeion", datasets.semeion, "size", 0, 2.5, "16")
each("datasets.semeion", datasets.semeion, "pad", -1, 1.5)
each("datasets.pima", datasets.pima, "missing", "mean", 3)
each("datasets.mnist", datasets.mnist, "root", "nowhere", 3, download=False)
each("datasets.mnist", datasets.mnist, "train", "test", root="nowhere")
each("datasets.standardize", datasets.standardize, "train", X.tolist(), X[:0], Y, X[0])
add("datasets.standardize", "other columns", datasets.standardize, X, X[:, :2])
add("datasets.l2_columns", "a list", datasets.l2_columns, X, X.tolist())
add("Dataset", "labels of another length", datasets.Dataset, X, Y[:7], "mine")
add("Dataset", "a list", datasets.Dataset, X.tolist(), Y, "mine")
add("Dataset", "names of other columns", datasets.Dataset, X, Y, "mine", ("a",))
add("Dataset.take", "rows that are not there", datasets.toy_classification().take,
    torch.tensor([99]))  # fmt: skip

# Capture and export

add("capture", "no student", capture, NETWORK, X)
add("capture", "another width", lambda: student().capture(X[:, :2]))
add("capture", "a list", lambda: student().capture(X.tolist()))
add("capture", "another precision", lambda: student().capture(X, precision=torch.float64))
add("capture", "a precision in words", lambda: student().capture(X, precision="half"))
add("export", "another format", lambda: student().export("student.bin"))
add("export", "a folder that is not there", lambda: student().export("nowhere/student.pt2"))
add("export", "no student", export, NETWORK, "student.pt2", X)
add("export", "no such output", lambda: student().export("student.pt2", outputs=["doubt"]))
add("export", "outputs that are a number", lambda: student().export("student.pt2", outputs=3))
add("export", "an example of another width",
    lambda: student().export("student.pt2", example_x=X[:, :2]))  # fmt: skip
add("export", "a path that is a number", lambda: student().export(3))
