"""Bad calls of the kernels and of what models are fitted by, for ``bad_input``."""

from __future__ import annotations

from functools import partial

import torch
from pyro.infer import MCMC

from benchmarks.bad_input import Case
from pyro_opu import SGLD, PolyaGammaGibbs, datasets
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.models.laplace import laplace
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.models.sgpmc import svgp

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y, MODEL = (X[:, 0] > 0).float(), logistic_regression(2)
BROKEN = X.clone()
BROKEN[3, 1] = float("nan")
NETWORK = bayesian_network(perceptron((3, 4, 2)))


def run(kernel, x: torch.Tensor, y: torch.Tensor | None) -> None:
    MCMC(kernel, 4, 2, disable_progbar=True).run(x, y)


def sgld(model=MODEL, **settings):
    return SGLD(model, **{"step_size": 1e-3, "batch_size": 10, **settings})


CASES: list[Case] = [
    ("PolyaGammaGibbs", "a network", lambda: run(PolyaGammaGibbs(NETWORK), X, Y.long())),
    ("SGLD", "batch larger than the data", lambda: run(sgld(batch_size=21), X, Y)),
    ("SGLD", "a step of zero", lambda: sgld(step_size=0.0)),
    ("SGLD", "steps too large", lambda: run(SGLD(NETWORK, step_size=1e9), X, Y.long())),
    ("laplace", "labels outside the range", lambda: laplace(X, Y + 1, 2)),
    ("svgp", "one class", lambda: svgp(gaussian_process(X[:4], 2), X, torch.ones(20))),
    ("svgp", "NaN in the features", lambda: svgp(gaussian_process(X[:4], 2), BROKEN, Y)),
    (
        "datasets.kmnist",
        "not there",
        lambda: datasets.kmnist(train=True, root="nowhere", download=False),
    ),
    ("datasets.standardize", "columns with NaN", lambda: datasets.standardize(BROKEN)),
]
for _name, _kernel in {"PolyaGammaGibbs": lambda: PolyaGammaGibbs(MODEL), "SGLD": sgld}.items():
    for _what, _x, _y in [
        ("labels outside the range", X, Y + 1),
        ("NaN in the features", BROKEN, Y),
        ("no labels", X, None),
    ]:
        CASES.append((_name, _what, partial(lambda k, x, y: run(k(), x, y), _kernel, _x, _y)))
