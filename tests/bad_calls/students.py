"""Bad calls of teachers, students, guides, transfer policies and export."""

import functools
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pyro_opu
from bad_calls.distilling import (
    INPUTS,
    NAN,
    OTHER_OUTCOMES,
    SOURCES,
    TRANSFERRED,
    Answering,
    BadPolicy,
    X,
    draws,
    predictive,
    raising,
    real,
    short,
)
from bad_calls.table import arguments, calls, values, without
from pyro_opu import OnePassPredictive, PredictiveDirichlet, PredictiveGuide, as_teacher
from pyro_opu.export import export
from pyro_opu.export.capture import capture
from pyro_opu.guides import (
    ImplicitGuide,
    LogisticNormalGuide,
    MixtureGuide,
    PointGuide,
    SingleHeadGuide,
)
from pyro_opu.guides.normal import GaussianGuide, NormalMixtureGuide
from pyro_opu.transfer import (
    Box,
    Differences,
    Gaussian,
    HeldOut,
    ImageCorruption,
    Jitter,
    Mixture,
    Mixup,
    Stretch,
    default_transfer,
)

DROPOUT = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 4))


@functools.cache
def student() -> OnePassPredictive:
    return short(predictive())


@functools.cache
def sure() -> OnePassPredictive:
    """One with a bound."""
    many = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    return pyro_opu.distill(predictive(), many, num_steps=2, seed=0, progress=False)


@functools.cache
def regressor() -> Any:
    return short(real)


def load(name: str = "student", **given: Any) -> Any:
    """A student's file, or a damaged one, is written and read."""
    path = Path.home() / name
    student().save(path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "short": whole[:6],
            "empty": b"",
            "text": b"no student",
            "flipped": whole[:-9] + bytes([whole[-9] ^ 255]) + whole[-8:],
        }.get(name, whole)
    )
    if name == "pickle":
        torch.save({"w": X}, path)
    return OnePassPredictive.load(path, **given)


def scorer(path: Any = None, **given: Any) -> pyro_opu.Scorer:
    file = Path.home() / "scored"
    student().save(file)
    return pyro_opu.Scorer(file if path is None else path, **{"threads": None} | given)


def build(guide: Any = None, shape: Any = (3,), classes: Any = 4, **given: Any) -> Any:
    guide = PredictiveGuide.for_inputs(X, 4) if guide is None else guide
    return OnePassPredictive(guide, shape, classes, **given)


# fmt: off
for name, call in {
    "OnePassPredictive()": lambda x: student()(x),
    "OnePassPredictive.dirichlet": lambda x: student().dirichlet(x),
    "OnePassPredictive.uncertainty": lambda x: student().uncertainty(x),
    "OnePassPredictive.distribution": lambda x: student().distribution(x),
    "OnePassPredictive.call": lambda x: student().call(x),
    "OnePassPredictive.probs": lambda x: student().probs(x),
    "OnePassPredictive() of a real y": lambda x: regressor()(x),
    "Teacher.probs": lambda x: as_teacher(predictive()).probs(x),
    "Teacher.log_probs": lambda x: as_teacher(DROPOUT).log_probs(x),
}.items():
    values(name, call, x=INPUTS)
calls("OnePassPredictive()", {
    "no input": lambda: student()(),
    "an unknown keyword": lambda: student()(inputs=X),
    "an `inputs` that raises": lambda: build(inputs=raising)(X),
    "an `inputs` of None": lambda: build(inputs=lambda x: None)(X),
    "a guide of other classes": lambda: build(classes=5)(X),
    "a guide of other inputs": lambda: build(shape=(2,))(X[:, :2]),
    "a guide of logits": lambda: build(nn.Linear(3, 4))(X),
    "a guide that raises": lambda: build(Answering(raising))(X)})
values("OnePassPredictive.bound", lambda **given: student().bound(**given),
    level=[0, 1, 1.5, "95", None, True], of=["median", None], beyond=[-0.1, 2, "far"])
calls("OnePassPredictive.bound", {
    "a decision of a real y": lambda: regressor().bound(of="decision"),
    "a threshold of four classes": lambda: student().bound(of="margin", threshold=0.5),
    "a threshold of no decision": lambda: student().bound(threshold=0.5)})
values("OnePassPredictive.watch", lambda **given: sure().watch(X, **given),
       false_alarms=[0, 1, "few"], restart=["yes"])
calls("OnePassPredictive.watch", {
    "a student of few rows": lambda: student().watch(X),
    "inputs of another shape": lambda: sure().watch(X[:, :2])})
values("guarded", lambda **given: pyro_opu.guarded(**{"fast": sure(), "exact": None} | given),
    fast=[3, None, draws], exact=[3, "posterior"], level=[0, 1.5, "95", 0.999],
    novelty=[-1, 2, "far"], budget=[-0.1, 2, "all"], threshold=[0.5])
calls("guarded", {
    "a student of few rows": lambda: pyro_opu.guarded(student(), None),
    "novel rows and no exact answers": lambda: pyro_opu.guarded(sure(), None)(100 * X),
    "inputs of another shape": lambda: pyro_opu.guarded(sure(), None)(X[:, :2])})
values("Scorer", lambda **given: scorer(**given),
    path=[3, "nowhere.onnx"], columns=["a", 3, [], [1]], threads=[0, "1"], seed=[-1, "0"])
calls("Scorer()", {
    "no batch": lambda: scorer()(X),
    "a batch of two columns": lambda: scorer()({"a": [1.0], "b": [2.0]}),
    "a batch of text": lambda: scorer()({"x": ["a", "b"]}),
    "a column of an answer's name": lambda: scorer()({"x": X.numpy(), "epistemic": [0.0]})})
values("OnePassPredictive.probs", lambda **given: student().probs(X, **given),
    num_draws=[0, -1, 2.5, "3", True], seed=[2.5, "0"])
calls("OnePassPredictive.probs", {
    "of a regressor": lambda: regressor().probs(X),
    "more draws than a joint student holds": lambda: short(guide="joint").probs(X, 9)})
values("as_teacher", lambda source: as_teacher(source).probs(X),
    source=without({w: s for w, s in SOURCES.items() if "real posterior" not in w}, "one draw",
        "classes that follow the rows") | OTHER_OUTCOMES)
values("as_teacher", lambda site: as_teacher(predictive(), site).probs(X),
    site=["label", "weight", 3])
calls("as_teacher", {
    "inputs='x'": lambda: as_teacher(predictive(), inputs="x").probs(X),
    "site of a function": lambda: as_teacher(draws, "obs")})
values("Teacher.probs", lambda num_draws: as_teacher(draws).probs(X, num_draws),
    num_draws=[0, -1, 2.5, "3", True, 9])
values("OnePassPredictive", build,
    guide={"3": 3, "a name": "dirichlet", "a class": PredictiveGuide, "a function": draws},
    shape=[3, "3", (0,), (2.5,), None], classes=[1, 2.5, "4"], num_samples=[0, 2.5, "3", None],
    sites=["obs", ["obs"]], inputs=["x", 3], report=["none", 3], arguments=["x", [3]])
arguments(OnePassPredictive, {"guide=None": (None, (3,), 4)})

#: Paths that nothing can be written to.
PATHS = ["missing/student", "", "a\0b", "/nonexistent/student", "/dev/null/student", 3, None]
values("OnePassPredictive.save", lambda path: student().save(path), path=[*PATHS, "a/b/"])
calls("OnePassPredictive.save", {"a card for one file": lambda: student().save("s", card="text")})
values(OnePassPredictive.load, path=[*PATHS, "missing", "."])
values(load, name=["cut", "short", "empty", "text", "flipped", "pickle"])
values(load, device=["meta", "gpu", 0, "cuda:99"],
    guide={"a name": "dirichlet", "3": 3, "a class": PredictiveGuide, "of logits": nn.Linear(3, 4),
        "of other classes": PredictiveGuide.for_inputs(X, 5),
        "of another width": PredictiveGuide.for_inputs(X, 4, hidden=(7,))}, inputs=["x", 3])
values("export", lambda path: student().export(path), path=[*PATHS, "student.bin"])
calls("export", {
    "no student": lambda: export(DROPOUT, "student.pt2", X),
    "no such output": lambda: student().export("student.pt2", outputs=["doubt"]),
    "outputs that are a number": lambda: student().export("student.pt2", outputs=3),
    "an example of another width": lambda: student().export("s.pt2", example_x=X[:, :2])})
calls("capture", {
    "no student": lambda: capture(DROPOUT, X),
    "another width": lambda: student().capture(X[:, :2]),
    "a list": lambda: student().capture(X.tolist()),
    "another precision": lambda: student().capture(X, precision=torch.float64),
    "a precision in words": lambda: student().capture(X, precision="half"),
    "a precision of a guide without a trunk": lambda: build(Answering(
        lambda x: PredictiveDirichlet(draws(x)[0].log(), x[:, 0]))).capture(
            X, precision=torch.bfloat16)})

LAYER = nn.Linear(3, 8)
for guide in (PredictiveGuide, SingleHeadGuide, PointGuide, MixtureGuide, LogisticNormalGuide):
    values(f"{guide.__name__}.for_inputs", partial(guide.for_inputs, X), num_classes=[1, 2.5, "4"])
for guide in (PredictiveGuide, MixtureGuide):
    values(f"{guide.__name__}.for_inputs", partial(guide.for_inputs, X, 4),
        hidden=[(0,), (-3,), (2.5,), ("a",), 32, "32"])
for guide in (PredictiveGuide, MixtureGuide):
    values(f"{guide.__name__}.for_inputs", partial(guide.for_inputs, num_classes=4),
        x=without(INPUTS, "of another width", "of another rank", "1-d", "of bools"))
for guide in (PredictiveGuide, MixtureGuide, LogisticNormalGuide):
    arguments(guide, {
        "one class": (LAYER, 8, 1),
        "trunk=None": (None, 8, 4),
        "a function as trunk": (draws, 8, 4),
        "features=0": (LAYER, 0, 4),
        "features='8'": (LAYER, "8", 4)})
arguments(PredictiveGuide, {"a function as second trunk": (LAYER, 8, 4, draws)})
values(MixtureGuide, LAYER, 8, 4, num_components=[0, 2.5])
values(NormalMixtureGuide, LAYER, 8, num_components=[0])
values("GaussianGuide.for_inputs", GaussianGuide.for_inputs, X, y={"with NaN": NAN * X[:, 0]})
values("ImplicitGuide.for_inputs", ImplicitGuide.for_inputs, X, 4, noise=[0])
values(LogisticNormalGuide, LAYER, 8, 4, rank=[-1, 1.5, "2"])
RECALIBRATE = PredictiveGuide.for_inputs(X, 4).recalibrate
values("PredictiveGuide.recalibrate", RECALIBRATE, shift=[NAN, math.inf])
values("PredictiveGuide.start_at", PredictiveGuide.for_inputs(X, 4).start_at,
    log_concentration=[NAN, math.inf, "1", None])

values(Jitter, scale=[0, -1.0, NAN, math.inf, "1", None], min_scale=[0, 2.0, "1"])
values(Mixup, alpha=[0, -1.0, NAN, "1"])
values(Stretch, factor=[1.0, 0.5, NAN, "4"])
values(Differences, neighbours=[0, 1.5, "4"])
values(Box, expand=[-0.1, NAN, "0.1"])
values(Gaussian, scale=[0, -1.0, NAN, "2"], max_scale=[1.0, NAN, "4"])
values(Mixture,
    components={"without one": [], "without weights": [HeldOut()],
        "a weight of 0": [(0, HeldOut())], "a weight in words": [("1", HeldOut())],
        "a weight of NaN": [(NAN, HeldOut())], "a name": [(1, "HeldOut")], "3": 3,
        "a string": "ab"})
values(ImageCorruption, kinds=["affine", ("blurr",), (), 3], depth=[0, 1.5, "2"],
    image_shape=[(0, 8), 8, "8x8", (2.5, 8)])
FITTED = without(INPUTS, "1-d", "of another width", "of another rank")
FITTED["an array"] = X.numpy()
values("TransferPolicy.fit", HeldOut().fit, x=FITTED)
values("TransferPolicy.sample", lambda n: HeldOut().fit(X).sample(n),
    n=[0, -1, 2.5, "3", True, None])
values("TransferPolicy.sample", lambda change: BadPolicy(change).fit(X).sample(3),
    change={what: TRANSFERRED[what] for what in ("NaN", "fewer rows", "an error")})
calls("TransferPolicy.sample", {
    "not fitted": lambda: Jitter().sample(3),
    "too large a scale": lambda: Gaussian(scale=1e38).fit(1e3 * X).sample(3),
    "images of tables": lambda: ImageCorruption().fit(X).sample(3),
    "images of another size": lambda: ImageCorruption(image_shape=(8, 9)).fit(X).sample(3),
    "images of one axis": lambda: ImageCorruption(image_shape=(3,)).fit(X).sample(3),
    "images of two rows": lambda: ImageCorruption(image_shape=(2, 20)).fit(X.T).sample(3)})
values(default_transfer, x=FITTED)
values(default_transfer, X, image_shape=[8, "8x8", (0, 8)])
