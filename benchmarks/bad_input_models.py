"""Bad calls of models, networks and what fits them, for ``bad_input``."""

from __future__ import annotations

from functools import partial

import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from benchmarks.bad_input import Cases
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
X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y, Y2 = torch.arange(20) % 3, torch.arange(20) % 2
BROKEN = X.clone()
BROKEN[3, 1] = NAN
MODEL, MODEL2 = logistic_regression(3), logistic_regression(2)
NETWORK = perceptron((3, 4, 3))

CASES = Cases()
add, each = CASES.add, CASES.each

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
add("laplace", "labels outside the range", laplace, X, Y2 + 1, 2)
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
    ("learning_rate", 0.0), ("learning_rate", NAN), ("learning_rate", "1"),
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
add("svgp", "one class", svgp, GP, X, torch.ones(20))
add("svgp", "NaN in the features", svgp, GP, BROKEN, Y2.float())
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
