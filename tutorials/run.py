"""Run the notebooks, each in a fresh kernel on one thread.

    python -m tutorials.run              # all of them; their outputs are written into them
    python -m tutorials.run 03 objective # those with this in their names
    python -m tutorials.run --quick      # small sizes, nothing is written

In full one runs after another, since they show times, in small sizes as many at once as there are
cores.
A run fails if a cell raises, or if this project warns, in full also if a student is not faithful
and the next cell of text does not say so. Notebooks run in an empty folder, so that
what they write is gone afterwards. A notebook is moved into place when it is whole; its pictures
are packed without a loss. The small sizes stand in the first cell of code, behind the full ones:
``DRAWS = 1000  # quick: 20``. In small sizes ``distill`` takes 20 steps where a cell gives none.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
#: Seconds for one cell; a full notebook takes up to three minutes.
TIMEOUT = 900
#: Names in capitals, their full sizes, and the small ones.
SIZES = re.compile(r"^([A-Z_, ]+) = .+?  # quick: (.+)$", re.MULTILINE)
#: What a report says of a student that is not faithful, and its grade.
VERDICT = re.compile(r"\b((?:Not faithful|Undecided)(?:, [a-z ]+)?):")
#: Run before the first cell: a warning that the project gives is an error, whatever line it names.
#: In small sizes students are of few steps, and what is said of their fidelity is right.
STRICT = """
import os
import sys
import warnings

ordinary = warnings.showwarning

def strict(message, category, *where, **more):
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in ("warnings", "_py_warnings"):
        frame = frame.f_back
    expected = os.environ.get("PYRO_OPU_QUICK") and category.__name__ == "FidelityWarning"
    ours = frame.f_globals.get("__name__", "").partition(".")[0] == "pyro_opu"
    if ours and not expected:
        raise message
    ordinary(message, category, *where, **more)

warnings.showwarning = strict
"""
#: Run next: no bars, which would stay in the pages, and in small sizes students of few steps.
PLAIN = """
import functools
import os

import pyro_opu

few = {"num_steps": 20} if os.environ.get("PYRO_OPU_QUICK") else {}
pyro_opu.distill = functools.partial(pyro_opu.distill, progress=False, **few)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", help="parts of file names; by default all")
    options.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    args = options.parse_args()
    failed = []
    at_once = os.cpu_count() or 1 if args.quick else 1
    for path, seconds, notebook in run(args.names, args.quick, at_once):
        if notebook is None:
            failed.append(path.stem)
        elif not args.quick:
            keep(notebook, path)
            unsaid = unexplained(notebook)
            failed += [path.stem] if unsaid else []
            for place, verdict in unsaid:
                print(f"{path.stem}, {place}: the next text does not say: {verdict}")
        print(f"{path.stem}: {seconds:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run(
    names: list[str], quick: bool, at_once: int = 1
) -> Iterator[tuple[Path, float, NotebookNode | None]]:
    """Every chosen notebook, its seconds, and what came out: None where it failed."""

    def one(path: Path) -> tuple[Path, float, NotebookNode | None]:
        start, notebook = time.perf_counter(), None
        try:
            notebook = executed(nbformat.read(path, as_version=4), quick)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(error)
        return path, time.perf_counter() - start, notebook

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(one, chosen(names))


def chosen(names: list[str]) -> list[Path]:
    """Notebooks with one of the names in theirs, in order."""
    paths = sorted(FOLDER.glob("*.ipynb"))
    found = [path for path in paths if not names or any(name in path.stem for name in names)]
    if not found:
        sys.exit(f"`names` must be parts of {[path.stem for path in paths]}; got {names}.")
    return found


def executed(notebook: NotebookNode, quick: bool) -> NotebookNode:
    """The notebook with the outputs of a fresh kernel."""
    metadata, sources = notebook.metadata, [cell.source for cell in notebook.cells]
    notebook = copy.deepcopy(notebook)
    if quick:
        for cell in notebook.cells:
            cell.source = small(cell.source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT + PLAIN))
    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYRO_OPU_QUICK": "1" if quick else "",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=env)
    del notebook.cells[0]
    for cell, source in zip(notebook.cells, sources, strict=True):
        cell.source = source
    notebook.metadata = metadata  # without the versions of the kernel
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        tidy(cell, number)
    return notebook


def unexplained(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Cells with a student that is not faithful, where the next cell of text does not say so.

    A verdict is ``"Not faithful, fair: ..."``; a text names it by ``not faithful`` or by ``fair``.
    """
    found, waiting = [], []
    for cell in [*notebook.cells, nbformat.v4.new_markdown_cell()]:
        if cell.cell_type == "code":
            printed = "\n".join(output.get("text", "") for output in cell.outputs)
            waiting += [(cell.id, verdict) for verdict in VERDICT.findall(printed)]
        else:
            text = " ".join(cell.source.split())
            for place, verdict in waiting:
                names = "|".join(verdict.split(", "))
                if not re.search(rf"\b({names})\b", text, re.IGNORECASE):
                    found.append((place, verdict))
            waiting = []
    return found


def small(source: str) -> str:
    """The cell with the small sizes."""
    return SIZES.sub(r"\1 = \2", source)


def tidy(cell: NotebookNode, number: int) -> None:
    """Count cells from 1, and pack the pictures."""
    cell.execution_count = number
    for output in cell.outputs:
        if "execution_count" in output:
            output.execution_count = number
        if "image/png" in output.get("data", {}):
            output.data["image/png"] = packed(output.data["image/png"])


def packed(png: str) -> str:
    """The same picture, base64, in fewer bytes: by number where it has at most 256 colours."""
    kept = BytesIO()
    image = Image.open(BytesIO(b64decode(png))).convert("RGB")
    if image.getcolors(256) is not None:
        image = image.quantize(256, dither=Image.Dither.NONE)
    image.save(kept, "PNG", optimize=True)
    return min(png, b64encode(kept.getvalue()).decode(), key=len)


def keep(notebook: NotebookNode, path: Path) -> None:
    """Write the notebook aside and move it into place."""
    aside = path.with_suffix(".part")
    nbformat.write(notebook, aside)
    aside.replace(path)


if __name__ == "__main__":
    main()
