"""Bad calls of plots and of the exchange with ArviZ."""

from functools import partial

import torch
from plotted import record
from torch.distributions import Dirichlet

import pyro_opu
from bad_calls.measures import (
    ANSWER,
    DRAWS,
    LABELS,
    LOGITS,
    POSTERIOR,
    PROBS,
    SAMPLES,
    X,
    broken,
    student,
    teacher,
    unchecked,
)
from bad_calls.table import arguments, calls, values
from pyro_opu import plots
from pyro_opu.distributions import Empirical

THREE = Dirichlet(torch.ones(3))
AXES = ["left", 3, [1]]
# fmt: off
arguments(plots.simplex, {
    "nothing to draw": (None,),
    "a tensor": (PROBS,),
    "several inputs": (ANSWER,),
    "four classes": (Dirichlet(torch.ones(4)),),
    "atoms": (Empirical(LOGITS[:, :1].log_softmax(-1)),)})
values(plots.simplex, THREE, labels=[["a", "b"], 3], ax=AXES)
values(plots.simplex, None,
    draws={"of logits": LOGITS[0], "a list": PROBS.tolist(), "with NaN": broken(PROBS),
        "of four classes": torch.rand(3, 4), "of several inputs": DRAWS})
values(plots.three_classes, PROBS,
    classes=[[0, 1], [0, 1, 1], [0, 1, 3], ["a", "b", "c"], 3, [0, 1.5, 2]])
values(partial(plots.three_classes, classes=[0, 1, 2]),
    source={"a list": PROBS.tolist(), "with NaN": broken(PROBS),
        "of no probability": torch.tensor([[0.0, 0.0, 0.0, 1.0]])})
SQUARE = ((-1, 1), (-1, 1))
MAP = partial(plots.decision_map, student)
values("plots.decision_map", MAP, bounds=[(-1, 1), ((1, -1), (-1, 1))])
calls("plots.decision_map", {
    "eight classes": lambda: plots.decision_map(partial(student, classes=8), SQUARE),
    "a measure that is infinite": lambda: plots.decision_map(
        lambda x: Empirical(student(x).mean.log()[None]), SQUARE, measure="concentration")})
MAP = partial(MAP, SQUARE)
values("plots.decision_map", MAP, measure=["doubt", 3], resolution=[1], vmax=["most"], ax=AXES)
values("plots.decision_map", partial(MAP, vmax=0.5), vmin=[1.0])
values("plots.decision_map", MAP, x={"of another width": torch.randn(6, 3)})
values("plots.decision_map", MAP, y={"without data": LABELS})
values("plots.decision_map", partial(MAP, x=X, resolution=5),
    y={"of another length": LABELS[:4], "out of range": LABELS + 5, "3": 3})
values(partial(plots.decision_maps, bounds=SQUARE),
    sources={"of no panels": {}, "without a title": student, "a number": {"a": 3}})
values(plots.decision_maps, {"a": student}, SQUARE, columns=[0])
arguments(plots.reliability, {
    "logits": (LOGITS[0], LABELS),
    "NaN": (broken(PROBS), LABELS),
    "rows that sum to 1, an entry below 0": (torch.tensor([[1.5, -0.5]] * 6), LABELS % 2),
    "labels of another length": (PROBS, LABELS[:4]),
    "labels out of range": (PROBS, LABELS + 1),
    "an array": (PROBS.numpy(), LABELS),
    "draws": (DRAWS, LABELS),
    "float labels": (PROBS, LABELS.float()),
    "no models": ({}, LABELS)})
values(plots.reliability, PROBS, LABELS, bins=[0], ax=AXES)
SCORES, WRONG = {"entropy": torch.rand(6)}, LABELS == 0
arguments(plots.risk_coverage, {
    "scores without a name": (SCORES["entropy"], WRONG),
    "labels for errors": (SCORES, LABELS),
    "errors of another length": (SCORES, WRONG[:4]),
    "NaN": ({"entropy": broken(SCORES["entropy"])}, WRONG),
    "scores in words": ({"entropy": ["a"] * 6}, WRONG),
    "no rows": ({"entropy": SCORES["entropy"][:0]}, WRONG[:0]),
    "other names": (SCORES, {"variance": WRONG})})
values(plots.risk_coverage, SCORES, WRONG, ax=AXES)
HISTOGRAMS = plots.concentration_histograms
arguments("plots.concentration_histograms", HISTOGRAMS, {
    "answers without a name": (ANSWER,),
    "numbers": ({"in": 3.0},),
    "logits": ({"in": LOGITS},),
    "a Dirichlet with NaN": ({"in": unchecked(broken(PROBS))},)})
values("plots.concentration_histograms", partial(HISTOGRAMS, {"in": ANSWER}), bins=[2.5],
    measure=["doubt"], ax=AXES)
arguments(plots.fidelity_scatter, {
    "one input": (student, teacher, X[:1]),
    "a list of rows": (student, teacher, X.tolist()),
    "no student": (None, teacher, X),
    "another width": (student, teacher, torch.randn(6, 3)),
    "a student of other classes": (partial(student, classes=5), teacher, X)})
values(plots.fidelity_scatter, student, teacher, X, measure=["doubt"], ax=AXES)
values(plots.training_curves,
    report={"a number": 3, "without a history": {"seed": 0},
        "of a history that is none": {"history": [{"step": 0}]},
        "of a history that is a number": {"history": 3}})
HISTORY = {"history": [record("start", 0, 1.0)]}
values(plots.training_curves, HISTORY, axes=[["left", "right"], 3, [1]])

TO = pyro_opu.to_inference_data
arguments("to_inference_data", TO, {
    "no run": (3,),
    "samples": (SAMPLES, X),
    "a Predictive without data": (POSTERIOR,),
    "no labels": (POSTERIOR, X),
    "labels of another length": (POSTERIOR, X, LABELS[:4]),
    "labels out of range": (POSTERIOR, X, LABELS + 1),
    "float labels with a part": (POSTERIOR, X, LABELS + 0.5),
    "another width": (POSTERIOR, torch.randn(6, 5), LABELS),
    "a student without inputs": (student,)})
CLASSES = {"dims": {"bias": ["class"]}, "coords": {"class": ["a"]}}
values("to_inference_data", partial(TO, POSTERIOR, X, LABELS), num_chains=[7], num_draws=[7],
    dims=[["class"], {"bias": ["a", "b", "c"]}], coords=[["class"]], seed=[1.5])
arguments("to_inference_data", partial(TO, **CLASSES), {
    "coords of another length": (POSTERIOR, X, LABELS)})
values("to_inference_data, of a student", partial(TO, student, X, LABELS), num_draws=[2.5, 0])
arguments("to_inference_data, of a student", partial(TO, num_draws=5), {
    "labels out of range": (student, X, LABELS + 1),
    "labels of another length": (student, X, LABELS[:4]),
    "a list of labels": (student, X, LABELS.tolist())})
