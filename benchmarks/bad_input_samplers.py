"""Bad calls of MCMC kernels and step-size schedules, for ``bad_input``."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyro.infer import MCMC

from benchmarks.bad_input import Cases
from benchmarks.bad_input_models import BROKEN, INF, MODEL, MODEL2, NAN, Y2, X, Y
from pyro_opu import samplers
from pyro_opu.models.neural_network import bayesian_network, perceptron

NETWORK = bayesian_network(perceptron((3, 4, 2)))

CASES = Cases()
add, each = CASES.add, CASES.each


def run(kernel: Any, *data: Any, **settings: Any) -> None:
    MCMC(kernel, 4, 2, disable_progbar=True, **settings).run(*data)


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
add("PolyaGammaGibbs", "a network", lambda: run(samplers.PolyaGammaGibbs(NETWORK), X, Y2))
add("SGLD", "a step of zero", SGLD, step_size=0.0)
add("SGLD", "batch larger than the data", lambda: run(SGLD(step_size=1e-3, batch_size=21), X, Y))
add("SGLD", "steps too large", lambda: run(samplers.SGLD(NETWORK, step_size=1e9), X, Y2))
SGLD2 = partial(samplers.SGLD, MODEL2, step_size=1e-3, batch_size=10)
for _name, _kernel in {"PolyaGammaGibbs": GIBBS, "SGLD": SGLD2}.items():
    for _what, _x, _y in (
        ("labels outside the range", X, Y2.float() + 1),
        ("NaN in the features", BROKEN, Y2.float()),
        ("no labels", X, None),
    ):
        add(_name, _what, lambda kernel, x, y: run(kernel(), x, y), _kernel, _x, _y)
