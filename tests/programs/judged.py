"""What becomes of a program: ``distill(source, x)`` by default, judged at new inputs.

``measured(title)`` puts a program into one of five classes, none of which counts for another:

- "faithful": no warning, a KL that is a number, and :func:`~pyro_opu.fidelity` says faithful;
- "not faithful": no warning, and it does not;
- "warned": a warning said what is wrong with the posterior, the call or the student;
- "refused": an error of the package says what to write instead, in the words of ``cure``;
- "failed": any other error, or an answer that is not the one of ``Predictive`` to the same call.
"""

from __future__ import annotations

import inspect
import math
import time
import warnings
from typing import Any

import pyro
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from programs import awkward, groups, linear, networks, outcomes  # noqa: F401 - their programs
from programs.base import PROGRAMS, Program, briefly
from pyro_opu.checks import ArgumentCallError, ArgumentError

CLASSES = ("faithful", "not faithful", "warned", "refused", "failed")
#: Standard errors at most between two means, and characters kept of what was said.
ERRORS, SHOWN = 6.0, 1500
#: Training steps of a quick program, whose student is good for nothing, and draws that judge it.
QUICK, FEW = 5, 40


def measured(title: str, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """The row of a program: its "class", what was said, and the numbers behind it.

    A quick one is inferred and taught in a few steps: its KL means nothing, everything else does.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    start = time.process_time()
    with warnings.catch_warnings(), briefly(quick):
        warnings.simplefilter("ignore")
        program = PROGRAMS[title]()
    source = program.source
    row: dict[str, Any] = {
        "program": title,
        "model": signature(source),
        "posterior": posterior(source),
        "infer, s": time.process_time() - start,
    }
    start = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            row |= judged(program, seed, quick)
        except Exception as error:  # noqa: BLE001 - how it is refused is the measurement
            row |= {"class": refused(error, program.cure), "says": text(error)}
    row["judge, s"] = time.process_time() - start
    told = [w for w in said if issubclass(w.category, UserWarning) and ours(w)]
    row["teacher"] = "loop" if any("draw by draw" in str(w.message) for w in told) else "batched"
    row.setdefault("says", "; ".join(dict.fromkeys(text(w.message) for w in told)))
    row.setdefault("class", classified(row))
    return row


def judged(program: Program, seed: int, quick: bool) -> dict[str, Any]:
    """The student of a program, and how it does."""
    source, start = program.source, time.process_time()
    steps, few = ({"num_steps": QUICK}, {"num_draws": FEW}) if quick else ({}, {})
    options = program.options
    teacher = pyro_opu.as_teacher(source, **options) if options else source
    fast = pyro_opu.distill(teacher, program.x, seed=seed, progress=False, **steps)
    row: dict[str, Any] = {"distil, s": time.process_time() - start}
    # First: a Predictive in training mode changes what its network says.
    found = pyro_opu.fidelity(fast, teacher, program.new, seed=seed, wasserstein_inputs=0, **few)
    if isinstance(source, Predictive):
        args, kwargs = called(program)
        theirs = source(*args, **kwargs)
        row["same call"] = same(fast(*args, **kwargs), theirs, source)
        row["batched"] = alike(pyro_opu.batched(source)(*args, **kwargs), theirs)
    fast.uncertainty(program.new)
    return row | {
        "KL / attainable": found.kl_ratio,
        "draws": found.draws,
        "faithful": found.faithful,
    }


def classified(row: dict[str, Any]) -> str:
    """The class of a program that was answered."""
    if not (row.get("same call", "yes").startswith("yes") and row.get("batched", True)):
        return "failed"
    if row["says"]:
        return "warned"
    return "faithful" if row["faithful"] and not math.isnan(row["KL / attainable"]) else CLASSES[1]


def called(program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of a ``Predictive`` at the new inputs."""
    new = program.new if program.call is None else program.call
    if isinstance(new, dict):
        return (), new
    return (new if isinstance(new, tuple) else (new,)), {}


def kinds(values: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (tuple(value.shape), value.dtype) for name, value in values.items()}


def same(mine: dict[str, Tensor], theirs: dict[str, Tensor], source: Predictive) -> str:
    """Whether the kinds are the same; a guide's latents, which a warning names, may be missing."""
    one, two = kinds(mine), kinds(theirs)
    if one == two:
        return "yes"
    if source.guide is not None and one and one.items() <= two.items():
        return "yes, without latents"
    return f"no: {dict(one.items() - two.items())} for {dict(two.items() - one.items())}"


def alike(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Whether the kinds are the same, and every mean over draws within some standard errors."""
    if kinds(one) != kinds(two):
        return False
    for name in one:
        first, second = one[name].double(), two[name].double()
        error = ((first.var(0) + second.var(0)) / len(first)).sqrt()
        # A value of two that one of them drew once is within: 1 / S is its error, too.
        gap = (first.mean(0) - second.mean(0)).abs() - ERRORS * (error + 1 / len(first))
        if bool((gap > 0).any()):
            return False
    return True


def signature(source: Any) -> str:
    """The model's arguments."""
    model = source.model if isinstance(source, Predictive) else source
    return f"({', '.join(inspect.signature(getattr(model, 'forward', model)).parameters)})"


def posterior(source: Any) -> str:
    if not isinstance(source, Predictive):
        return "function"
    return "draws" if source.guide is None else type(source.guide).__name__


def ours(warning: warnings.WarningMessage) -> bool:
    """Whether the package said it to the user, at a line of this file, of more than latents.

    That one pass gives no latents is seen in what was answered to the same call.
    """
    return warning.filename == __file__ and "one pass cannot" not in str(warning.message)


def refused(error: Exception, cure: str) -> str:
    """Whether an error is one of this package, which says what to write."""
    known = isinstance(error, ArgumentError) and not isinstance(error, ArgumentCallError)
    return "refused" if known and cure and cure in str(error) else "failed"


def text(said: Any) -> str:
    """What was said, in one line."""
    return " ".join(f"{type(said).__name__}: {said}".split())[:SHOWN]
