"""Bad calls of measures, scores, diagnostics, reports and answers, for ``bad_input``."""

from __future__ import annotations

from functools import partial

import torch
from pyro.infer import Predictive
from torch.distributions import Dirichlet

import pyro_opu
from benchmarks.bad_input import Cases
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
X = torch.randn(6, 2, generator=_RANDOM)
CHAINS = torch.randn(4, 50, generator=_RANDOM)
ANSWER = pyro_opu.PredictiveDirichlet.from_alpha(9 * PROBS)
WEIGHT = torch.randn(40, 2, 3, generator=_RANDOM)
SAMPLES = {"weight": WEIGHT, "bias": torch.zeros(40, 3)}
POSTERIOR = Predictive(logistic_regression(3), SAMPLES)


def broken(values: torch.Tensor, value: float = NAN) -> torch.Tensor:
    """A copy with one entry replaced."""
    copy = values.clone()
    copy.view(-1)[1] = value
    return copy


def student(x: torch.Tensor, classes: int = 3) -> Dirichlet:
    """The answer of a student of 2 features."""
    return Dirichlet(1 + (x @ torch.ones(2, classes)).abs())


def teacher(x: torch.Tensor) -> torch.Tensor:
    """Draws of a teacher of 2 features and 3 classes."""
    return (x @ WEIGHT).softmax(-1)


CASES = Cases()
add = CASES.add

for _name in measures.__all__:
    _measure = getattr(measures, _name)
    if _name in ("RegressionUncertainty", "Uncertainty", "entropy", "mutual_information"):
        continue
    for _what, _source in {
        "logits": LOGITS,
        "a draw with NaN": broken(DRAWS),
        "no axis of draws": PROBS,
        "a list": DRAWS.tolist(),
    }.items():
        add(_name, _what, _measure, _source)
for _what, _source in {
    "an array": DRAWS.numpy(),
    "a negative probability": broken(DRAWS, -0.1),
    "an infinite probability": broken(DRAWS, INF),
    "one draw": DRAWS[:1],
    "no draws": DRAWS[:0],
    "one class": DRAWS[..., :1],
    "integers": torch.ones(4, 2, 3, dtype=torch.long),
    "a function": student,
    "a Dirichlet with NaN": Dirichlet(broken(9 * PROBS), validate_args=False),
    "a Dirichlet with a negative parameter": Dirichlet(broken(PROBS, -1), validate_args=False),
}.items():
    add("uncertainty", _what, pyro_opu.uncertainty, _source)
add("Uncertainty", "no such measure", lambda: pyro_opu.uncertainty(DRAWS)["mutual"])

for _name, _distance in {"energy_distance": energy_distance, "wasserstein1": wasserstein1}.items():
    for _what, _p, _q in (
        ("logits", LOGITS, DRAWS),
        ("NaN", DRAWS, broken(DRAWS)),
        ("other inputs", DRAWS, DRAWS[:, :3]),
        ("other classes", DRAWS, torch.full((20, 6, 4), 0.25)),
        ("no axis of draws", PROBS, PROBS),
        ("an array", DRAWS.numpy(), DRAWS),
        ("no draws", DRAWS[:0], DRAWS),
    ):
        add(_name, _what, _distance, _p, _q)
    add(_name, "a chunk of 0 inputs", _distance, DRAWS[..., :2].log_softmax(-1).exp(),
        DRAWS[..., :2].log_softmax(-1).exp(), chunk_size=0)  # fmt: skip
    add(_name, "a chunk of 1.5 inputs", _distance, DRAWS[..., :2].log_softmax(-1).exp(),
        DRAWS[..., :2].log_softmax(-1).exp(), chunk_size=1.5)  # fmt: skip
add("energy_distance", "one draw", energy_distance, DRAWS[:1], DRAWS)
add("wasserstein1", "other numbers of draws", wasserstein1, DRAWS[:5], DRAWS)
for _what, _p, _q in (
    ("unnormalised rows", 2 * PROBS, PROBS),
    ("unnormalised rows of q", PROBS, 2 * PROBS),
    ("logits", LOGITS[0], PROBS),
    ("NaN", broken(PROBS), PROBS),
    ("a negative probability", PROBS, broken(PROBS, -0.1)),
    ("another shape", PROBS, PROBS[:3]),
    ("a list", PROBS.tolist(), PROBS),
    ("an array", PROBS, PROBS.numpy()),
    ("integers", torch.eye(3).long(), torch.eye(3).long()),
):
    add("kl_divergence", _what, kl_divergence, _p, _q)
for _what, _p, _q in (
    ("probabilities", PROBS, PROBS),
    ("NaN", broken(PROBS.log()), PROBS.log()),
    ("logits", LOGITS[0], PROBS.log()),
    ("another shape", PROBS.log(), PROBS[:3].log()),
    ("a list", PROBS.tolist(), PROBS.log()),
):
    add("kl_from_log", _what, kl_from_log, _p, _q)

for _what, _p, _y in (
    ("probabilities", PROBS, LABELS),
    ("logits", LOGITS[0], LABELS),
    ("NaN", broken(PROBS.log()), LABELS),
    ("labels out of range", PROBS.log(), LABELS + 1),
    ("negative labels", PROBS.log(), LABELS - 1),
    ("labels of another length", PROBS.log(), LABELS[:4]),
    ("float labels", PROBS.log(), LABELS.float()),
    ("labels with an axis more", PROBS.log(), LABELS[:, None]),
    ("a list of labels", PROBS.log(), LABELS.tolist()),
    ("an array", PROBS.log().numpy(), LABELS),
    ("draws", DRAWS.log(), LABELS),
    ("one row", PROBS[0].log(), LABELS[0]),
    ("no rows", PROBS[:0].log(), LABELS[:0]),
):
    add("calibration", _what, calibration, _p, _y)
for _what, _p, _y, _bins in (
    ("log-probabilities", PROBS.log(), LABELS, 15),
    ("logits", LOGITS[0], LABELS, 15),
    ("NaN", broken(PROBS), LABELS, 15),
    ("no bins", PROBS, LABELS, 0),
    ("half a bin", PROBS, LABELS, 2.5),
    ("labels out of range", PROBS, LABELS + 1, 15),
    ("a list", PROBS.tolist(), LABELS, 15),
):
    add("expected_calibration_error", _what, expected_calibration_error, _p, _y, _bins)

EQUAL = torch.full((6, 3), 1 / 3)
for _what, _d, _draws, _weights, _levels in (
    ("a level above 1", ANSWER, DRAWS, EQUAL, [50.0]),
    ("a level of 0", ANSWER, DRAWS, EQUAL, [0.0]),
    ("a level of NaN", ANSWER, DRAWS, EQUAL, [NAN]),
    ("logits", ANSWER, LOGITS, EQUAL, [0.5]),
    ("NaN", ANSWER, broken(DRAWS), EQUAL, [0.5]),
    ("other inputs", ANSWER, DRAWS[:, :3], EQUAL, [0.5]),
    ("weights that do not sum to 1", ANSWER, DRAWS, 3 * EQUAL, [0.5]),
    ("weights of other inputs", ANSWER, DRAWS, EQUAL[:3], [0.5]),
    ("no distribution", PROBS, DRAWS, EQUAL, [0.5]),
    ("an array of draws", ANSWER, DRAWS.numpy(), EQUAL, [0.5]),
):
    add("central_coverage", _what, central_coverage, _d, _draws, _weights, _levels)

for _what, _d, _settings in (
    ("draws", DRAWS, {}),
    ("NaN", Dirichlet(broken(9 * PROBS), validate_args=False), {}),
    ("a negative parameter", Dirichlet(broken(9 * PROBS, -1), validate_args=False), {}),
    ("one input without its axis", Dirichlet(PROBS[0]), {}),
    ("an overlap of 1", ANSWER, {"overlap": 1.0}),
    ("an overlap of NaN", ANSWER, {"overlap": NAN}),
    ("an overlap in words", ANSWER, {"overlap": "0.05"}),
    ("max_k of 0", ANSWER, {"max_k": 0}),
    ("max_k of 1.5", ANSWER, {"max_k": 1.5}),
):
    add("top_k", _what, pyro_opu.top_k, _d, **_settings)
for _what, _y in (
    ("labels of another length", LABELS[:4]),
    ("labels out of range", LABELS + 1),
    ("float labels", LABELS.float()),
):
    add("TopK.coverage", _what, lambda y: pyro_opu.top_k(ANSWER).coverage(y), _y)
for _k in (0, 4, 1.5, "1"):
    add("TopK.fixed", f"k={_k!r}", lambda k: pyro_opu.top_k(ANSWER).fixed(LABELS, k), _k)

MEAN, VARIANCE = LOGITS[0], torch.ones(6, 3)
for _name in ("laplace_bridge", "probit_predictive"):
    for _what, _mean, _covariance in (
        ("negative variances", MEAN, -VARIANCE),
        ("NaN in the variances", MEAN, broken(VARIANCE)),
        ("NaN in the mean", broken(MEAN), VARIANCE),
        ("other inputs", MEAN, VARIANCE[:3]),
        ("a covariance that is not symmetric", MEAN, torch.randn(6, 3, 3)),
        ("one class", MEAN[:, :1], VARIANCE[:, :1]),
        ("a list", MEAN.tolist(), VARIANCE),
        ("a list of variances", MEAN, VARIANCE.tolist()),
        ("integers", torch.zeros(6, 3, dtype=torch.long), VARIANCE),
        ("integer variances", MEAN, VARIANCE.long()),
        ("an infinite covariance", MEAN, torch.diag_embed(broken(VARIANCE, INF))),
    ):
        add(_name, _what, getattr(pyro_opu, _name), _mean, _covariance)
for _what, _alpha in (
    ("zero", torch.zeros(2, 3)),
    ("NaN", broken(torch.ones(2, 3))),
    ("one class", torch.ones(2, 1)),
    ("a list", [1.0, 2.0]),
):
    add("inverse_laplace_bridge", _what, pyro_opu.inverse_laplace_bridge, _alpha)

for _name, _statistic in {"r_hat": r_hat, "effective_sample_size": effective_sample_size}.items():
    for _what, _draws in (
        ("NaN", broken(CHAINS)),
        ("infinity", broken(CHAINS, INF)),
        ("one chain without its axis", CHAINS[0]),
        ("three draws", CHAINS[:, :3]),
        ("no chains", CHAINS[:0]),
        ("an array", CHAINS.numpy()),
        ("a list", CHAINS.tolist()),
        ("a dictionary of sites", {"w": CHAINS}),
    ):
        add(_name, _what, _statistic, _draws)
for _what, _run, _settings in (
    ("a dictionary of samples", SAMPLES, {}),
    ("a Predictive without samples", Predictive(logistic_regression(3), num_samples=5), {}),
    ("chains that do not divide the draws", POSTERIOR, {"num_chains": 7}),
    ("no chains", POSTERIOR, {"num_chains": 0}),
    ("chains in words", POSTERIOR, {"num_chains": "4"}),
    ("half a chain", POSTERIOR, {"num_chains": 2.5}),
    ("three draws", Predictive(logistic_regression(3), {"w": torch.randn(3)}), {}),
    ("NaN in the draws", Predictive(logistic_regression(3), {"w": broken(CHAINS[0])}), {}),
    ("sites of other lengths", Predictive(len, {"v": CHAINS[0], "w": CHAINS[0][:40]}), {}),
):
    add("diagnose", _what, pyro_opu.diagnose, _run, **_settings)
for _what, _source, _x, _settings in (
    ("a list of rows", POSTERIOR, X.tolist(), {}),
    ("NaN", POSTERIOR, broken(X), {}),
    ("an unknown site", POSTERIOR, X, {"site": "label"}),
    ("samples", SAMPLES, X, {}),
    ("another width", POSTERIOR, torch.randn(6, 5), {}),
):
    add("mixing", _what, pyro_opu.mixing, _source, _x, **_settings)

for _what, _args, _settings in (
    ("a student of other classes", (partial(student, classes=5), teacher, X, LABELS), {}),
    ("labels out of range", (student, teacher, X, LABELS + 1), {}),
    ("labels of another length", (student, teacher, X, LABELS[:4]), {}),
    ("float labels", (student, teacher, X, LABELS.float()), {}),
    ("NaN", (student, teacher, broken(X), LABELS), {}),
    ("a list of rows", (student, teacher, X.tolist(), LABELS), {}),
    ("outside inputs of another width", (student, teacher, X, LABELS, {"o": X[:, :1]}), {}),
    ("outside inputs without a name", (student, teacher, X, LABELS, X), {}),
    ("a name that is taken", (student, teacher, X, LABELS, {"misclassification": X}), {}),
    ("a teacher for a student", (teacher, teacher, X, LABELS), {}),
    ("no student", (None, teacher, X, LABELS), {}),
    ("no teacher", (student, None, X, LABELS), {}),
    ("one draw", (student, teacher, X, LABELS), {"num_draws": 1}),
    ("draws in words", (student, teacher, X, LABELS), {"num_draws": "500"}),
    ("a chunk of 0 inputs", (student, teacher, X, LABELS), {"chunk_size": 0}),
    ("a seed of 1.5", (student, teacher, X, LABELS), {"seed": 1.5}),
):
    add("detection", _what, pyro_opu.detection, *_args, **_settings)
for _what, _args in (
    ("labels out of range", (student, X, LABELS + 1)),
    ("labels of another length", (student, X, LABELS[:4])),
    ("an array", (student, X.numpy(), LABELS)),
    ("no source", (None, X, LABELS)),
):
    add("misclassification", _what, pyro_opu.misclassification, *_args)
for _what, _args in (
    ("NaN", (student, X, broken(X))),
    ("another width", (student, X, X[:, :1])),
    ("no inputs", (student, X, X[:0])),
    ("no source", (3, X, X)),
):
    add("out_of_domain", _what, pyro_opu.out_of_domain, *_args)

NORMALISED = PROBS.log()
for _what, _mean, _concentration in (
    ("a concentration per class", NORMALISED, torch.zeros(6, 3)),
    ("logits", LOGITS[0], torch.zeros(6)),
    ("NaN", broken(NORMALISED), torch.zeros(6)),
    ("a list", NORMALISED.tolist(), torch.zeros(6)),
    ("a number", NORMALISED, 3.0),
):
    add("PredictiveDirichlet", _what, pyro_opu.PredictiveDirichlet, _mean, _concentration, True)
for _what, _alpha in (("zero", torch.zeros(3)), ("a list", [1.0, 2.0]), ("NaN", broken(PROBS))):
    add("PredictiveDirichlet.from_alpha", _what, pyro_opu.PredictiveDirichlet.from_alpha, _alpha,
        validate_args=True)  # fmt: skip
add("Empirical", "two axes", distributions.Empirical, PROBS.log())
add("Empirical", "a list", distributions.Empirical, DRAWS.log().tolist())
add("DirichletMixture", "other inputs", distributions.DirichletMixture, torch.zeros(6, 2),
    torch.zeros(5, 2, 3), torch.zeros(6, 2))  # fmt: skip
add("DirichletMixture", "lists", distributions.DirichletMixture, [[0.0]], [[[0.0, 0.0]]], [[0.0]])
add("LogisticNormal", "no factor", distributions.LogisticNormal, MEAN, MEAN, MEAN)
