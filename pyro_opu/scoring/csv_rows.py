"""Rows of numbers from a CSV file: each is read, or the file is refused."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from itertools import chain
from typing import TextIO

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError

_CURE = "With --header the first line is left out, with --no-header it is read as numbers."
_Line = tuple[int, list[str]]


class CsvRows:
    """The rows of a table of numbers, in blocks.

    A first line is a header where no cell of it is a number, is empty or stands for a missing or
    true value. Where some cells are numbers, or are those that number the columns, ``header`` must
    say what it is. Empty lines may stand at the end alone.

    Args:
        file: CSV in UTF-8, its ends of lines as they are.
        width: Number of columns.
        header: Whether the first line names the columns.

    Attributes:
        header: The line that was taken for a header, or ``None``.

    Example:
        >>> import io
        >>> rows = CsvRows(io.StringIO("age,dose\\n40,1\\n50,2\\n"), 2)
        >>> rows.header, list(rows.blocks(1))
        ('age,dose', [tensor([[40.,  1.]], dtype=torch.float64), \
tensor([[50.,  2.]], dtype=torch.float64)])
        >>> CsvRows(io.StringIO("40,NA\\n50,1\\n"), 2)
        Traceback (most recent call last):
        pyro_opu.checks.errors.ArgumentError: `table` must hold finite numbers; line 1 has 'NA' \
in column 2. With --header the first line is left out, with --no-header it is read as numbers.

    Raises:
        ValueError: not UTF-8 or no CSV; a line of another width, with a cell that is no number, or
            empty amid the others; no row; a first line that may be a header or a row.
    """

    def __init__(self, file: TextIO, width: int, header: bool | None = None) -> None:
        rest = lines(file, width)
        first = next(rest, None)
        self.header = None
        if first and (header or (header is None and _is_header(first[1]))):
            self.header, first = ",".join(first[1]), next(rest, None)
        if first is None:
            raise ArgumentError("`table` must have at least one row of numbers; got none.")
        unclear = self.header is None and header is None
        self._rows = chain([_numbers(*first, unclear)], (_numbers(*line) for line in rest))

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """The rows in blocks of so many ``(rows, width)`` in float64, the last of fewer."""
        held: list[list[float]] = []
        for row in self._rows:
            held.append(row)
            if len(held) == rows:
                yield torch.tensor(held, dtype=torch.float64)
                held = []
        if held:
            yield torch.tensor(held, dtype=torch.float64)


def lines(file: TextIO, width: int | None = None) -> Iterator[_Line]:
    """Cells of every line with its number, up to the last that is not empty.

    All are of this width, by default that of the first.
    """
    reader, empty = csv.reader(file, strict=True), 0
    try:
        for row in reader:
            if not row:
                empty = empty or reader.line_num
                continue
            width = width or len(row)
            if empty or len(row) != width:
                found = f"{empty} is empty and others follow"
                found = found if empty else f"{reader.line_num} has {len(row)}"
                raise ArgumentError(
                    f"`table` must have {width} columns, separated by commas, in every "
                    f"line; line {found}. Leave out the label and the index, and empty lines."
                )
            yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"`table` must be text in UTF-8; it has {error.object[error.start :][:8]!r} soon after "
            f"line {reader.line_num}. Save it as CSV UTF-8."
        ) from None
    except csv.Error as error:
        raise ArgumentError(
            f"`table` must be a CSV file; line {reader.line_num} is not: {error}. Save it with "
            "commas between the cells and one row per line."
        ) from None


def _is_header(cells: list[str]) -> bool:
    """Whether these are names; refuses what numbers the columns, as pandas writes it."""
    if cells == [str(index) for index in range(len(cells))]:
        raise ArgumentError(
            f"`table` must say whether its first line, {','.join(cells)[:40]!r}, is a row: it may "
            f"number the columns. {_CURE}"
        )
    return not any(_is_number(cell) or cell.strip().lower() in _VALUES for cell in cells)


#: What stands for a value that is missing or no number, in lower case.
_VALUES = {"", "-", ".", "?", "na", "n/a", "#n/a", "none", "null", "missing", "true", "false"}
_VALUES |= {"yes", "no", "<na>", "nat", "#value!", "#div/0!", "#ref!", "#num!", "#name?"}


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(number: int, row: list[str], unclear: bool = False) -> list[float]:
    if all(map(_is_number, row)) and all(map(math.isfinite, found := list(map(float, row)))):
        return found
    wrong = (not (_is_number(cell) and math.isfinite(float(cell))) for cell in row)
    column, cell = next(each for each, bad in zip(enumerate(row, 1), wrong, strict=True) if bad)
    raise ArgumentError(
        f"`table` must hold finite numbers; line {number} has {cell[:40]!r} in column {column}. "
        + (_CURE if number == 1 and unclear else "Fill it in, or leave the row out.")
    )
