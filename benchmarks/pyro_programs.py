"""Programs of Pyro's tutorials and examples, as their users write them: what becomes of each.

python -m benchmarks.pyro_programs [names ...]

With names, words of titles, only these programs are measured, and the other rows stay.

Each is rewritten from its description, with the signature, arguments and plates of the original, on
small synthetic data, and inferred as there, briefly. Then ``distill(source, x)`` with its defaults,
and on new rows:

- *teacher*: whether all draws run at once or one after the other;
- *KL*, a multiple of the attainable, by :func:`~pyro_opu.fidelity`; beside it the multiples that
  one answer for all inputs has;
- *same call*: whether ``fast(x, ...)`` has the keys, shapes and dtypes of the ``Predictive``'s
  answer to the same call;
- *batched*: whether ``batched(predictive)`` gives these too, and at every site a mean within six
  standard errors of the loop's.

Seconds are those of the processor, on one thread.

A program passes with the same call and a KL of at most 4 times the attainable, or if a warning said
that the student is no good; it is refused where an error or a warning says what to write instead,
and fails otherwise.
"""

from __future__ import annotations

import inspect
import sys
import time
import warnings
from collections import Counter
from typing import Any

import pyro
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from benchmarks import (  # noqa: F401 - each enters its programs
    pyro_programs_awkward,
    pyro_programs_groups,
    pyro_programs_linear,
    pyro_programs_networks,
    pyro_programs_outcomes,
)
from benchmarks.pyro_programs_base import PROGRAMS, Program
from benchmarks.results import kept, parser, say, write
from pyro_opu.predictive.distillation_report import FidelityWarning

#: KL at most, in multiples of the attainable; standard errors at most between two means.
MOST, ERRORS = 4.0, 6.0
#: Results of a program, and the stem of the file.
RESULTS, NAME = ("pass", "refused", "failed"), "pyro_programs"
#: Calls that are timed, and characters shown of what was said.
CALLS, SHOWN = 3, 1500


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", help="programs whose titles have one of these words")
    args = options.parse_args()
    torch.set_num_threads(1)
    chosen = [t for t in PROGRAMS if not args.names or any(name in t for name in args.names)]
    rows = {row["program"]: row for row in kept(NAME).get("Programs", []) if args.names}
    for title in chosen:
        rows[title] = measured(title, quick=args.quick)
        tables = tables_of([rows[title] for title in PROGRAMS if title in rows])
        if not args.quick:
            settings = {"KL at most, x attainable": MOST, "programs": len(PROGRAMS)}
            write(NAME, f"python -m benchmarks.{NAME}", settings, tables)
    say({"Count": tables["Count"]})
    if any(rows[title]["result"] == "failed" for title in chosen):
        sys.exit("a program failed")


def tables_of(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """How many programs have which result, and the programs by their results."""
    found = Counter(row["result"] for row in rows)
    said = [{"result": result, "programs": found[result]} for result in RESULTS]
    left = [row for row in rows if row["result"] == "refused"]
    refused = [{key: row[key] for key in ("program", "model", "says")} for row in left]
    return {"Count": said, "Programs": rows, "Refused": refused}


def measured(title: str, *, quick: bool = False) -> dict[str, Any]:
    """The row of a program; a quick one has few steps, and its KL is not looked at."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    row: dict[str, Any] = {"program": title}
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = PROGRAMS[title]()
    row |= {"model": signature(program.source), "posterior": posterior(program.source)}
    row["infer, s"] = time.process_time() - start
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            row |= judged(program, {"num_steps": 20} if quick else {})
        except Exception as error:  # noqa: BLE001 - what is refused, and how, is the measurement
            row |= {"result": refused(error, program.cure), "says": text(error)}
    told = [w for w in said if issubclass(w.category, UserWarning) and ours(w)]
    row["teacher"] = "loop" if any("draw by draw" in str(w.message) for w in told) else "batched"
    row["warned"] = next((w.category.__name__ for w in told if honest(w)), "no")
    if "result" not in row:
        good = row["KL / attainable"] <= MOST or row["warned"] != "no" or quick
        row["result"] = "pass" if row["same call"].startswith("yes") and good else "failed"
        row["says"] = "; ".join(
            text(w.message) for w in told if "one pass cannot" not in str(w.message)
        )
    print(f"{time.process_time() - start:5.1f} s  {row['result']:<8}{title}: ", end="")
    print({k: v for k, v in row.items() if k not in ("program", "model", "result")}, flush=True)
    return row


def judged(program: Program, steps: dict[str, int]) -> dict[str, Any]:
    """The student of a program, and how it does."""
    source = program.source
    start = time.process_time()
    fast = pyro_opu.distill(source, program.x, seed=0, progress=False, **program.options, **steps)
    row: dict[str, Any] = {"distil, s": time.process_time() - start}
    # First: a Predictive in training mode changes what its network says.
    called_so = {k: v for k, v in program.options.items() if k in ("inputs", "arguments")}
    teacher = pyro_opu.as_teacher(source, **called_so) if called_so else source
    found = pyro_opu.fidelity(fast, teacher, program.new, seed=0, wasserstein_inputs=0)
    least = found.kl_attainable
    trivial = found.kl_trivial / least if least else float("inf")
    args, kwargs = called(program)
    if isinstance(source, Predictive):
        start = time.process_time()
        theirs = source(*args, **kwargs)
        row["Predictive, ms"] = 1e3 * (time.process_time() - start)
        mine = fast(*args, **kwargs)
        row["same call"] = same(mine, theirs, source)
        both = pyro_opu.batched(source)(*args, **kwargs)
        row["batched"] = "yes" if alike(both, theirs) else "no"
    else:
        row["same call"] = "yes"
    row["one pass, ms"] = milliseconds(fast, args, kwargs)
    said = fast.uncertainty(program.new)
    if hasattr(said, "epistemic"):
        row["epistemic"] = float(said.epistemic.mean())
    return row | {"KL / attainable": found.kl_ratio, "trivial / attainable": trivial}


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
    if (
        source.guide is not None
        and one
        and all(two.get(name) == kind for name, kind in one.items())
    ):
        return "yes, without latents"
    found = {k: (one.get(k), two.get(k)) for k in {**one, **two} if one.get(k) != two.get(k)}
    return f"no: {found}"


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


def milliseconds(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The least processor time of a few calls."""
    took = []
    for _ in range(CALLS):
        start = time.process_time()
        call(*args, **kwargs)
        took.append(1e3 * (time.process_time() - start))
    return min(took)


def signature(source: Any) -> str:
    """The model's name and arguments."""
    model = source.model if isinstance(source, Predictive) else source
    function = getattr(model, "forward", model)
    return f"({', '.join(inspect.signature(function).parameters)})"


def posterior(source: Any) -> str:
    if not isinstance(source, Predictive):
        return "function"
    return "draws" if source.guide is None else type(source.guide).__name__


def ours(warning: warnings.WarningMessage) -> bool:
    """Whether this package said it: to the user, so at a line of this file."""
    return warning.filename == __file__


def honest(warning: warnings.WarningMessage) -> bool:
    """Whether it says that the student is no good, or that there is nothing to learn."""
    return issubclass(warning.category, FidelityWarning) or "no epistemic" in str(warning.message)


def refused(error: Exception, cure: str) -> str:
    """Whether an error is one of this package, which says what to write."""
    known = bool(cure) and isinstance(error, (TypeError, ValueError)) and cure in str(error)
    return "refused" if known else "failed"


def text(said: Any) -> str:
    """What was said, in one line."""
    return " ".join(f"{type(said).__name__}: {said}".replace("|", "/").split())[:SHOWN]


if __name__ == "__main__":
    main()
