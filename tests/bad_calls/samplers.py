"""Bad calls of MCMC kernels and step-size schedules."""

from functools import partial
from typing import Any

from pyro.infer import MCMC

from bad_calls.models import BROKEN, INF, MODEL, MODEL2, NAN, Y2, X, Y
from bad_calls.table import arguments, calls, values
from pyro_opu import samplers
from pyro_opu.models.neural_network import bayesian_network, perceptron

NETWORK = bayesian_network(perceptron((3, 4, 2)))


def run(kernel: Any, *data: Any, **settings: Any) -> None:
    MCMC(kernel, 4, 2, disable_progbar=True, **settings).run(*data)


# fmt: off
values(samplers.Constant, value=[0.0, -1.0, NAN, INF, "1", None])
values(samplers.PolynomialDecay, a=[0.0, -1.0, NAN, "1"])
values(samplers.PolynomialDecay, 1.0, b=[0.0, -1.0, NAN], gamma=[2.0, 0.0, -0.5, NAN])
values(partial(samplers.Halving, every=10), initial=[0.0, -1.0, NAN])
values(samplers.Halving, 1.0, every=[0, -1, 2.5, NAN, "10"])
values(samplers.Halving, 1.0, 10, factor=[0.0, 2.0, -0.5, NAN])
values(samplers.tempered, MODEL, likelihood=[0.0, -1.0, NAN, INF, "1"], prior=[0.0, -1.0, NAN])
values(samplers.tempered, fn=[None, "model"])
values(samplers.SGLD, MODEL, step_size=[-1e-3, 0.0, NAN, INF, "1e-3", None])
SGLD = partial(samplers.SGLD, MODEL, step_size=1e-3)
values(SGLD, thinning=[0, -1, 1.5, "1"], temperature=[-1.0, NAN, INF, "1"],
    rms_decay=[1.0, -0.1, NAN, "0.9"], rms_floor=[0.0, -1.0, NAN, "1"],
    batch_size=[0, -1, 2.5, "10"], preconditioner=["adam", 3], init_strategy=["uniform", 3],
    resume=[3, {}, {"params": {}}], initial_params=[3, {"weight": 1.0}])
values(partial(samplers.SGLD, step_size=1e-3), model=[None, "model"])
SGLD2 = partial(samplers.SGLD, MODEL2, step_size=1e-3)
calls("SGLD", {
    "float labels of three classes": lambda: run(SGLD(), X, Y + 0.5),
    "labels of another length": lambda: run(SGLD(), X, Y[:7]),
    "labels with an axis more": lambda: run(SGLD2(), X, Y2[:, None].float()),
    "labels out of range": lambda: run(SGLD(), X, Y + 1),
    "lists": lambda: run(SGLD(), X.tolist(), Y.tolist()),
    "another start": lambda: run(SGLD(initial_params={"w": X}), X, Y),
    "batch larger than the data": lambda: run(SGLD(batch_size=21), X, Y),
    "steps too large": lambda: run(samplers.SGLD(NETWORK, step_size=1e9), X, Y2),
    "a schedule that falls below zero": lambda: run(SGLD(step_size=lambda t: 2.0 - t), X, Y)})
calls("SGLD.stream", {
    "no draws": lambda: list(SGLD().stream(X, Y, num_samples=-1)),
    "half a draw": lambda: list(SGLD().stream(X, Y, num_samples=1.5)),
    "burn-in below zero": lambda: list(SGLD().stream(X, Y, num_samples=2, warmup_steps=-1))})
GIBBS = partial(samplers.PolyaGammaGibbs, MODEL2)
START = {"initial_params": {"w": X}}
values(samplers.PolyaGammaGibbs, model=[None, "model"])
arguments("PolyaGammaGibbs", lambda *data: run(GIBBS(), *data), {
    "float labels with a part": (X, Y2 + 0.5),
    "labels of another length": (X, Y2[:7].float()),
    "labels with an axis more": (X, Y2[:, None].float()),
    "another type of labels": (X, "labels"),
    "a list": (X.tolist(), Y2.float())})
calls("PolyaGammaGibbs", {
    "another start": lambda: run(GIBBS(), X, Y2.float(), **START),
    "a network": lambda: run(samplers.PolyaGammaGibbs(NETWORK), X, Y2)})
for name, kernel in {"PolyaGammaGibbs": GIBBS, "SGLD": partial(SGLD2, batch_size=10)}.items():
    arguments(name, lambda *data, kernel=kernel: run(kernel(), *data), {
        "labels outside the range": (X, Y2.float() + 1),
        "NaN in the features": (BROKEN, Y2.float()),
        "no labels": (X, None)})
