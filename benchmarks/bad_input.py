"""Bad calls of every public function and what they get: a clear error, a raw one, or none.

python -m benchmarks.bad_input [--only distill]

The cases lie in the modules ``bad_input_*.py`` beside this one, each with a list ``CASES`` of
triples (public function, what is wrong, the call). An error is clear if the package itself raised
it and its message names an argument in backticks; any other exception is raw; a call that returns,
or leaves a file behind, is silent. Fails where one is silent or more than 2 % are raw.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyro
import torch

import pyro_opu
from benchmarks.results import parser, write

#: Public function, what is wrong with the call, and the call.
Case = tuple[str, str, Callable[[], Any]]


class Cases(list[Case]):
    """A list of bad calls."""

    def add(
        self, name: str, what: str, call: Callable[..., Any], /, *args: Any, **kws: Any
    ) -> None:
        """One case."""
        self.append((name, what, partial(call, *args, **kws)))

    def each(
        self, name: str, call: Callable[..., Any], argument: str, /, *values: Any, **kws: Any
    ) -> None:
        """One case for every value of one argument."""
        for value in values:
            self.add(name, f"{argument}={value!r}"[:60], call, **{argument: value}, **kws)


OUTCOMES = ("clear", "raw", "silent")
MOST_RAW = 0.02
#: Where errors of our own come from, those of the models too.
HOME = str(Path(pyro_opu.__file__).parent)
ARGUMENT = re.compile(r"`[^`]+`")


def main() -> int:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="functions whose name contains this")
    args = options.parse_args()
    began = time.process_time()
    tried = [case for case in all_cases() if args.only in case[0]]
    rows = run(tried)
    seconds = time.process_time() - began
    unclear = [row for row in rows if row["outcome"] != "clear"]
    for row in unclear:
        print(f"{row['outcome']}: {row['function']}, {row['wrong']}: {row['message'][:300]}")
    counts = Counter(row["outcome"] for row in rows)
    print(f"\n{len(rows)} cases in {seconds:.0f} s of CPU: {dict(counts)}")
    if not args.quick and not args.only:
        settings = {"cases": len(rows), "seconds of CPU": round(seconds)}
        tables = {"By function": by_function(rows), "Not clear": unclear}
        write("bad_input", "python -m benchmarks.bad_input", settings, tables)
    return int(counts["silent"] > 0 or counts["raw"] > MOST_RAW * len(rows))


def all_cases() -> list[Case]:
    """The lists of all modules ``benchmarks/bad_input_*.py``."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("bad_input_*.py"))
    return [case for name in names for case in import_module(f"benchmarks.{name}").CASES]


def run(cases: Iterable[Case]) -> list[dict[str, str]]:
    """One row for each case; a call is made in an empty folder, with the same random numbers."""
    return [{"function": where, "wrong": what, **tell(call)} for where, what, call in cases]


def tell(call: Callable[[], Any]) -> dict[str, str]:
    """The outcome of a call, the kind of its error, and the message."""
    torch.manual_seed(0)
    pyro.clear_param_store()
    with tempfile.TemporaryDirectory() as folder, working_in(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - any error is an outcome
            left = [path.name for path in Path(folder).iterdir()]
            outcome = "silent" if left else "clear" if is_clear(error) else "raw"
            text = str(error).replace(folder, "FOLDER").replace(str(Path.home()), "~")
            text = " ".join(f"{text} Left behind: {left}".split() if left else text.split())
            return {"outcome": outcome, "error": type(error).__name__, "message": text}
    message = f"returned a value of type {type(value).__name__}"
    return {"outcome": "silent", "error": "", "message": message}


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    """``folder`` is the working directory inside."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def is_clear(error: BaseException) -> bool:
    """Whether the package itself raised the error, and its message names an argument."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename.startswith(HOME) and bool(ARGUMENT.search(str(error)))


def by_function(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Number of cases and of each outcome by function, and the totals."""
    functions = sorted({row["function"] for row in rows})
    groups = {name: [row for row in rows if row["function"] == name] for name in functions}
    return [
        {"function": name, "cases": len(group), **_counts(group)}
        for name, group in {**groups, "all": rows}.items()
    ]


def _counts(rows: list[dict[str, str]]) -> dict[str, int]:
    return {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}


if __name__ == "__main__":
    sys.exit(main())
