"""Bad calls of plots and of the exchange with ArviZ, for ``bad_input``."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.distributions import Dirichlet

import pyro_opu
from benchmarks.bad_input import Cases
from benchmarks.bad_input_measures import (
    ANSWER,
    LABELS,
    LOGITS,
    POSTERIOR,
    PROBS,
    SAMPLES,
    X,
    broken,
    student,
    teacher,
)
from pyro_opu import plots

CASES = Cases()
add = CASES.add

for _what, _distribution, _settings in (
    ("nothing to draw", None, {}),
    ("a tensor", PROBS, {}),
    ("several inputs", ANSWER, {}),
    ("four classes", Dirichlet(torch.ones(4)), {}),
    ("two labels", Dirichlet(torch.ones(3)), {"labels": ["a", "b"]}),
    ("labels that are a number", Dirichlet(torch.ones(3)), {"labels": 3}),
    ("axes that are none", Dirichlet(torch.ones(3)), {"ax": "left"}),
    ("a zoom that is no number", Dirichlet(torch.ones(3)), {"zoom": "in"}),
    ("a zoom that makes smaller", Dirichlet(torch.ones(3)), {"zoom": 0.1}),
    ("draws that are logits", None, {"draws": LOGITS[0]}),
    ("draws that are a list", None, {"draws": PROBS.tolist()}),
    ("draws with NaN", None, {"draws": broken(PROBS)}),
):
    add("plots.simplex", _what, plots.simplex, _distribution, **_settings)
for _what, _source, _classes in (
    ("two classes", PROBS, [0, 1]),
    ("a class twice", PROBS, [0, 1, 1]),
    ("a class that is not there", PROBS, [0, 1, 3]),
    ("names of classes", PROBS, ["a", "b", "c"]),
    ("a list", PROBS.tolist(), [0, 1, 2]),
    ("one number for classes", PROBS, 3),
    ("half a class", PROBS, [0, 1.5, 2]),
    ("NaN", broken(PROBS), [0, 1, 2]),
):
    add("plots.three_classes", _what, plots.three_classes, _source, _classes)
SQUARE = ((-1, 1), (-1, 1))
for _what, _bounds, _settings in (
    ("bounds of one side", (-1, 1), {}),
    ("bounds upside down", ((1, -1), (-1, 1)), {}),
    ("no such measure", SQUARE, {"measure": "doubt"}),
    ("a measure that is a number", SQUARE, {"measure": 3}),
    ("a resolution of 1", SQUARE, {"resolution": 1}),
    ("data of another width", SQUARE, {"x": torch.randn(6, 3)}),
    ("labels without data", SQUARE, {"y": LABELS}),
    ("labels of another length", SQUARE, {"x": X, "y": LABELS[:4]}),
    ("labels out of range", SQUARE, {"x": X, "y": LABELS + 5, "resolution": 5}),
    ("labels that are a number", SQUARE, {"x": X, "y": 3}),
    ("axes that are none", SQUARE, {"ax": 3, "resolution": 5}),
    ("a range upside down", SQUARE, {"vmin": 1.0, "vmax": 0.5, "resolution": 5}),
    ("a range that is a name", SQUARE, {"vmax": "most", "resolution": 5}),
):
    add("plots.decision_map", _what, plots.decision_map, student, _bounds, **_settings)
for _what, _sources, _settings in (
    ("no panels", {}, {}),
    ("a student without a title", student, {}),
    ("a panel that is a number", {"a": 3}, {}),
    ("no columns", {"a": student}, {"columns": 0}),
):
    add("plots.decision_maps", _what, plots.decision_maps, _sources, SQUARE, **_settings)
for _what, _probs, _y, _settings in (
    ("logits", LOGITS[0], LABELS, {}),
    ("NaN", broken(PROBS), LABELS, {}),
    ("rows that sum to 1 with a negative entry", torch.tensor([[1.5, -0.5]] * 6), LABELS % 2, {}),
    ("labels of another length", PROBS, LABELS[:4], {}),
    ("labels out of range", PROBS, LABELS + 1, {}),
    ("an array", PROBS.numpy(), LABELS, {}),
    ("no bins", PROBS, LABELS, {"bins": 0}),
    ("axes that are none", PROBS, LABELS, {"ax": "left"}),
    ("no models", {}, LABELS, {}),
):
    add("plots.reliability", _what, plots.reliability, _probs, _y, **_settings)
SCORES, WRONG = {"entropy": torch.rand(6)}, LABELS == 0
for _what, _scores, _wrong, _settings in (
    ("scores without a name", SCORES["entropy"], WRONG, {}),
    ("labels for errors", SCORES, LABELS, {}),
    ("errors of another length", SCORES, WRONG[:4], {}),
    ("NaN", {"entropy": broken(SCORES["entropy"])}, WRONG, {}),
    ("scores in words", {"entropy": ["a"] * 6}, WRONG, {}),
    ("other names", SCORES, {"variance": WRONG}, {}),
    ("axes that are none", SCORES, WRONG, {"ax": [1]}),
):
    add("plots.risk_coverage", _what, plots.risk_coverage, _scores, _wrong, **_settings)
for _what, _answers, _settings in (
    ("answers without a name", ANSWER, {}),
    ("numbers", {"in": 3.0}, {}),
    ("logits", {"in": LOGITS}, {}),
    ("a Dirichlet with NaN", {"in": Dirichlet(broken(PROBS), validate_args=False)}, {}),
    ("half a bin", {"in": ANSWER}, {"bins": 2.5}),
    ("no such measure", {"in": ANSWER}, {"measure": "doubt"}),
    ("axes that are none", {"in": ANSWER}, {"ax": np.zeros(2)}),
):
    add("plots.concentration_histograms", _what, plots.concentration_histograms, _answers,
        **_settings)  # fmt: skip
for _what, _args, _settings in (
    ("one input", (student, teacher, X[:1]), {}),
    ("a list of rows", (student, teacher, X.tolist()), {}),
    ("no such measure", (student, teacher, X), {"measure": "doubt"}),
    ("no student", (None, teacher, X), {}),
    ("another width", (student, teacher, torch.randn(6, 3)), {}),
    ("a student of other classes", (partial(student, classes=5), teacher, X), {}),
    ("axes that are none", (student, teacher, X), {"ax": "left"}),
):
    add("plots.fidelity_scatter", _what, plots.fidelity_scatter, *_args, **_settings)
for _what, _report, _settings in (
    ("no report", 3, {}),
    ("a report without a history", {"seed": 0}, {}),
    ("a history that is none", {"history": [{"step": 0}]}, {}),
    ("a history that is a number", {"history": 3}, {}),
    ("axes that are none", {"history": [{}]}, {"axes": ["left", "right"]}),
    ("one axes", {"history": [{}]}, {"axes": 3}),
):
    add("plots.training_curves", _what, plots.training_curves, _report, **_settings)

for _what, _run, _args, _settings in (
    ("no run", 3, (), {}),
    ("samples", SAMPLES, (X,), {}),
    ("a Predictive without data", POSTERIOR, (), {}),
    ("no labels", POSTERIOR, (X,), {}),
    ("labels of another length", POSTERIOR, (X, LABELS[:4]), {}),
    ("labels out of range", POSTERIOR, (X, LABELS + 1), {}),
    ("float labels with a part", POSTERIOR, (X, LABELS + 0.5), {}),
    ("another width", POSTERIOR, (torch.randn(6, 5), LABELS), {}),
    ("chains that do not divide the draws", POSTERIOR, (X, LABELS), {"num_chains": 7}),
    ("draws of a run", POSTERIOR, (X, LABELS), {"num_draws": 7}),
    ("dims that are a list", POSTERIOR, (X, LABELS), {"dims": ["class"]}),
    ("too many dims", POSTERIOR, (X, LABELS), {"dims": {"bias": ["a", "b", "c"]}}),
    ("coords that are a list", POSTERIOR, (X, LABELS), {"coords": ["class"]}),
    ("coords of another length", POSTERIOR, (X, LABELS),
     {"dims": {"bias": ["class"]}, "coords": {"class": ["a"]}}),
    ("a seed of 1.5", POSTERIOR, (X, LABELS), {"seed": 1.5}),
    ("a student without inputs", student, (), {}),
    ("a student's labels out of range", student, (X, LABELS + 1), {"num_draws": 5}),
    ("a student's labels of another length", student, (X, LABELS[:4]), {"num_draws": 5}),
    ("half a draw of a student", student, (X, LABELS), {"num_draws": 2.5}),
    ("no draws of a student", student, (X, LABELS), {"num_draws": 0}),
):  # fmt: skip
    add("to_inference_data", _what, pyro_opu.to_inference_data, _run, *_args, **_settings)
