"""A table that is answered into a file, part by part: a run that was killed goes on."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_PLAN, _LOCK = "plan.json", "lock"
#: What lies in a folder of parts, those included that were being written when a run was killed.
_OURS = re.compile(r"(plan\.json|lock|\d{6})(\.\w+\.part)?")


@dataclass(frozen=True)
class Job:
    """What is to be answered; raises where there is no table.

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

    def __post_init__(self) -> None:
        if self.table != "-" and (not os.path.exists(self.table) or os.path.isdir(self.table)):
            found = "is a folder" if os.path.isdir(self.table) else "does not exist"
            raise FileNotFoundError(
                f"`table` must be a file of rows, or - for CSV from the pipe; {self.table!r} "
                f"{found}. Name one file."
            )


def answer_into(output: Path, job: Job, source: Source) -> None:
    """Write the answers to all rows of a table, in order, as CSV, Parquet or Arrow.

    Parts of some ten thousand rows lie in the folder ``OUTPUT.parts`` until all are there; then
    they become the output, in one move. The same job takes the parts that a run before has left,
    unless a file has changed since; a table that is refused leaves none.

    Raises:
        ValueError: a table with a row that cannot be answered, or without rows; a folder
            ``OUTPUT.parts`` of something else, or in which another run is at work.
    """
    kind, folder = format_of(output), output.with_name(f"{output.name}.parts")
    plan = {**_identity(job), "rows": _rows(source), "format": kind}
    with _alone(folder):
        done = _begin(folder, plan)
        if done:
            print(f"pyro-opu: goes on after {done * _rows(source):,} rows", file=sys.stderr)
        try:
            for number, content in enumerate(_contents(job, source, kind, done), done):
                files.put(folder / f"{number:06}", content)
                done = number + 1
        except (ImportError, TypeError, ValueError):
            _remove(folder)
            raise
        with files.replacing(output) as file:
            join(kind, [folder / f"{number:06}" for number in range(done)], file)
        _remove(folder)


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
    given, number = open_table(job.table, source, rows, **options), done - 1
    with tqdm(total=given.total, initial=done * rows, unit=" rows", disable=None) as bar:
        for number, (x, beside) in enumerate(given.blocks, done):
            found = answers(source, x, job.seed + number * seeds)
            yield written(kind, found, beside, not number)
            bar.update(len(x))
    if number < 0:
        raise ArgumentError("`table` must have at least one row; got none.")


def _identity(job: Job) -> dict[str, Any]:
    """What a job is, and the state of the files that it reads; that of a pipe is never the same."""
    if job.table == "-":
        state: Any = secrets.token_hex(8)
    else:
        found = os.stat(job.table)
        state = [os.path.realpath(job.table), found.st_size, found.st_mtime_ns]
    return {**asdict(job), "pyro_opu": __version__, "of": digest(job.student), "state": state}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the folder of the parts, or find it; no other run is at work in it meanwhile."""
    if not _is_ours(folder):
        raise ArgumentError(
            f"`output` must leave the name {str(folder)!r} free for its parts; something else "
            "is there. Move it, or name the output otherwise."
        )
    folder.mkdir(exist_ok=True)
    with files.locked(folder / _LOCK) as alone:
        if not alone:
            raise ArgumentError(
                f"`output` must be written by one run at a time; another is at work in "
                f"{str(folder)!r}. Wait for it, or name the output otherwise."
            )
        yield


def _is_ours(folder: Path) -> bool:
    """Whether nothing is there, or a folder of parts with their plan, or one just begun."""
    if folder.is_symlink() or not folder.is_dir():
        return not os.path.lexists(folder)
    names = [path.name for path in folder.iterdir()]
    begun = _PLAN in names or not any(name[:6].isdecimal() for name in names)
    return begun and all(map(_OURS.fullmatch, names))


def _begin(folder: Path, plan: dict[str, Any]) -> int:
    """The number of parts that an earlier run of this plan has left; others are removed."""
    content = json.dumps(plan).encode()
    file = folder / _PLAN
    if file.is_file() and file.read_bytes() == content:
        return next(number for number in count() if not (folder / f"{number:06}").exists())
    for path in folder.iterdir():
        if path.name not in (_PLAN, _LOCK):
            path.unlink()
    files.put(file, content)
    return 0


def _remove(folder: Path) -> None:
    """Remove the folder of the parts, the plan last: without it they are somebody else's."""
    for path in sorted(folder.iterdir()):
        path.unlink()
    folder.rmdir()
