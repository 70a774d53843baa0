"""Files of rows: CSV, Parquet and Arrow, read and written in blocks."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Form
from pyro_opu.scoring.answers import Source
from pyro_opu.scoring.batches import columns_of, inputs_of, named_inputs, seen
from pyro_opu.scoring.csv_rows import CsvRows, lines

__all__ = ["Block", "Reading", "format_of", "join", "open_table", "written"]

#: Formats by suffix; any other is CSV.
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}


#: The end of a stream of Arrow.
_END = b"\xff\xff\xff\xff\0\0\0\0"


class Block(NamedTuple):
    """Rows of a table: the inputs in one tensor, and the columns of Arrow that are no inputs."""

    x: Tensor
    beside: Any = None


class Reading(NamedTuple):
    """A table that is read in blocks, after as many as are left out.

    ``total`` are its rows, ``None`` where only the end tells.
    """

    blocks: Iterator[Block]
    total: int | None = None


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of a file, by its suffix.

    Raises:
        ImportError: Parquet or Arrow without pyarrow.
    """
    found = _FORMATS.get(Path(path).suffix.lower(), "csv")
    if found != "csv":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{Path(path).name} needs the package pyarrow, which is not installed: pip install "
                '"pyro_opu[tables]". CSV needs none.'
            ) from error
    return found


def open_table(
    path: str,
    source: Source,
    rows: int,
    *,
    header: bool | None = None,
    columns: Sequence[str] | None = None,
    skip: int = 0,
) -> Reading:
    """Read a table in blocks of ``rows``, the first ``skip`` blocks left out.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: a row that cannot be answered; no rows; options of another format.
    """
    if format_of(path) != "csv":
        if header is not None:
            raise ArgumentError("`header` is of CSV alone; leave it out for Parquet and Arrow.")
        return _open_arrow(path, source, rows, columns, skip)
    if columns is not None:
        raise ArgumentError(
            "`columns` must be left out for a CSV file, all of whose columns are inputs. Leave "
            "the others out of the file, or write it as Parquet."
        )
    if len(source.input_shape) != 1:
        raise ArgumentError(
            "`student` must take one row of numbers for a CSV file; its inputs are "
            f"{source.form}, {tuple(source.input_shape)}. Answer them in Python."
        )
    return Reading(islice(_csv_blocks(path, source, rows, header), skip, None))


def _csv_blocks(path: str, source: Source, rows: int, header: bool | None) -> Iterator[Block]:
    with _text(path) as file:
        if source.form.parts and all(part.source for part in source.form.parts):
            if header is False:
                raise ArgumentError(
                    "`header` must not be False where the student knows its columns by their "
                    "names. Write them in the first line."
                )
            for number, frame in enumerate(_frames(file, source.form, rows)):
                x = inputs_of(source, columns_of(frame), None, "table", number * rows)
                yield Block(x)
            return
        table = CsvRows(file, source.input_shape[0], header)
        if table.header is not None:
            print(f"pyro-opu: took line 1 for a header: {table.header[:60]}", file=sys.stderr)
        order = _order(table.header, source.form)
        for x in table.blocks(rows):
            yield Block(seen(source, x if order is None else x[:, order], "table"))


def _text(path: str) -> AbstractContextManager[TextIO]:
    """The text of a file, or of the pipe, its ends of lines as they are."""
    if path != "-":
        return open(path, encoding="utf-8-sig", newline="")
    text: Any = sys.stdin
    text.reconfigure(encoding="utf-8-sig", newline="")
    return nullcontext(text)


def _order(header: str | None, form: Form) -> list[int] | None:
    """Places of the columns of several inputs, by their names where the table has them."""
    names = named_inputs(form)
    if header is None or not names:
        return None
    given = [name.strip() for name in header.split(",")]
    if sorted(given) != sorted(names):
        raise ArgumentError(
            f"`table` must have the columns {names}, the inputs by name; got {given}. Rename them, "
            "or leave the header out where they are in this order."
        )
    return [given.index(name) for name in names]


#: What stands for a missing value in a CSV file, where it is not the name of a category.
_ABSENT = {"", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "None", "null", "NULL"}


def _frames(file: TextIO, form: Form, rows: int) -> Iterable[Any]:
    """Data frames of a CSV file with a header, its columns of the kinds of the student's."""
    from pandas import read_csv

    given = lines(file)
    _, names = next(given, (0, []))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArgumentError(f"`table` must have columns of different names; twice are {twice}.")
    columns = [column for part in form.parts for column in part.source]
    texts = {each.name: str for each in columns if str in map(type, each.names)}
    known = {each.name: set(map(str, each.names)) for each in columns if each.names}
    while held := [cells for _, cells in islice(given, rows)]:
        text = io.StringIO()
        csv.writer(text).writerows(held)
        text.seek(0)
        yield read_csv(  # which by itself would leave out empty lines, and surplus cells
            text,
            header=None,
            names=names,
            index_col=False,
            dtype=texts,
            parse_dates=[
                each.name for each in columns if each.kind == "date" and each.name in names
            ],
            date_format="ISO8601",  # else each block would have an order of day and month
            keep_default_na=False,
            na_values={name: _ABSENT - known.get(name, set()) for name in names},
            skip_blank_lines=False,
            low_memory=False,
        )


def _open_arrow(
    path: str, source: Source, rows: int, columns: Sequence[str] | None, skip: int
) -> Reading:
    named = list(columns or named_inputs(source.form))

    def blocks(tables: Iterator[Any]) -> Iterator[Block]:
        for number, table in enumerate(tables, skip):
            x = inputs_of(source, columns_of(table, "table"), columns, "table", number * rows)
            yield Block(
                x, table.drop_columns([n for n in table.column_names if n in named or not named])
            )

    with _whole(path):
        batches, total = _batches(path, rows, skip * rows)
    return Reading(blocks(_of_size(_read(path, batches), rows)), total)


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Say which file it is that Arrow cannot read."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the machine, as a share that is gone
            raise
        raise ArgumentError(
            f"`table` must be a whole {format_of(path)} file, as its suffix says; {path!r} cannot "
            f"be read: {str(error)[:200].rstrip('.')}. Write it again."
        ) from error


def _read(path: str, batches: Iterator[Any]) -> Iterator[Any]:
    with _whole(path):
        yield from batches


def _batches(path: str, rows: int, start: int) -> tuple[Iterator[Any], int | None]:
    """Batches of a Parquet or Arrow file from the row ``start`` on, and its rows."""
    import pyarrow
    from pyarrow import parquet

    if format_of(path) == "parquet":
        # Page by page: a row group may be the whole file.
        file = parquet.ParquetFile(
            path, buffer_size=2**16, pre_buffer=False, page_checksum_verification=True
        )
        sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
        total, first = sum(sizes), 0
        while first < len(sizes) and sizes[first] <= start:
            start, first = start - sizes[first], first + 1
        groups = list(range(first, len(sizes)))
        batches = (
            file.iter_batches(min(rows, 2**14), groups, use_threads=False) if groups else iter(())
        )
        return _from(batches, start), total
    content = pyarrow.memory_map(path)
    try:
        reader = pyarrow.ipc.open_file(content)
    except pyarrow.ArrowInvalid:  # a stream, as some write to files
        content.seek(0)
        return _from(_streamed(content), start), None
    batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    return _from(batches, start), None


def _streamed(content: Any) -> Iterator[Any]:
    """Batches of a stream, which ends as its writer ends it, or has lost some."""
    import pyarrow

    yield from pyarrow.ipc.open_stream(content)
    content.seek(max(0, content.size() - len(_END)))
    if content.read() != _END:
        raise pyarrow.ArrowInvalid("it has no end, so that its writer was stopped.")


def _from(batches: Iterable[Any], start: int) -> Iterator[Any]:
    """Batches without their first rows."""
    for batch in batches:
        cut = min(start, len(batch))
        start -= cut
        if cut < len(batch):
            yield batch.slice(cut)


def _of_size(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """The same rows as tables of ``rows``, the last of fewer."""
    import pyarrow

    held: list[Any] = []
    for batch in batches:
        while len(batch):
            held.append(batch.slice(0, rows - sum(map(len, held))))
            batch = batch.slice(len(held[-1]))
            if sum(map(len, held)) == rows:
                yield pyarrow.Table.from_batches(held)
                held = []
    if held:
        yield pyarrow.Table.from_batches(held)


def written(kind: str, answers: Mapping[str, Tensor], beside: Any, header: bool) -> bytes:
    """A block of answers, as CSV or for Arrow; ``header`` says whether CSV names the columns."""
    others = {} if beside is None else dict(zip(beside.column_names, beside.columns, strict=True))
    if both := sorted(set(others) & set(answers)):
        raise ArgumentError(
            f"`table` must have columns of other names than the answers; got {both}. Rename them."
        )
    if kind == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if header:
            writer.writerow([*others, *answers])
        kept = [values.to_pylist() for values in others.values()]
        values = [[f"{value:.7g}" for value in each.tolist()] for each in answers.values()]
        writer.writerows(zip(*kept, *values, strict=True))
        return text.getvalue().encode()
    import pyarrow

    for name, values in others.items():  # each part would have a dictionary of its own
        if pyarrow.types.is_dictionary(values.type):
            others[name] = values.cast(values.type.value_type)
    arrays = {name: pyarrow.array(values.numpy()) for name, values in answers.items()}
    table = pyarrow.table({**others, **arrays})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    return sink.getvalue().to_pybytes()


def join(kind: str, parts: Sequence[Path], file: BinaryIO) -> None:
    """Write the blocks, in order, as one file."""
    if kind == "csv":
        for part in parts:
            file.write(part.read_bytes())
        return
    import pyarrow
    from pyarrow import parquet

    tables = (pyarrow.ipc.open_file(part.read_bytes()).read_all() for part in parts)
    first = next(tables)
    if kind == "arrow":
        writer = pyarrow.ipc.new_file(file, first.schema)
    else:  # numbers that hardly repeat need no dictionary
        floating = pyarrow.types.is_floating
        repeated = [field.name for field in first.schema if not floating(field.type)]
        writer = parquet.ParquetWriter(file, first.schema, use_dictionary=repeated)
    with writer:
        for table in chain([first], tables):
            writer.write_table(table)
