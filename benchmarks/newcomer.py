"""What a newcomer meets: quick notebooks, the README's example, ArviZ, the docs; and what passes.

python -m benchmarks.newcomer

Notebooks are run as ``python -m tutorials.run --quick`` does, one after another: one fails where a
cell raises or this project warns. The README's first example is pasted line by line, a warning is
an error; lines to the student are those with code on them. ArviZ, docs and docstrings are what
their tests say: `loo`, `compare` and plots of students with warnings as errors; the docs built with
warnings as errors; every public name with a docstring, and every example in one run.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path

from benchmarks.results import parser, say, write
from tutorials.run import run

ROOT = Path(__file__).parents[1]
TESTS = {
    "ArviZ": ("tests/interop/test_arviz.py",),
    "docs site": ("benchmarks/tests/test_docs_site.py",),
    "docstrings": ("tests/test_docstrings.py", "tests/test_public_api.py"),
    "examples in docstrings": ("--doctest-modules", "pyro_opu"),
}
#: Minutes of all quick notebooks, and lines, at most.
MINUTES, LINES = 20, 15
#: Seconds of the README's first example after its imports, at most.
FIRST = 20


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    found = notebooks(["12"] if args.quick else [])
    minutes = sum(row["s"] for row in found) / 60
    readme = (ROOT / "README.md").read_text()
    lines, pasted = lines_to_a_student(readme), pasted_lines(readme)
    after = sum(row["s"] for row in pasted if "import" not in row["line"])
    bars = [
        {"bar": "first student, s after imports", "demanded": f"<= {FIRST}", "measured": after},
        {"bar": "quick notebooks, minutes", "demanded": f"<= {MINUTES}", "measured": minutes},
        {"bar": "lines to a student", "demanded": f"<= {LINES}", "measured": lines},
    ]
    checks = [] if args.quick else [checked(name) for name in TESTS]
    tables = {"Bars": bars, "First lines": pasted, "Checks": checks, "Quick notebooks": found}
    say(tables)
    if not args.quick:
        settings = {"arviz": version("arviz")}
        write("newcomer", "python -m benchmarks.newcomer", settings, tables)
    if any(row["failed"] for row in [*found, *checks]):
        sys.exit("something failed")


def notebooks(names: list[str]) -> list[dict]:
    """Seconds of every notebook in its quick form, and whether it failed."""
    rows = []
    for path, seconds, notebook in run(names, quick=True):
        rows.append({"notebook": path.stem, "s": seconds, "failed": int(notebook is None)})
        say({"so far": rows[-1:]})
    return rows


def lines_to_a_student(readme: str) -> int:
    """Lines of code in the first example up to ``distill``, without those of the model."""
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[:1]
    count = 0
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.FunctionDef):
            continue
        count += statement.end_lineno - statement.lineno + 1
        if "distill(" in ast.unparse(statement):
            return count
    raise ValueError("the README's first example has no call of distill")


def pasted_lines(readme: str) -> list[dict]:
    """Seconds of each line of the first example, pasted one after the other, and what it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[:1]
    names, rows = {}, []
    for statement in ast.parse(code).body:
        line, said, begun = ast.unparse(statement), io.StringIO(), time.perf_counter()
        with redirect_stdout(said), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            exec(compile(line, "README.md", "exec"), names)
        seconds = time.perf_counter() - begun
        printed = " / ".join(said.getvalue().split("\n"))[:160].strip(" /")
        rows.append({"line": line[:100], "s": seconds, "prints": printed})
    return rows


def checked(name: str) -> dict:
    """How many tests of a kind pass and fail, and the seconds they take."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", *TESTS[name]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r"(\d+) (passed|failed|error)", done.stdout)
    counts = {word: int(number) for number, word in found}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode and not failed:
        raise RuntimeError(done.stdout + done.stderr)
    seconds = time.perf_counter() - start
    return {"what": name, "passed": counts.get("passed", 0), "failed": failed, "s": seconds}


if __name__ == "__main__":
    main()
