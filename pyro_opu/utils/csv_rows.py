"""Rows of numbers from a CSV file: each is read, or the file is refused."""

from __future__ import annotations

import csv
import io
import math

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError

_CURE = "With --header the first line is left out, with --no-header it is read as numbers."


def csv_rows(content: bytes, width: int, header: bool | None = None) -> tuple[Tensor, str | None]:
    """All rows of a table as ``(N, width)`` in float64, and the line that was taken for a header.

    A first line is a header where no cell of it is a number, is empty or stands for a missing or
    true value. Where some cells are numbers, or are those that number the columns, ``header`` must
    say what it is. Empty lines may stand at the end alone.

    Example:
        >>> csv_rows(b"age,dose\\n40,1\\n", 2)
        (tensor([[40.,  1.]], dtype=torch.float64), 'age,dose')
        >>> csv_rows(b"40,NA\\n50,1\\n", 2)
        Traceback (most recent call last):
        pyro_opu.checks.errors.ArgumentError: `table` must hold finite numbers; line 1 has 'NA' \
in column 2. With --header the first line is left out, with --no-header it is read as numbers.

    Raises:
        ValueError: not UTF-8 or no CSV; a line of another width, with a cell that is no number, or
            empty amid the others; no row; a first line that may be a header or a row.
    """
    lines = _lines(content)
    for number, row in lines:
        if len(row) != width:
            found = f"is empty and {lines[-1][0] - number} follow" if not row else f"has {len(row)}"
            raise ArgumentError(
                f"`table` must have {width} columns, separated by commas, as the student's inputs; "
                f"line {number} {found}. Leave out the label and the index, and empty lines."
            )
    named = bool(lines) and (header or (header is None and _is_header(lines[0][1])))
    rows = [_numbers(*line, unclear=header is None) for line in lines[named:]]
    if not rows:
        raise ArgumentError("`table` must have at least one row of numbers; got none.")
    return torch.tensor(rows, dtype=torch.float64), ",".join(lines[0][1]) if named else None


def _lines(content: bytes) -> list[tuple[int, list[str]]]:
    """Cells of every line with its number, up to the last that is not empty."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"`table` must be text in UTF-8; it is not at byte {error.start}. Save it as CSV UTF-8."
        ) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines = []
    try:
        lines = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ArgumentError(
            f"`table` must be a CSV file; line {reader.line_num} is not: {error}. Save it with "
            "commas between the cells and one row per line."
        ) from None
    while lines and not lines[-1][1]:
        lines.pop()
    return lines


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


def _numbers(number: int, row: list[str], *, unclear: bool) -> list[float]:
    cure = _CURE if number == 1 and unclear else "Fill it in, or leave the row out."
    for column, cell in enumerate(row, 1):
        if not (_is_number(cell) and math.isfinite(float(cell))):
            raise ArgumentError(
                f"`table` must hold finite numbers; line {number} has {cell[:40]!r} in column "
                f"{column}. {cure}"
            )
    return [float(cell) for cell in row]
