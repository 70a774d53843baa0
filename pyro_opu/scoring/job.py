"""A table that is answered into a file, part by part: a run that was killed goes on."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from pyro_opu.checks import ArgumentError
from pyro_opu.export.reading import ROWS as AT_ONCE
from pyro_opu.scoring.answers import Source, answers
from pyro_opu.scoring.scorer import digest
from pyro_opu.scoring.tables import format_of, join, open_table, written
from pyro_opu.utils import files
from pyro_opu.utils.version import __version__

__all__ = ["Job", "answer_into", "answer_to_console"]

#: Rows of a part at most, and numbers in its inputs.
ROWS, NUMBERS = 2**16, 2**20
_PLAN = "plan.json"
#: What lies in a folder of parts, those included that were being written when a run was killed.
_OURS = re.compile(r"(plan\.json|\d{6})(\.\w+\.part)?")


@dataclass(frozen=True)
class Job:
    """What is to be answered.

    Attributes:
        student: The path of a student or a program.
        table: A path, or "-" for CSV from the pipe.
        header: Whether the first line of a CSV file names the columns; seen by its cells.
        columns: The inputs among those of a Parquet or Arrow file, in order.
        seed: What labels are drawn by.
    """

    student: str
    table: str
    header: bool | None = None
    columns: Sequence[str] | None = None
    seed: int = 0


def answer_into(output: Path, job: Job, source: Source) -> None:
    """Write the answers to all rows of a table, in order, as CSV, Parquet or Arrow.

    Parts of some ten thousand rows lie in the folder ``OUTPUT.parts`` until all are there; then
    they become the output, in one move. The same job takes the parts that a run before has left,
    unless a file has changed since; a table that is refused leaves none.

    Raises:
        ValueError: a table with a row that cannot be answered; a folder ``OUTPUT.parts`` of
            something else.
    """
    kind, folder = format_of(output), output.with_name(f"{output.name}.parts")
    done = _begin(folder, {**_identity(job), "rows": _rows(source), "format": kind})
    if done:
        print(f"pyro-opu: goes on after {done * _rows(source):,} rows", file=sys.stderr)
    try:
        for number, content in enumerate(_contents(job, source, kind, done), done):
            files.put(folder / f"{number:06}", content)
            done = number + 1
    except (ImportError, TypeError, ValueError):
        shutil.rmtree(folder)
        raise
    with files.replacing(output) as file:
        join(kind, [folder / f"{number:06}" for number in range(done)], file)
    shutil.rmtree(folder)


def answer_to_console(job: Job, source: Source) -> None:
    """Print the answers as CSV when all rows have one."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as whole:
        whole.writelines(part.decode() for part in _contents(job, source, "csv", 0))
        whole.seek(0)
        sys.stdout.writelines(whole)


def _rows(source: Source) -> int:
    """Rows of a part."""
    return max(1, min(ROWS, NUMBERS // max(1, prod(source.input_shape))))


def _contents(job: Job, source: Source, kind: str, done: int) -> Iterator[bytes]:
    """Parts in a format, those left out that are done."""
    rows = _rows(source)
    options: dict[str, Any] = {"header": job.header, "columns": job.columns, "skip": done}
    seeds = -(-rows // getattr(source, "rows_at_once", AT_ONCE))  # that a part takes
    given = open_table(job.table, source, rows, **options)
    with tqdm(total=given.total, initial=done * rows, unit=" rows", disable=None) as bar:
        for number, (x, beside) in enumerate(given.blocks, done):
            found = answers(source, x, job.seed + number * seeds)
            yield written(kind, found, beside, not number)
            bar.update(len(x))


def _identity(job: Job) -> dict[str, Any]:
    """What a job is, and the state of the files that it reads; that of a pipe is never the same."""
    if job.table == "-":
        state: Any = secrets.token_hex(8)
    else:
        found = os.stat(job.table)
        state = [os.path.realpath(job.table), found.st_size, found.st_mtime_ns]
    return {**asdict(job), "pyro_opu": __version__, "of": digest(job.student), "state": state}


def _begin(folder: Path, plan: dict[str, Any]) -> int:
    """Make the folder of the parts, or find it with those of an earlier run; their number."""
    content = json.dumps(plan).encode()
    file = folder / _PLAN
    if folder.exists():
        if file.is_file() and file.read_bytes() == content:
            return next(number for number in count() if not (folder / f"{number:06}").exists())
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else ["a file"]
        if not all(map(_OURS.fullmatch, names)):
            raise ArgumentError(
                f"`output` must leave the name {str(folder)!r} free for its parts; something else "
                "is there. Move it, or name the output otherwise."
            )
        shutil.rmtree(folder)
    folder.mkdir()
    files.put(file, content)
    return 0
