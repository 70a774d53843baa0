"""Bad calls of measures, scores, diagnostics, reports and answers."""

from functools import partial
from typing import Any

import torch
from pyro.infer import Predictive
from torch.distributions import Dirichlet

import pyro_opu
from bad_calls.table import arguments, calls, values
from pyro_opu import distributions
from pyro_opu.metrics import uncertainty as measures
from pyro_opu.metrics.coverage import central_coverage
from pyro_opu.metrics.distances import energy_distance, kl_divergence, kl_from_log, wasserstein1
from pyro_opu.metrics.scores import calibration, expected_calibration_error
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.reports.mixing import effective_sample_size, r_hat

NAN, INF = float("nan"), float("inf")
_RANDOM = torch.Generator().manual_seed(0)
LOGITS = torch.randn(20, 6, 3, generator=_RANDOM)
DRAWS = LOGITS.softmax(-1)
PROBS, LABELS = DRAWS[0], torch.arange(6) % 3
LOGS = PROBS.log()
X = torch.randn(6, 2, generator=_RANDOM)
CHAINS = torch.randn(4, 50, generator=_RANDOM)
ANSWER = pyro_opu.PredictiveDirichlet.from_alpha(9 * PROBS)
WEIGHT = torch.randn(40, 2, 3, generator=_RANDOM)
SAMPLES = {"weight": WEIGHT, "bias": torch.zeros(40, 3)}
POSTERIOR = Predictive(logistic_regression(3), SAMPLES)
#: Labels of six rows and three classes that are none.
WRONG_LABELS: dict[str, Any] = {
    "out of range": LABELS + 1,
    "of another length": LABELS[:4],
    "of floats": LABELS.float(),
}


def broken(values: torch.Tensor, value: float = NAN) -> torch.Tensor:
    """A copy with one entry replaced."""
    copy = values.clone()
    copy.view(-1)[1] = value
    return copy


def unchecked(alpha: torch.Tensor) -> Dirichlet:
    return Dirichlet(alpha, validate_args=False)


def student(x: torch.Tensor, classes: int = 3) -> Dirichlet:
    """The answer of a student of 2 features."""
    return Dirichlet(1 + (x @ torch.ones(2, classes)).abs())


def teacher(x: torch.Tensor) -> torch.Tensor:
    """Draws of a teacher of 2 features and 3 classes."""
    return (x @ WEIGHT).softmax(-1)


def line(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws of a teacher of a real y."""
    loc = x @ WEIGHT[..., 0].T
    return loc.T, torch.ones_like(loc.T)


def normal(x: torch.Tensor) -> distributions.PredictiveNormal:
    """The answer of a student of a real y."""
    return distributions.PredictiveNormal(*(3 * [x.sum(-1)]), validate_args=False)


NOT_MEASURES = ("RegressionUncertainty", "Uncertainty", "entropy", "mutual_information")
NO_DRAWS = {
    "logits": (LOGITS,),
    "a draw with NaN": (broken(DRAWS),),
    "no axis of draws": (PROBS,),
    "a list": (DRAWS.tolist(),),
}
# fmt: off
for name in measures.__all__:
    if name not in NOT_MEASURES:
        arguments(name, getattr(measures, name), NO_DRAWS)
arguments(pyro_opu.uncertainty, {
    "an array": (DRAWS.numpy(),),
    "a negative probability": (broken(DRAWS, -0.1),),
    "an infinite probability": (broken(DRAWS, INF),),
    "one draw": (DRAWS[:1],),
    "no draws": (DRAWS[:0],),
    "one class": (DRAWS[..., :1],),
    "integers": (torch.ones(4, 2, 3, dtype=torch.long),),
    "a function": (student,),
    "a Dirichlet with NaN": (unchecked(broken(9 * PROBS)),),
    "a Dirichlet with a negative parameter": (unchecked(broken(PROBS, -1)),)})
calls("Uncertainty", {"no such measure": lambda: pyro_opu.uncertainty(DRAWS)["mutual"]})

TWO = DRAWS[..., :2] / DRAWS[..., :2].sum(-1, True)
for distance in (energy_distance, wasserstein1):
    arguments(distance, {
        "logits": (LOGITS, DRAWS),
        "NaN": (DRAWS, broken(DRAWS)),
        "other inputs": (DRAWS, DRAWS[:, :3]),
        "other classes": (DRAWS, torch.full((20, 6, 4), 0.25)),
        "no axis of draws": (PROBS, PROBS),
        "an array": (DRAWS.numpy(), DRAWS),
        "no draws": (DRAWS[:0], DRAWS)})
    values(distance.__name__, partial(distance, TWO, TWO), chunk_size=[0, 1.5])
arguments(energy_distance, {"one draw": (DRAWS[:1], DRAWS)})
arguments(wasserstein1, {"other numbers of draws": (DRAWS[:5], DRAWS)})
arguments(kl_divergence, {
    "unnormalised rows": (2 * PROBS, PROBS),
    "unnormalised rows of q": (PROBS, 2 * PROBS),
    "logits": (LOGITS[0], PROBS),
    "NaN": (broken(PROBS), PROBS),
    "NaN in q": (PROBS, broken(PROBS)),
    "a negative probability": (PROBS, broken(PROBS, -0.1)),
    "another shape": (PROBS, PROBS[:3]),
    "a list": (PROBS.tolist(), PROBS),
    "an array": (PROBS, PROBS.numpy()),
    "integers": (torch.eye(3).long(), torch.eye(3).long())})
arguments(kl_from_log, {
    "probabilities": (PROBS, PROBS),
    "NaN": (broken(LOGS), LOGS),
    "logits": (LOGITS[0], LOGS),
    "another shape": (LOGS, LOGS[:3]),
    "a list": (PROBS.tolist(), LOGS)})
arguments(calibration, {
    **{f"labels {what}": (LOGS, labels) for what, labels in WRONG_LABELS.items()},
    "probabilities": (PROBS, LABELS),
    "logits": (LOGITS[0], LABELS),
    "NaN": (broken(LOGS), LABELS),
    "negative labels": (LOGS, LABELS - 1),
    "labels with an axis more": (LOGS, LABELS[:, None]),
    "a list of labels": (LOGS, LABELS.tolist()),
    "an array": (LOGS.numpy(), LABELS),
    "draws": (DRAWS.log(), LABELS),
    "draws, a label each": (DRAWS.log(), torch.zeros(20).long()),
    "one row": (LOGS[0], LABELS[0]),
    "no rows": (LOGS[:0], LABELS[:0])})
arguments(expected_calibration_error, {
    "log-probabilities": (LOGS, LABELS),
    "logits": (LOGITS[0], LABELS),
    "NaN": (broken(PROBS), LABELS),
    "no bins": (PROBS, LABELS, 0),
    "half a bin": (PROBS, LABELS, 2.5),
    "labels out of range": (PROBS, LABELS + 1),
    "a list": (PROBS.tolist(), LABELS)})
EQUAL = torch.full((6, 3), 1 / 3)
values(central_coverage, ANSWER, DRAWS, EQUAL, levels=[[50.0], [0.0], [NAN]])
arguments(partial(central_coverage, levels=[0.5]), {
    "logits": (ANSWER, LOGITS, EQUAL),
    "NaN": (ANSWER, broken(DRAWS), EQUAL),
    "other inputs": (ANSWER, DRAWS[:, :3], EQUAL),
    "weights that do not sum to 1": (ANSWER, DRAWS, 3 * EQUAL),
    "weights of other inputs": (ANSWER, DRAWS, EQUAL[:3]),
    "no distribution": (PROBS, DRAWS, EQUAL),
    "an array of draws": (ANSWER, DRAWS.numpy(), EQUAL)})

arguments(pyro_opu.top_k, {
    "draws": (DRAWS,),
    "NaN": (unchecked(broken(9 * PROBS)),),
    "a negative parameter": (unchecked(broken(9 * PROBS, -1)),),
    "one input without its axis": (Dirichlet(PROBS[0]),)})
values(pyro_opu.top_k, ANSWER, overlap=[1.0, NAN, "0.05"], max_k=[0, 1.5])
values("TopK.coverage", lambda y: pyro_opu.top_k(ANSWER).coverage(y), y=WRONG_LABELS)
values("TopK.fixed", lambda k: pyro_opu.top_k(ANSWER).fixed(LABELS, k), k=[0, 4, 1.5, "1"])

MEAN, VARIANCE = LOGITS[0], torch.ones(6, 3)
for name in ("laplace_bridge", "probit_predictive"):
    arguments(name, getattr(pyro_opu, name), {
        "negative variances": (MEAN, -VARIANCE),
        "NaN in the variances": (MEAN, broken(VARIANCE)),
        "NaN in the mean": (broken(MEAN), VARIANCE),
        "other inputs": (MEAN, VARIANCE[:3]),
        "a covariance that is not symmetric": (MEAN, torch.randn(6, 3, 3)),
        "one class": (MEAN[:, :1], VARIANCE[:, :1]),
        "a list": (MEAN.tolist(), VARIANCE),
        "a list of variances": (MEAN, VARIANCE.tolist()),
        "integers": (torch.zeros(6, 3, dtype=torch.long), VARIANCE),
        "integer variances": (MEAN, VARIANCE.long()),
        "an infinite covariance": (MEAN, torch.diag_embed(broken(VARIANCE, INF)))})
arguments(pyro_opu.inverse_laplace_bridge, {
    "zero": (torch.zeros(2, 3),),
    "NaN": (broken(torch.ones(2, 3)),),
    "one class": (torch.ones(2, 1),),
    "a list": ([1.0, 2.0],)})

for statistic in (r_hat, effective_sample_size):
    arguments(statistic, {
        "NaN": (broken(CHAINS),),
        "infinity": (broken(CHAINS, INF),),
        "one chain without its axis": (CHAINS[0],),
        "three draws": (CHAINS[:, :3],),
        "no chains": (CHAINS[:0],),
        "an array": (CHAINS.numpy(),),
        "a list": (CHAINS.tolist(),),
        "a dictionary of sites": ({"w": CHAINS},)})
MODEL = logistic_regression(3)
arguments(pyro_opu.mixing, {
    "a list of rows": (POSTERIOR, X.tolist()),
    "NaN": (POSTERIOR, broken(X)),
    "samples": (SAMPLES, X),
    "another width": (POSTERIOR, torch.randn(6, 5))})

arguments(pyro_opu.detection, {
    **{f"labels {w}": (student, teacher, X, labels) for w, labels in WRONG_LABELS.items()},
    "a student of other classes": (partial(student, classes=5), teacher, X, LABELS),
    "NaN": (student, teacher, broken(X), LABELS),
    "a list of rows": (student, teacher, X.tolist(), LABELS),
    "outside inputs of another width": (student, teacher, X, LABELS, {"o": X[:, :1]}),
    "outside inputs without a name": (student, teacher, X, LABELS, X),
    "a name that is taken": (student, teacher, X, LABELS, {"misclassification": X}),
    "a teacher for a student": (teacher, teacher, X, LABELS),
    "no student": (None, teacher, X, LABELS),
    "no teacher": (student, None, X, LABELS)})
values(pyro_opu.detection, student, teacher, X, LABELS, num_draws=[1, "500"],
    seed=[1.5])
FAR = {"with NaN": X / 0, "of another width": X[:, :1]}
arguments(pyro_opu.fidelity, {
    "a student of other classes": (partial(student, classes=5), teacher, X),
    "a teacher for a student": (teacher, teacher, X),
    "a student of NaN": (lambda x: unchecked(NAN * teacher(x)[0]), teacher, X),
    "a posterior of three draws": (student, lambda x: teacher(x)[:3], X),
    "NaN": (student, teacher, broken(X))})
values(pyro_opu.fidelity, student, teacher, X, num_draws=[1, "500"], seed=[1.5],
    wasserstein_inputs=[-1], extra={"without a name": [X], "of a name that is taken":
        {"held-out": X}, **{what: {"far": x} for what, x in FAR.items()}})
arguments("fidelity of a real y", pyro_opu.fidelity, {
    "a teacher for a student": (teacher, line, X),
    "a student of NaN": (lambda x: normal(x / 0), line, X),
    "a student of other rows": (lambda x: normal(x[:3]), line, X),
    "a posterior of three draws": (normal, lambda x: tuple(each[:3] for each in line(x)), X)})
values("fidelity of a real y", partial(pyro_opu.fidelity, normal, line, X), num_draws=[1],
    chunk_size=[0])
arguments(pyro_opu.misclassification, {
    "labels out of range": (student, X, LABELS + 1),
    "labels of another length": (student, X, LABELS[:4]),
    "an array of text": (student, X.numpy().astype(str), LABELS),
    "no source": (None, X, LABELS)})
arguments(pyro_opu.out_of_domain, {
    "NaN": (student, X, broken(X)),
    "another width": (student, X, X[:, :1]),
    "no inputs": (student, X, X[:0]),
    "no source": (3, X, X)})

arguments(partial(pyro_opu.PredictiveDirichlet, validate_args=True), {
    "a concentration per class": (LOGS, torch.zeros(6, 3)),
    "logits": (LOGITS[0], torch.zeros(6)),
    "NaN": (broken(LOGS), torch.zeros(6)),
    "a list": (LOGS.tolist(), torch.zeros(6)),
    "a number": (LOGS, 3.0)})
calls("PredictiveDirichlet.log_prob", {
    "a row that does not sum to 1": lambda: ANSWER.log_prob(PROBS / 2)})
arguments(partial(pyro_opu.PredictiveDirichlet.from_alpha, validate_args=True), {
    "zero": (torch.zeros(3),),
    "a list": ([1.0, 2.0],),
    "NaN": (broken(PROBS),)})
arguments(distributions.Empirical, {"two axes": (LOGS,), "a list": (DRAWS.log().tolist(),)})
arguments(distributions.DirichletMixture, {
    "other inputs": (torch.zeros(6, 2), torch.zeros(5, 2, 3), torch.zeros(6, 2)),
    "lists": ([[0.0]], [[[0.0, 0.0]]], [[0.0]])})
arguments(distributions.LogisticNormal, {"no factor": (MEAN, MEAN, MEAN)})
