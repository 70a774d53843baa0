"""Right calls of public functions, and what happens when one argument of them is changed.

A mutant is read in one of three ways: it is the same value written otherwise, so that whatever is
returned must be the right call's answer; it is no such argument at all, so that nothing may be
returned; or it is another value, so that what is returned must be numbers.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import pyro
import torch
from flat import distill_flat
from pyro.infer import MCMC, Predictive
from torch import Tensor, nn

import pyro_opu
from bad_calls.guard import confined
from bad_calls.judged import is_clear
from pyro_opu import OnePassPredictive, PredictiveGuide, joint, rivals, samplers, teachers
from pyro_opu.distributions import PredictiveDirichlet
from pyro_opu.guides.novelty import fit_novelty
from pyro_opu.metrics import coverage, distances, scores
from pyro_opu.metrics.ranks import spearman
from pyro_opu.models import last_layer, neural_network, variational
from pyro_opu.models.laplace import laplace
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.reports.mixing import effective_sample_size, r_hat

Reading = Literal["same", "wrong", "other"]
N, D, C, S = 24, 3, 4, 12
_RANDOM = torch.Generator().manual_seed(0)
X, W = torch.randn(N, D, generator=_RANDOM), torch.randn(S, D, C, generator=_RANDOM)
Y, Y2, REAL = torch.arange(N) % C, (torch.arange(N) % 2).float(), X[:, 0] + 0.1
DRAWS = (X @ W).softmax(-1)
MEAN = DRAWS.mean(0)
SAMPLES = {"weight": W, "bias": torch.zeros(S, C)}
LOGITS = torch.randn(5, C, generator=_RANDOM)
COVARIANCE = torch.eye(C).expand(5, C, C) + 0.1


def teacher(x: Tensor) -> Tensor:
    return (x @ W.to(x.dtype)).softmax(-1)


def student() -> OnePassPredictive:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fast = OnePassPredictive(PredictiveGuide.for_inputs(X, C), (D,), C, num_samples=S)
    fast.detector = fit_novelty(fast.guide, X)
    return fast.requires_grad_(False).eval()


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return neural_network.perceptron((D, 5, C))


FAST, NETWORK = student(), network()
ANSWER = FAST.dirichlet(X)


def sampled(kernel: Any, x: Any, y: Any) -> Tensor:
    run = MCMC(kernel, 2, 1, disable_progbar=True)
    run.run(x, y)
    return next(iter(run.get_samples().values()))


def fitted(network: Any, **given: Any) -> Any:
    return list(neural_network.fit_network(copy.deepcopy(network), **given).parameters())


def by_svi(**given: Any) -> Any:
    model = logistic_regression(C)
    return variational.fit_svi(model, variational.mean_field(model), seed=0, **given).elbo


def forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(3, max_depth=2, random_state=0)


def contexts(**given: Any) -> Tensor:
    return teachers.bagged_contexts(forest(), **given).probs(X)


QUICK: dict[str, Any] = {"num_steps": 1, "batch_size": 8, "seed": 0, "progress": False}
Call = tuple[Callable[..., Any], dict[str, Any]]
#: Right calls, whose answer is tensors.
RIGHT: dict[str, Call] = {
    "uncertainty of draws": (
        lambda source: pyro_opu.uncertainty(source).epistemic,
        {"source": DRAWS},
    ),
    "entropy": (pyro_opu.entropy, {"source": DRAWS}),
    "mutual_information": (pyro_opu.mutual_information, {"source": DRAWS}),
    "laplace_bridge": (
        pyro_opu.laplace_bridge,
        {"mean": LOGITS, "covariance": COVARIANCE, "project": True, "normalize": False},
    ),
    "inverse_laplace_bridge": (
        pyro_opu.inverse_laplace_bridge,
        {"alpha": torch.rand(5, C, generator=_RANDOM) + 0.5, "full": False},
    ),
    "probit_predictive": (pyro_opu.probit_predictive, {"mean": LOGITS, "covariance": COVARIANCE}),
    "energy_distance": (
        distances.energy_distance,
        {"p": DRAWS, "q": DRAWS.flip(0), "chunk_size": 5},
    ),
    "wasserstein1": (distances.wasserstein1, {"p": DRAWS, "q": DRAWS.flip(0), "chunk_size": 5}),
    "kl_divergence": (distances.kl_divergence, {"p_mean": MEAN, "q_mean": MEAN.flip(0)}),
    "kl_from_log": (distances.kl_from_log, {"log_p": MEAN.log(), "log_q": MEAN.flip(0).log()}),
    "calibration": (
        lambda **given: list(vars(scores.calibration(**given)).values()),
        {"log_probs": MEAN.log(), "y": Y},
    ),
    "expected_calibration_error": (
        scores.expected_calibration_error,
        {"probs": MEAN, "y": Y, "num_bins": 5},
    ),
    "spearman": (spearman, {"a": REAL, "b": X[:, 1] + REAL, "rounding": 0.0}),
    "r_hat": (r_hat, {"draws": torch.randn(4, 50, generator=_RANDOM)}),
    "effective_sample_size": (
        effective_sample_size,
        {"draws": torch.randn(4, 50, generator=_RANDOM)},
    ),
    "central_coverage": (
        lambda **given: coverage.central_coverage(levels=[0.5], **given),
        {"dirichlet": ANSWER, "draws": DRAWS, "weights": torch.full((N, C), 1 / C)},
    ),
    "PredictiveDirichlet.from_alpha": (
        lambda alpha: PredictiveDirichlet.from_alpha(alpha).mean,
        {"alpha": 9 * MEAN},
    ),
    "PredictiveDirichlet.log_prob": (ANSWER.log_prob, {"value": MEAN}),
    "fast.dirichlet": (lambda x: FAST.dirichlet(x).mean, {"x": X}),
    "fast.uncertainty": (lambda x: list(FAST.uncertainty(x).to_dict().values()), {"x": X}),
    "fast.novelty": (FAST.novelty, {"x": X}),
    "fast.probs": (FAST.probs, {"x": X, "num_draws": 3, "seed": 0}),
    "fast()": (lambda x: FAST(x)["obs"].shape, {"x": X}),
    "teacher.probs": (
        lambda x, num_draws: pyro_opu.as_teacher(teacher).probs(x, num_draws),
        {"x": X, "num_draws": S},
    ),
    "model.probs": (
        lambda x: pyro_opu.as_teacher(Predictive(logistic_regression(C), SAMPLES)).probs(x),
        {"x": X},
    ),
    "batched": (
        lambda x, chunk_size: (
            pyro_opu.batched(Predictive(logistic_regression(C), SAMPLES), chunk_size=chunk_size)(x)[
                "obs"
            ].shape
        ),
        {"x": X, "chunk_size": 4},
    ),
    "logistic_regression": (
        lambda num_classes, scale, x, y: (
            Predictive(logistic_regression(num_classes, scale), num_samples=2)(x, y)["obs"].shape
        ),
        {"num_classes": C, "scale": 1.0, "x": X, "y": Y},
    ),
    "bayesian_network": (
        lambda prior, x: (
            Predictive(neural_network.bayesian_network(NETWORK, prior=prior), num_samples=2)(x)[
                "obs"
            ].shape
        ),
        {"prior": 1.0, "x": X},
    ),
    "fit_network": (
        fitted,
        {"network": NETWORK, "x": X, "y": Y, "epochs": 1, "batch_size": 8, "learning_rate": 1e-3}
        | {"weight_decay": 0.0, "weights": torch.ones(N)},
    ),
    "laplace": (
        lambda **given: laplace(**given).probit(X),
        {"x": X, "y": Y, "num_classes": C, "scale": 1.0},
    ),
    "last_layer_laplace": (
        lambda network, **given: [
            fit.probit(trunk(X)) for trunk, fit in [last_layer.last_layer_laplace(network, **given)]
        ],
        {"network": NETWORK, "x": X, "y": Y, "scale": 1.0},
    ),
    "last_layer_regression": (
        lambda **given: last_layer.last_layer_regression(ONE, **given).mean,
        {"x": X, "y": REAL, "precision": 1.0, "scale": 1.0},
    ),
    "fit_svi": (
        by_svi,
        {"x": X, "y": Y, "steps": 2, "batch_size": 8, "learning_rate": 0.01, "beta": 1.0},
    ),
    "PolyaGammaGibbs": (
        lambda x, y: sampled(samplers.PolyaGammaGibbs(logistic_regression(2)), x, y),
        {"x": X, "y": Y2},
    ),
    "SGLD": (
        lambda x, y, **given: sampled(samplers.SGLD(logistic_regression(C), **given), x, y),
        {"x": X, "y": Y, "step_size": 1e-3, "batch_size": 8, "temperature": 1.0},
    ),
    "bagged_contexts": (contexts, {"x": X, "y": Y, "num_contexts": 3, "share": 0.6, "seed": 0}),
    "joint.total": (
        lambda **given: joint.total(teacher, seed=0, **given).mean,
        {"x": X, "weights": torch.arange(4.0), "num_draws": 10},
    ),
    "joint.ranking": (
        lambda **given: joint.ranking(teacher, seed=0, **given).best,
        {"x": X, "weights": torch.arange(4.0), "largest": True},
    ),
}
ONE = neural_network.perceptron((D, 5, 1))
#: Those that take a tenth of a second and more.
LONG: dict[str, Call] = {
    "distill": (
        lambda **given: distill_flat(teacher, **given).dirichlet(X).mean,
        {"x": X, "num_draws": 4, "learning_rate": 1e-3, "warm_start": True, **QUICK},
    ),
    "distill a real y": (
        lambda x, **given: (
            distill_flat(
                lambda x: (W[..., 0].to(x.dtype) @ x.mT, torch.ones(S, 1, dtype=x.dtype)),
                x,
                **given,
            )
            .normal(X)
            .mean
        ),
        {"x": X, **QUICK},
    ),
    "fidelity": (
        lambda **given: pyro_opu.fidelity(FAST, teacher, **given).kl,
        {"x": X, "num_draws": 10, "chunk_size": 8, "seed": 0},
    ),
    "misclassification": (
        lambda **given: len(pyro_opu.misclassification(FAST, **given)),
        {"x": X, "y": Y, "num_draws": 10, "seed": 0},
    ),
    "prior_network": (
        lambda **given: rivals.prior_network(teacher, **given).dirichlet(X).mean,
        {"x": X, "outside": X + 5, "y": Y, "concentration": 100.0, **QUICK},
    ),
    "dark_knowledge": (
        lambda **given: rivals.dark_knowledge(teacher, **given).dirichlet(X).mean,
        {"x": X, "form": "point", **QUICK},
    ),
}


class Sub(Tensor):
    """A user's own kind of tensor."""


def changed(value: Tensor, entry: float) -> Tensor:
    copy = value.clone()
    copy.view(-1)[1] = entry
    return copy


def of_tensor(value: Tensor) -> Iterator[tuple[str, Any, Reading]]:
    """Mutants of a tensor of numbers or of whole numbers."""
    floating = value.is_floating_point()
    yield "not contiguous", value.repeat_interleave(2, 0)[::2], "same"
    yield "a subclass", value.as_subclass(Sub), "same"
    yield "NumPy", value.numpy(), "same"
    yield "a list", value.tolist(), "same"
    yield "None", None, "wrong"
    yield "a string", "x", "wrong"
    yield "a number", 3.0, "wrong"
    yield "a function", torch.zeros, "wrong"
    yield "an object", object(), "wrong"
    yield "sparse", value.to_sparse(), "wrong"
    yield "meta", value.to("meta"), "wrong"
    yield "nested", torch.nested.nested_tensor([value, value]), "wrong"
    yield "complex", value.to(torch.complex64), "wrong"
    yield "no rows", value[:0], "wrong"
    yield "a scalar", value.flatten()[0], "wrong"
    if floating:
        yield "with NaN", changed(value, torch.nan), "wrong"
        yield "with infinity", changed(value, torch.inf), "wrong"
        yield "float64", value.double(), "same"
        yield "with gradients", value.clone().requires_grad_(), "same"
        yield "a parameter", nn.Parameter(value.clone()), "same"
        yield "in a graph", value.clone().requires_grad_() * 1, "same"
        yield "of inference", inferred(value), "same"
        yield "an axis more", value[None], "wrong"
    else:
        yield "of int32", value.int(), "same"
        yield "out of range", value + 100, "wrong"
        yield "negative", value - 100, "wrong"
        yield "halves", value + 0.5, "wrong"
        yield "one row less", value[1:], "wrong"
        yield "a column", value[:, None], "wrong"


def inferred(value: Tensor) -> Tensor:
    with torch.inference_mode():
        return value.clone()


def of_number(value: float) -> Iterator[tuple[str, Any, Reading]]:
    """Mutants of a positive number."""
    whole = isinstance(value, int)
    yield "of NumPy", np.int64(value) if whole else np.float64(value), "same"
    yield "a string", str(value), "wrong"
    yield "a list", [value], "wrong"
    yield "a tensor", torch.tensor(value), "same"
    yield "NaN", float("nan"), "wrong"
    yield "infinity", float("inf"), "wrong"
    yield "negative", -1 if whole else -1.0, "wrong"
    yield "a bool", True, "wrong"
    yield "complex", 1j, "wrong"
    yield "bytes", b"1", "wrong"
    if whole:
        yield "a fraction", value + 0.5, "wrong"


def of_flag(value: bool) -> Iterator[tuple[str, Any, Reading]]:
    """Mutants of True or False."""
    for text, wrong in (("a string", "no"), ("a number", 1.5), ("None", None), ("a list", [])):
        yield text, wrong, "wrong"
    yield "the other", not value, "other"
    yield "of NumPy", np.bool_(value), "same"


def mutants(value: Any) -> Iterator[tuple[str, Any, Reading]]:
    """Of any argument of a right call."""
    if isinstance(value, Tensor):
        yield from of_tensor(value)
    elif isinstance(value, bool):
        yield from of_flag(value)
    elif isinstance(value, (int, float)):
        yield from of_number(value)
    elif isinstance(value, str):
        for text, wrong in (("unknown", "nowhere"), ("a number", 3), ("bytes", b"x"), ("", "")):
            yield text, wrong, "wrong"
    else:
        for text, wrong in (("None", None), ("a string", "x"), ("a number", 3), ("a list", [])):
            yield text, wrong, "wrong"


@dataclass(frozen=True)
class Mutant:
    """A call with one changed argument."""

    name: str
    call: Callable[[], Any]
    #: The right call's answer, which is the same for all of its mutants.
    right: Callable[[], list[Tensor]]
    reading: Reading


#: Mutants that are read otherwise than by their kind: "function, argument: change".
READ: dict[str, Reading] = {
    # Batches of any shape, and none.
    "inverse_laplace_bridge, alpha: no rows": "other",
    "inverse_laplace_bridge, alpha: an axis more": "other",
    "PredictiveDirichlet.from_alpha, alpha: an axis more": "other",
    "PredictiveDirichlet.log_prob, value: an axis more": "other",
    "r_hat, draws: an axis more": "other",
    "effective_sample_size, draws: an axis more": "other",
    # The generated rows of float64 are others.
    "distill, x: float64": "other",
    "distill a real y, x: float64": "other",
    "prior_network, x: float64": "other",
    "dark_knowledge, x: float64": "other",
    # Ranks of infinite numbers.
    "spearman, a: with infinity": "other",
    "spearman, b: with infinity": "other",
    # Seeds of torch's generators.
    "fast.probs, seed: negative": "other",
    "bagged_contexts, seed: negative": "other",
    "distill, seed: negative": "other",
    "distill a real y, seed: negative": "other",
    "fidelity, seed: negative": "other",
    "misclassification, seed: negative": "other",
    "prior_network, seed: negative": "other",
    "dark_knowledge, seed: negative": "other",
    # Names of classes may be any numbers.
    "bagged_contexts, y: out of range": "other",
    "bagged_contexts, y: negative": "other",
    # Left out, or not looked at where the model is asked for draws.
    "fit_network, weights: None": "other",
    "prior_network, y: None": "other",
    "logistic_regression, y: None": "other",
    "logistic_regression, y: out of range": "other",
    "logistic_regression, y: negative": "other",
    "logistic_regression, y: halves": "other",
}


def every(calls: Mapping[str, Call]) -> list[Mutant]:
    """All mutants of these calls, in order."""
    found = []
    for name, (function, given) in calls.items():
        right = cache(partial(answered, partial(function, **given)))
        for argument, value in given.items():
            for text, other, reading in mutants(value):
                key = f"{name}, {argument}: {text}"
                call = partial(function, **{**given, argument: other})
                found.append(Mutant(key, call, right, READ.get(key, reading)))
    return found


def some(calls: Mapping[str, Call], count: int, seed: int) -> list[Mutant]:
    """So many mutants of these calls, drawn by a seed."""
    return random.Random(seed).sample(every(calls), count)


def outcome(mutant: Mutant) -> tuple[str, str]:
    """ "clear", "raw", "right" or "silent", and what was said or returned."""
    right = mutant.right()
    with confined(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = answered(mutant.call)
        except Exception as error:  # noqa: BLE001 - any error is an outcome
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return "clear" if is_clear(error) else "raw", said
    if mutant.reading == "wrong":
        if found and all(each.isnan().all() for each in found):
            return "right", "says that it is not defined"
        return "silent", "returned an answer to what is none of its arguments"
    if mutant.reading == "other":
        numbers = all(not each.isnan().any() for each in found)
        return ("right", "") if numbers else ("silent", "returned NaN")
    if len(found) != len(right) or any(
        a.shape != b.shape for a, b in zip(found, right, strict=True)
    ):
        return "silent", "returned another shape"
    near = [torch.allclose(a, b, 1e-3, 1e-4) for a, b in zip(found, right, strict=True)]
    return ("right", "") if all(near) else ("silent", "returned other numbers")


def answered(call: Callable[[], Any]) -> list[Tensor]:
    """What a call returns, as tensors in float64."""
    torch.manual_seed(0)
    np.random.seed(0)
    pyro.clear_param_store()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _tensors(call())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in _tensors(item)]
    if isinstance(value, Mapping):
        return _tensors(list(value.values()))
    if value is None or isinstance(value, str):
        return []
    found = torch.as_tensor(value).detach().double()
    return [torch.zeros(found.shape) if found.is_meta else found]
