"""A student as a function of the batches of a data engine."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_path, is_sequence, positive_int
from pyro_opu.predictive.folder import file_of
from pyro_opu.scoring.answers import Source, answers, load, no_answers
from pyro_opu.scoring.batches import columns_of, inputs_of, named_inputs, with_columns

__all__ = ["Scorer", "digest"]


class Scorer:
    """A saved student, or a written program, that answers batches of a table.

    A batch is a dict of arrays, a pandas DataFrame, or a RecordBatch or Table of Arrow; the same
    kind comes back with the answers as further columns: those of ``pyro-opu answer``, class
    probabilities ``p0``, ``p1``, ... (of a real y the ``mean``), then the measures. An iterator of
    batches gives an iterator. This is what ``map_batches`` of Ray Data, ``mapInPandas`` of Spark
    and ``map_partitions`` of Dask call, so that a scorer is passed to them as it is.

    It travels as a path: each process that gets it reads the file once, at its first batch, and
    refuses a file with other content than the one it was made with.

    Args:
        path: What ``save`` or ``export`` wrote, where all workers can read it. A ``.pt2`` runs
            pickle: take only files that you trust.
        columns: Names of the columns that are the inputs, in order; a column may hold several
            numbers a row. By default all columns. A student of a table, or of several inputs, has
            names of its own.
        threads: Threads of a process, set when it reads the file; engines have a process for each
            core. ``None`` leaves them.
        seed: Labels are drawn by it and by the rows of their batch, where a program draws some.

    Attributes:
        outputs: Names of the columns that are added.

    Raises:
        TypeError: ``path`` is no path, ``columns`` no names; a batch of another kind.
        FileNotFoundError: there is no file.
        ValueError: no student; ``columns`` for a student that has names of its own. A call: a batch
            with other columns, with numbers that are not finite, or with a column that has the name
            of an answer.

    Example:
        >>> import tempfile, torch, pyro_opu
        >>> weights = torch.randn(100, 2, 3)
        >>> posterior = lambda x: torch.softmax(x @ weights, -1)
        >>> fast = pyro_opu.distill(
        ...     posterior, torch.randn(100, 2), num_steps=10, seed=0, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fast.save(f"{folder}/fast.safetensors")
        ...     scorer = pyro_opu.Scorer(f"{folder}/fast.safetensors", ["a", "b"], threads=None)
        >>> found = scorer({"id": [7, 8], "a": [0.1, 0.2], "b": [1.0, 2.0]})
        >>> found["id"], found["p2"].shape, found["epistemic"].shape
        ([7, 8], (2,), (2,))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        *,
        threads: int | None = 1,
        seed: int = 0,
    ) -> None:
        self.path = os.path.abspath(check_path("path", path))  # workers run elsewhere
        if columns is not None and not (
            is_sequence(columns) and columns and all(isinstance(name, str) for name in columns)
        ):
            raise ArgumentTypeError(
                f"`columns` must be names of columns; got {columns!r}. Write ['age', 'dose']."
            )
        self.columns = None if columns is None else tuple(columns)
        self.threads = None if threads is None else positive_int("threads", threads)
        self.seed = positive_int("seed", seed, 0)
        self._digest = digest(self.path)
        own = named_inputs(self._source.form)
        if self.columns is not None and own:
            raise ArgumentError(
                f"`columns` must be None where the student has names of its own, {own}; got "
                f"{list(self.columns)}. Rename the columns of the batches."
            )
        self.outputs = tuple(no_answers(self._source))

    @property
    def _source(self) -> Source:
        with _LOCK:
            return _loaded(self.path, self._digest, self.threads)

    def __call__(self, batch: Any) -> Any:
        """The batch with the answers as further columns, or an iterator of such batches."""
        if hasattr(batch, "__next__"):
            return self._each(batch)
        columns = columns_of(batch)
        if both := sorted(set(columns) & set(self.outputs)):
            raise ArgumentError(
                f"`batch` must have columns of other names than the answers; got {both}. Rename "
                "or drop them."
            )
        source = self._source
        if not any(len(values) for values in columns.values()):
            return with_columns(batch, no_answers(source))
        x = inputs_of(source, columns, self.columns)
        seed = self.seed ^ zlib.crc32(x.numpy().tobytes()) if "labels" in str(self.outputs) else 0
        return with_columns(batch, answers(source, x, seed))

    def _each(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from map(self, batches)

    def __repr__(self) -> str:
        return f"Scorer({self.path!r}, columns={self.columns}, threads={self.threads})"


def digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a student's file, or of a program's."""
    file = Path(file_of(path))
    if not file.is_file():
        raise FileNotFoundError(
            f"`path` must be what save or export wrote; {str(file)!r} does not exist."
        )
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


_LOCK = threading.Lock()


@lru_cache(maxsize=8)
def _loaded(path: str, wanted: str, threads: int | None) -> Source:
    """What answers, read once in a process."""
    if digest(path) != wanted:
        raise ArgumentError(
            f"`path` must be the file that the scorer was made with; {path!r} has changed since. "
            "Make the scorer again, or keep each student under a name of its own."
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return load(path, threads)
