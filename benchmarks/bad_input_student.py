"""Bad calls of teachers, students, guides, transfer policies and export, for ``bad_input``."""

from __future__ import annotations

import functools
import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.bad_input import Cases
from benchmarks.bad_input_distill import (
    OTHER_OUTCOMES,
    SOURCES,
    Answering,
    BadPolicy,
    X,
    draws,
    failed,
    predictive,
    raising,
    real,
    short,
    with_entry,
)
from pyro_opu import OnePassPredictive, PredictiveGuide, as_teacher
from pyro_opu.export import export
from pyro_opu.export.capture import capture
from pyro_opu.guides import (
    LogisticNormalGuide,
    MixtureGuide,
    PointGuide,
    SingleHeadGuide,
)
from pyro_opu.transfer import (
    Box,
    Gaussian,
    HeldOut,
    ImageCorruption,
    Jitter,
    Mixture,
    Mixup,
    Stretch,
    default_transfer,
)

NAN = math.nan
DROPOUT = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 4))
#: Inputs that no call takes, for three features.
INPUTS: dict[str, Any] = {
    "a list": X.tolist(),
    "a NumPy array": X.numpy(),
    "None": None,
    "a string": "x",
    "without a row": X[:0],
    "1-d": X[:, 0],
    "of integers": X.long(),
    "of bools": X > 0,
    "complex": X + 0j,
    "sparse": X.to_sparse(),
    "on the meta device": X.to("meta"),
    "with NaN": with_entry(NAN),
    "with infinity": with_entry(math.inf),
    "of another width": X[:, :2],
    "of another rank": X[:, None],
}


@functools.cache
def student() -> OnePassPredictive:
    return short(predictive())


@functools.cache
def regressor() -> Any:
    return short(real)


@functools.cache
def files() -> Path:
    """A folder with a student's file and damaged ones."""
    folder = Path(tempfile.mkdtemp())
    student().save(folder / "student")
    regressor().save(folder / "regressor")
    whole = (folder / "student").read_bytes()
    (folder / "cut").write_bytes(whole[: len(whole) // 2])
    (folder / "short").write_bytes(whole[:6])
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("no student")
    (folder / "flipped").write_bytes(whole[:-9] + bytes([whole[-9] ^ 255]) + whole[-8:])
    torch.save({"w": X}, folder / "pickle")
    return folder


def load(name: str = "student", **arguments: Any) -> Any:
    return OnePassPredictive.load(files() / name, **arguments)


def build(guide: Any = None, shape: Any = (3,), classes: Any = 4, **arguments: Any) -> Any:
    guide = PredictiveGuide.for_inputs(X, 4) if guide is None else guide
    return OnePassPredictive(guide, shape, classes, **arguments)


CASES = Cases()
add = CASES.add
#: Calls that take inputs.
for _name, _make in {
    "OnePassPredictive()": student,
    "OnePassPredictive.dirichlet": lambda: student().dirichlet,
    "OnePassPredictive.marginals": lambda: student().marginals,
    "OnePassPredictive.uncertainty": lambda: student().uncertainty,
    "OnePassPredictive.distribution": lambda: student().distribution,
    "OnePassPredictive.call": lambda: student().call,
    "OnePassRegression()": regressor,
    "Teacher.probs": lambda: as_teacher(predictive()).probs,
    "Teacher.log_probs": lambda: as_teacher(DROPOUT).log_probs,
}.items():
    CASES += [(_name, f"x {what}", lambda m=_make, x=x: m()(x)) for what, x in INPUTS.items()]
CASES += [
    ("OnePassPredictive()", "no input", lambda: student()()),
    ("OnePassPredictive()", "an unknown keyword", lambda: student()(inputs=X)),
    ("OnePassPredictive()", "an `inputs` that raises", lambda: build(inputs=raising)(X)),
    ("OnePassPredictive()", "an `inputs` of None", lambda: build(inputs=lambda x: None)(X)),
]
#: Sources.
CASES += [
    ("as_teacher", what, lambda source=source: as_teacher(source).probs(X))
    for what, source in SOURCES.items()
    if what not in ("one draw", "classes that follow the rows") and "real posterior" not in what
]
CASES += [
    ("as_teacher", what, lambda source=source: as_teacher(source).probs(X))
    for what, source in OTHER_OUTCOMES.items()
]
CASES += [
    ("as_teacher", f"site={site!r}", lambda s=site: as_teacher(predictive(), s).probs(X))
    for site in ("label", "weight", 3)
]
CASES += [
    ("as_teacher", "inputs='x'", lambda: as_teacher(predictive(), inputs="x").probs(X)),
    ("as_teacher", "site of a function", lambda: as_teacher(draws, "obs")),
]
CASES += [
    (
        "Teacher.probs",
        f"num_draws={count!r}",
        partial(lambda c: as_teacher(draws).probs(X, c), count),
    )
    for count in (0, -1, 2.5, "3", True, 9)
]
#: The constructor and files.
CASES += [
    ("OnePassPredictive", f"{name}={repr(value)[:40]}", partial(build, **{name: value}))
    for name, values in {
        "guide": [3, "dirichlet", PredictiveGuide, draws],
        "shape": [3, "3", (0,), (2.5,), None],
        "classes": [1, 2.5, "4"],
        "num_samples": [0, 2.5, "3", None],
        "sites": ["obs", ["obs"], None],
        "inputs": ["x", 3],
        "report": ["none", 3],
        "input_name": [3],
    }.items()
    for value in values
]
CASES += [
    ("OnePassPredictive", "guide=None", lambda: OnePassPredictive(None, (3,), 4)),
    ("OnePassPredictive()", "a guide of other classes", lambda: build(classes=5)(X)),
    ("OnePassPredictive()", "a guide of other inputs", lambda: build(shape=(2,))(X[:, :2])),
    ("OnePassPredictive()", "a guide of logits", lambda: build(nn.Linear(3, 4))(X)),
    ("OnePassPredictive()", "a guide that raises", lambda: build(Answering(raising))(X)),
]
CASES += [
    ("OnePassPredictive.load", f"the file {name!r}", partial(load, name))
    for name in ("missing", "cut", "short", "empty", "text", "flipped", "pickle")
]
CASES += [
    ("OnePassPredictive.load", "a folder", lambda: OnePassPredictive.load(files())),
    ("OnePassPredictive.load", "a number as path", lambda: OnePassPredictive.load(3)),
    ("OnePassPredictive.load", "no path", lambda: OnePassPredictive.load(None)),
    ("OnePassPredictive.save", "in a missing folder", lambda: student().save("missing/student")),
    ("OnePassPredictive.save", "a number as path", lambda: student().save(3)),
    ("OnePassPredictive.save", "an empty path", lambda: student().save("")),
]
CASES += [
    ("OnePassPredictive.load", f"{name}={repr(value)[:40]}", partial(load, **{name: value}))
    for name, values in {
        "device": ["meta", "gpu", 0, "cuda:99"],
        "guide": [
            "dirichlet",
            3,
            PredictiveGuide,
            nn.Linear(3, 4),
        ],
        "inputs": ["x", 3],
    }.items()
    for value in values
]
CASES += [
    ("OnePassPredictive.load", f"guide: {what}", partial(load, guide=guide))
    for what, guide in {
        "other classes": PredictiveGuide.for_inputs(X, 5),
        "another width": PredictiveGuide.for_inputs(X, 4, hidden=(7,)),
    }.items()
]
#: Guides.
GUIDES = (
    PredictiveGuide,
    SingleHeadGuide,
    PointGuide,
    MixtureGuide,
    LogisticNormalGuide,
)
CASES += [
    (f"{guide.__name__}.for_inputs", f"num_classes={value!r}", partial(guide.for_inputs, X, value))
    for guide in GUIDES
    for value in (1, 2.5, "4")
]
CASES += [
    ("PredictiveGuide.for_inputs", f"x {what}", partial(PredictiveGuide.for_inputs, x, 4))
    for what, x in INPUTS.items()
    if what not in ("of another width", "of another rank", "1-d", "of bools")
]
CASES += [
    (
        f"{guide.__name__}.for_inputs",
        f"hidden={value!r}",
        partial(guide.for_inputs, X, 4, hidden=value),
    )
    for guide in (PredictiveGuide, MixtureGuide)
    for value in ((0,), (-3,), (2.5,), ("a",), 32, "32")
]
CASES += [
    (f"{guide.__name__}", what, partial(guide, *arguments, **options))
    for guide, what, arguments, options in [
        (PredictiveGuide, "one class", (nn.Linear(3, 8), 8, 1), {}),
        (PredictiveGuide, "trunk=None", (None, 8, 4), {}),
        (PredictiveGuide, "a function as trunk", (draws, 8, 4), {}),
        (PredictiveGuide, "features=0", (nn.Linear(3, 8), 0, 4), {}),
        (PredictiveGuide, "features='8'", (nn.Linear(3, 8), "8", 4), {}),
        (PredictiveGuide, "a function as second trunk", (nn.Linear(3, 8), 8, 4, draws), {}),
        (MixtureGuide, "trunk=None", (None, 8, 4), {}),
        (MixtureGuide, "num_components=0", (nn.Linear(3, 8), 8, 4), {"num_components": 0}),
        (MixtureGuide, "num_components=2.5", (nn.Linear(3, 8), 8, 4), {"num_components": 2.5}),
        (LogisticNormalGuide, "rank=-1", (nn.Linear(3, 8), 8, 4), {"rank": -1}),
        (LogisticNormalGuide, "rank='2'", (nn.Linear(3, 8), 8, 4), {"rank": "2"}),
    ]
]
CASES += [
    (
        "PredictiveGuide.recalibrate",
        f"scale={scale!r}, shift={shift!r}",
        lambda a=scale, b=shift: PredictiveGuide.for_inputs(X, 4).recalibrate(a, b),
    )
    for scale, shift in [(0.0, 0.0), (-1.0, 0.0), (NAN, 0.0), (1.0, NAN), (1.0, math.inf), ("1", 0)]
]
CASES += [
    (
        "PredictiveGuide.start_at",
        f"log_concentration={value!r}",
        lambda v=value: PredictiveGuide.for_inputs(X, 4).start_at(v),
    )
    for value in (NAN, math.inf, "1", None)
]
#: Transfer policies.
CASES += [
    (f"transfer.{policy.__name__}", f"{name}={value!r}", partial(policy, **{name: value}))
    for policy, name, values in [
        (Jitter, "scale", [0, -1.0, NAN, math.inf, "1", None]),
        (Jitter, "min_scale", [0, 2.0, "1"]),
        (Mixup, "alpha", [0, -1.0, NAN, "1"]),
        (Stretch, "factor", [1.0, 0.5, NAN, "4"]),
        (Box, "expand", [-0.1, NAN, "0.1"]),
        (Gaussian, "scale", [0, -1.0, NAN, "2"]),
        (Gaussian, "max_scale", [1.0, NAN, "4"]),
        (Mixture, "components", [[], [HeldOut()], [(0, HeldOut())], [("1", HeldOut())], 3, "ab"]),
        (Mixture, "components", [[(1, "HeldOut")], [(NAN, HeldOut())]]),
        (ImageCorruption, "kinds", ["affine", ("blurr",), (), 3]),
        (ImageCorruption, "depth", [0, 1.5, "2"]),
        (ImageCorruption, "image_shape", [(0, 8), 8, "8x8", (2.5, 8)]),
    ]
    for value in values
]
CASES += [
    ("TransferPolicy.fit", f"x {what}", partial(HeldOut().fit, x))
    for what, x in INPUTS.items()
    if what not in ("1-d", "of another width", "of another rank")
]
CASES += [
    ("TransferPolicy.sample", f"n={n!r}", lambda n=n: HeldOut().fit(X).sample(n))
    for n in (0, -1, 2.5, "3", True, None)
]
CASES += [
    ("TransferPolicy.sample", what, call)
    for what, call in {
        "not fitted": lambda: Jitter().sample(3),
        "NaN": lambda: BadPolicy(lambda x: x * NAN).fit(X).sample(3),
        "fewer rows": lambda: BadPolicy(lambda x: x[1:]).fit(X).sample(3),
        "an error": lambda: BadPolicy(failed).fit(X).sample(3),
        "too large a scale": lambda: Gaussian(scale=1e38).fit(1e3 * X).sample(3),
        "images of tables": lambda: ImageCorruption().fit(X).sample(3),
    }.items()
]
CASES += [
    ("default_transfer", f"x {what}", partial(default_transfer, x))
    for what, x in INPUTS.items()
    if what not in ("1-d", "of another width", "of another rank")
]
CASES += [
    ("default_transfer", f"image_shape={s!r}", partial(default_transfer, X, s))
    for s in (8, "8x8", (0, 8))
]
#: Capture and export.
add("capture", "no student", capture, DROPOUT, X)
add("capture", "another width", lambda: student().capture(X[:, :2]))
add("capture", "a list", lambda: student().capture(X.tolist()))
add("capture", "another precision", lambda: student().capture(X, precision=torch.float64))
add("capture", "a precision in words", lambda: student().capture(X, precision="half"))
add("export", "another format", lambda: student().export("student.bin"))
add("export", "a folder that is not there", lambda: student().export("nowhere/student.pt2"))
add("export", "no student", export, DROPOUT, "student.pt2", X)
add("export", "no such output", lambda: student().export("student.pt2", outputs=["doubt"]))
add("export", "outputs that are a number", lambda: student().export("student.pt2", outputs=3))
add("export", "an example of another width",
    lambda: student().export("student.pt2", example_x=X[:, :2]))  # fmt: skip
add("export", "a path that is a number", lambda: student().export(3))
