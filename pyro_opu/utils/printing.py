"""What is printed, and what a notebook shows of it: names, averages, text as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from itertools import groupby

from torch import Tensor

#: Between the columns of a line.
COLUMNS = re.compile(r"(?<=\S) {2,}|^ {3,}")


class Printed:
    """A mixin: a notebook shows what ``print`` does, with the columns as a table."""

    def _printed(self) -> str:
        """The text that is shown."""
        return str(self)

    def _repr_html_(self) -> str:
        return html_of(self._printed())


def html_of(text: str) -> str:
    r"""Printed text as HTML: the first line is bold, lines of columns two blanks apart a table.

    Example:
        >>> html_of("Good.\n\nmean    0.2  0.3\nspread  1.0  1.1").splitlines()[1]
        '<table><tr><th>mean</th><td>0.2</td><td>0.3</td></tr>'
    """
    shown = []
    for in_columns, lines in groupby(text.splitlines(), lambda line: bool(COLUMNS.search(line))):
        written = [escape(line) for line in lines]
        rows = [COLUMNS.split(line) for line in written]
        if not in_columns:
            shown += [f"<p>{'<br>'.join(filter(None, written))}</p>"] if any(written) else []
        elif len({len(row) for row in rows}) > 1:  # columns with gaps: as they stand
            shown.append(f"<pre>{chr(10).join(written)}</pre>")
        else:
            cells = (
                [f"<th>{row[0]}</th>", *(f"<td>{each}</td>" for each in row[1:])] for row in rows
            )
            table = "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)
            shown.append(f"<table>{table}</table>")
    return re.sub("^<p>(.*?)(<br>|</p>)", r"<p><b>\1</b>\2", "\n".join(shown))


def name_of(thing: object) -> str:
    """The name of a function, or of an object's class.

    Example:
        >>> name_of(sorted), name_of(lambda x: x), name_of(Tensor(1))
        ('sorted', '<lambda>', 'Tensor')
    """
    return str(getattr(thing, "__name__", type(thing).__name__))


def averages(values: Mapping[str, Tensor]) -> str:
    """The mean of every tensor by name, to four digits."""
    means = {name: value.detach().double().mean().item() for name, value in values.items()}
    return ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
