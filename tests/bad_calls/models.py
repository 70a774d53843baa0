"""Bad calls of models, networks and what fits them."""

from functools import partial

import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from bad_calls.table import arguments, calls, values
from pyro_opu.interop.scikit_learn import OnePassClassifier, dropout_teacher, logistic_teacher
from pyro_opu.models.dropout import DropoutGuide, dropout_l2
from pyro_opu.models.factored import factored
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.kernels import Kernel
from pyro_opu.models.laplace import laplace
from pyro_opu.models.laplace_network import NetworkLaplace
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
FLOAT = Y2.float()
BROKEN = X.clone()
BROKEN[3, 1] = NAN
MODEL, MODEL2 = logistic_regression(3), logistic_regression(2)
NETWORK, ONE = perceptron((3, 4, 3)), perceptron((3, 4, 1))
#: Inputs and labels that do not go together.
DATA = {
    "NaN": (BROKEN, Y),
    "labels of another length": (X, Y[:7]),
    "labels out of range": (X, Y + 1),
    "a list": (X.tolist(), Y),
}
#: Labels, and scales or precisions, that none may be.
LABELS = {"out of range": Y + 1, "float": Y.float(), "of another length": Y[:7]}
SCALES = [0.0, -1.0, NAN, "1"]

# fmt: off
values(logistic_regression, num_classes=[1, 2.5, "3", None])
values(logistic_regression, 3, scale=[*SCALES, INF])
arguments("logistic_regression", MODEL, {
    "labels of another length": (X, Y[:7]),
    "one row": (X[0], None),
    "a list": (X.tolist(), None)})
values(perceptron, sizes=[(), (3,), (3, 0), (3, 2.5), (3, -1), 3, "34"])
values(dropout_network, (3, 4, 3), p=[1.0, 1, -0.1, NAN, "0.5"])
values(dropout_network, sizes=[(), (3,), (3, 0, 3)])
CONVOLUTIONAL = partial(convolutional_network, image_shape=(8, 8))
values("convolutional_network", CONVOLUTIONAL, num_outputs=[0, 2.5])
values("convolutional_network", partial(CONVOLUTIONAL, num_outputs=3), channels=[(8,), (0, 8), 8])
values(partial(convolutional_network, num_outputs=3), image_shape=[(3, 3), (8,), 8])
values(bayesian_network, NETWORK, prior=[*SCALES, INF, None], likelihood=["classification", None])
values(bayesian_network,
    network={"an activation": nn.ReLU(), "a function": torch.relu, "None": None})
arguments("bayesian_network", bayesian_network(NETWORK), {
    "another width": (X[:, :2], Y),
    "labels of another length": (X, Y[:7])})
values(regression, precision=SCALES)
COLUMN = torch.zeros(3, 1)
arguments("regression", regression(), {"targets with an axis more": (COLUMN, COLUMN)})
arguments(classification, {"labels of another length": (torch.zeros(3, 2), Y2[:2])})
values(fit_network, NETWORK, X, Y, epochs=[0, 1.5], batch_size=[0, "64"],
    learning_rate=[0.0, -1.0, NAN], weight_decay=[-1.0, NAN])
arguments("fit_network", lambda x, y: fit_network(perceptron((3, 4, 3)), x, y, epochs=1), {
    **DATA,
    "float labels": (X, Y.float()),
    "another width": (X[:, :2], Y)})

values(DropoutGuide, network=[nn.Linear(3, 3), None])
values(DropoutGuide, dropout_network((3, 4, 3)), name=[None, 3])
arguments("DropoutGuide", lambda *layers: DropoutGuide(nn.Sequential(*layers)), {
    "a network without dropout": (nn.Linear(3, 4), nn.Tanh()),
    "a network that drops everything": (nn.Linear(3, 4), nn.Dropout(1.0)),
    "a network without a weight": (nn.ReLU(),)})
DROPOUT = DropoutGuide(dropout_network((3, 4, 3)))
values(dropout_l2, DROPOUT, prior_scale=[*SCALES, INF])
arguments(dropout_l2, {"no dropout guide": (NETWORK, 1.0)})

arguments(laplace, {
    **{what: (*data, 3) for what, data in DATA.items()},
    "float labels with a part": (X, Y + 0.5, 3),
    "a list of labels": (X, Y.tolist(), 3),
    "NaN in the labels": (X, torch.where(Y > 1, NAN, Y.float()), 3),
    "labels outside the range": (X, Y2 + 1, 2)})
values(laplace, X, Y2, num_classes=[1, 2.5, "3"])
values(laplace, X, Y, 3, scale=SCALES)
LAPLACE = laplace(X, Y, 3)
arguments(LAPLACE.logits, {"another width": (X[:, :2],)})
arguments(LAPLACE.bridge, {"NaN": (BROKEN,)})
arguments(NetworkLaplace, {"no fit": (None,), "a network": (NETWORK,)})
values(split_last_layer, network=[nn.Linear(3, 3), nn.Sequential(), None])
values(last_layer_network, NETWORK, prior=[0.0, NAN])
arguments(on_features, {"no trunk": (None, MODEL), "no model": (nn.Identity(), None)})
arguments(last_layer_regression, {"three outputs": (NETWORK, X, X[:, 0])})
values(last_layer_regression, ONE, X, X[:, 0], precision=[0.0, NAN, INF, "1"],
    scale=[0.0, -1.0, NAN])
values(last_layer_regression, ONE, X,
    y={"of another length": X[:7, 0], "with an axis more": X, "with NaN": BROKEN[:, 1],
        "a list": X[:, 0].tolist()})
values(last_layer_laplace, NETWORK, X,
    y={"out of range": Y + 1, "of another length": Y[:7], "a list": Y.tolist()})

PROCESS = partial(gaussian_process, X[:4])
values("gaussian_process", PROCESS, num_classes=[1, 2.5, "2"])
values("gaussian_process", partial(PROCESS, 2), link=["tanh", None], constant=[-1.0, NAN, "1"],
    joint_rows=[-1, 1.5, "8"], ard=["no", None])
values(partial(gaussian_process, num_classes=2),
    inducing={"NaN": BROKEN, "one row": X[0], "an axis more": X[..., None],
        "a list": X.tolist(), "half": X.half()})
values(inducing_points, X, share=[0.0, 1.5, NAN, "0.1"], seed=[1.5, "0", -1])
GP = gaussian_process(X[:4], 2)
arguments("SparseGaussianProcess", GP, {
    "another width": (X[:, :2],),
    "another precision": (X.double(),),
    "labels of -1": (X, 2 * FLOAT - 1),
    "labels of another length": (X, FLOAT[:7])})
values("svgp", lambda **given: svgp(GP, X, FLOAT, **{"num_steps": 2, **given}), num_steps=[-1, 1.5],
    batch_size=[0, 1.5], learning_rate=[0.0, NAN, "1"])
values("sgpmc",
    lambda **given: sgpmc(GP, X, FLOAT, **{"num_samples": 2, "warmup_steps": 1, **given}),
    num_samples=[0, 1.5], warmup_steps=[-1, 1.5], num_chains=[0, "2"], trajectory_length=[0.0, NAN],
    target_accept_prob=[1.0, 0.0])
arguments(sgpmc, {"NaN": (GP, BROKEN, FLOAT)})
arguments(svgp, {
    "one class": (GP, X, torch.ones(20)),
    "fewer rows than inducing inputs": (GP, X[:3], FLOAT[:3]),
    "NaN in the features": (GP, BROKEN, FLOAT),
    "no model": (None, X, FLOAT)})
arguments(transport_to_posterior, {"labels out of range": (GP, X, Y.float())})
arguments(factored, {"no samples": (GP, {})})
arguments(process_guide, {"no samples": (GP, {}, X)})
SAMPLES = {name: torch.ones(5) for name in GP.kernel.names} | {"v": torch.randn(5, 4)}
arguments(process_guide, {"NaN": (GP, SAMPLES, BROKEN)})
values(process_guide, GP, SAMPLES, X, rank=[0, 1.5, "96"], hidden=[(), (0,), 8])
values(Kernel, features=[0, 1.5, "3"])
values(Kernel, 3, constant=[-1.0, NAN, "1"])
values(gauss_hermite, num_nodes=[0, 1.5])
arguments(normal_points, {"no points": (0, 3), "no dimensions": (8, 0)})
arguments(inverse_link, {"no such link": (torch.zeros(3), "tanh")})

GUIDE = AutoNormal(MODEL)
values("fit_svi", lambda **given: fit_svi(MODEL, GUIDE, X, Y, **{"steps": 2, **given}),
    steps=[0, 1.5], batch_size=[0, 21, 1.5], learning_rate=[0.0, NAN, "1", 1e38],
    final_rate=[0.0, NAN], beta=[-1.0, NAN], num_particles=[0, 1.5], seed=[1.5, "0"])
arguments("fit_svi", lambda x, y: fit_svi(MODEL, AutoNormal(MODEL), x, y, steps=2), DATA)
calls("fit_svi", {"no guide": lambda: fit_svi(MODEL, None, X, Y, steps=2)})
values(mean_field, MODEL, scale=SCALES)
arguments(mean_field, {"a start that is none": (MODEL, 3)})

calls("dropout_teacher", {"labels of another length": lambda: dropout_teacher(X, Y[:7], epochs=1)})
values(dropout_teacher, X, Y, p=[1.0, NAN])
values(logistic_teacher, X, Y, num_draws=[0, 1.5], scale=[0.0, NAN])
arguments(logistic_teacher, {"float labels": (X, Y + 0.5)})
FEW = partial(dropout_teacher, epochs=1)
values("OnePassClassifier.fit",
    lambda **given: OnePassClassifier(**{"teacher": FEW, **given}).fit(X.numpy(), Y.numpy()),
    teacher=["forest", 3], guide=["beta"], loss=["kl"], num_steps=[0])
calls("OnePassClassifier.fit", {
    "three rows": lambda: OnePassClassifier().fit(X[:3].numpy(), Y[:3].numpy()),
    "a teacher of two classes": lambda: OnePassClassifier(
        teacher=lambda x, y: lambda x: torch.full((9, len(x), 2), 0.5)).fit(X.numpy(), Y.numpy())})
