"""The command ``pyro-opu``: inspect a student or a program, check it, answer a table, export it."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_opu import OnePassPredictive
from pyro_opu.checks import ArgumentError
from pyro_opu.export.reading import ROWS, ReadProgram, is_program, read_program
from pyro_opu.inputs import Form
from pyro_opu.predictive.folder import files_of
from pyro_opu.utils import files
from pyro_opu.utils.csv_rows import csv_rows
from pyro_opu.utils.version import __version__

#: What answers.
Source = OnePassPredictive | ReadProgram
#: Deviations of the inputs at which a check asks.
DEVIATIONS = (0.0, 1.0, 100.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, 1 where a file is refused."""
    parser = argparse.ArgumentParser("pyro-opu", description=__doc__)
    parser.add_argument("--version", action="version", version=f"pyro_opu {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for run, text in (
        (inspect, "what a student is, and how near to its teacher; or what a program answers"),
        (check, "whether the file is whole and answers with numbers"),
        (answer, "mean and uncertainties for every row of a CSV file"),
        (export, "write a student as ONNX (.onnx) or as a torch.export program (.pt2)"),
    ):
        command = commands.add_parser(run.__name__, help=text, description=text)
        also = "" if run is export else ", or a program (.onnx, .pt2) of a student or of draws"
        command.add_argument("student", help=f"a file or folder that save wrote{also}")
        command.set_defaults(run=run)
        if run is answer:
            command.add_argument("table", help="rows of numbers; - reads them from the pipe")
            command.add_argument("-o", "--output", help="a CSV file; by default it is printed")
            command.add_argument(
                "--header",
                action=argparse.BooleanOptionalAction,
                help="the first line names the columns, or is a row; by default seen by its cells",
            )
            command.add_argument("--seed", type=int, default=0, help="of labels that are drawn")
        elif run is export:
            command.add_argument("output", help="FILE.onnx or FILE.pt2")
    options = parser.parse_args(arguments)
    try:
        load = read_program if is_program(options.student) else OnePassPredictive.load
        options.run(load(options.student), options)
    except (OSError, TypeError, ValueError, ImportError) as error:
        print(f"pyro-opu: {error}", file=sys.stderr)
        return 1
    return 0


def inspect(source: Source, options: argparse.Namespace) -> None:
    """Print what a student or a program is."""
    if isinstance(source, ReadProgram):
        print(source)
        return
    count = sum(parameter.numel() for parameter in source.parameters())
    print(f"{source.extra_repr()}\n{source.guide.extra_repr()}, {count:,} weights")
    print(f"inputs: {source.form}")
    print(source.report if "kl_ratio" in source.report else "no report was kept")


def check(source: Source, options: argparse.Namespace) -> None:
    """Ask at inputs near and far; loading has checked the sum of a student's file."""
    example = source.form.example(source.input_shape)
    noise = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
    for far in DEVIATIONS:
        for name, values in _answers(source, source.form.shifted(example, far * noise)).items():
            if name != "bound" and not torch.isfinite(values).all():
                raise ValueError(f"its {name} is not finite {far:g} from zero.")
    print("whole, and its answers are finite")


def answer(source: Source, options: argparse.Namespace) -> None:
    """Answer a table of numbers, block by block."""
    if len(source.input_shape) != 1:
        raise ArgumentError(
            "`student` must take one row of numbers for a CSV file; its inputs are "
            f"{source.form}, {tuple(source.input_shape)}. Answer them in Python."
        )
    output = None if options.output is None else _output(options.output, options)
    if options.table == "-":
        content = sys.stdin.buffer.read()
    else:
        content = Path(options.table).read_bytes()
    parts, header = source.form.parts, None
    if parts and all(part.source for part in parts):
        taught = getattr(source, "num_draws", None) is None  # draws know what no row has shown
        x = source.form.pack(_table(content, source.form), "table", check_seen=taught)
    else:
        x, header = csv_rows(content, source.input_shape[0], options.header)
        x = _in_order(x, header, source.form)
    if header is not None:
        print(f"pyro-opu: took line 1 for a header: {header[:60]}", file=sys.stderr)
    text = _csv(source, x, options.seed)
    if output is None:
        sys.stdout.writelines(text)
    else:
        files.put(output, (piece.encode() for piece in text))


def _in_order(x: Tensor, header: str | None, form: Form) -> Tensor:
    """Columns of several inputs, by their names where the table has them."""
    names = [
        f"{part.name}_{k}" if part.shape else part.name
        for part in form.parts
        for k in range(part.columns)
    ]
    if header is None or len(form.parts) < 2:
        return x
    given = [name.strip() for name in header.split(",")]
    if sorted(given) != sorted(names):
        raise ArgumentError(
            f"`table` must have the columns {names}, the inputs by name; got {given}. Rename them, "
            "or leave the header out where they are in this order."
        )
    return x[:, [given.index(name) for name in names]]


def _table(content: bytes, form: Form) -> Any:
    """The table of a CSV file with a header, its columns of the kinds of the student's."""
    from pandas import read_csv

    columns = [column for part in form.parts for column in part.source]
    texts = {each.name: str for each in columns if str in map(type, each.names)}
    dates = [each.name for each in columns if each.kind == "date"]
    return read_csv(io.BytesIO(content), dtype=texts, parse_dates=dates)


def export(source: Source, options: argparse.Namespace) -> None:
    """Write the program."""
    _output(options.output, options)
    if isinstance(source, ReadProgram):
        raise ArgumentError(
            f"`student` must be what save wrote; {options.student!r} is a program already. Copy it."
        )
    source.export(options.output)
    print(f"wrote {options.output}")


@torch.no_grad()
def _answers(source: Source, x: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Class probabilities, or the mean, and all else that it says, ``(N,)`` each."""
    found: dict[str, Tensor] = {}
    if isinstance(source, ReadProgram):
        said = source(x, seed)
        if source.num_classes is not None and "mean" in said:
            found |= _columns("p", said.pop("mean"), "")
        for name, values in said.items():
            found |= _columns(name, values)
        return found
    if source.num_classes is not None:
        found |= _columns("p", source.dirichlet(x).mean, "")
    measured: Any = source.uncertainty(x)
    tables = measured if isinstance(measured, dict) else {"": measured}
    for site, table in tables.items():
        for name, values in table.to_dict().items():
            found |= _columns(f"{site}.{name}" if site else name, values)
    return found


def _columns(name: str, values: Tensor, mark: str = "_") -> dict[str, Tensor]:
    """Numbers ``(N, ...)`` as columns ``(N,)``, called by their places where there are several."""
    places = product(*map(range, values.shape[1:]))
    names = (mark.join([name, *map(str, place)]) for place in places)
    return dict(zip(names, values.reshape(len(values), -1).unbind(1), strict=True))


def _output(path: str, options: argparse.Namespace) -> Path:
    """Where the output goes, which is none of what is read."""
    output = files.placed(path, "output")
    read = {str(file): "student" for file in files_of(options.student)}
    read |= {options.table: "table"} if "table" in options and options.table != "-" else {}
    for file, name in read.items():
        if output.exists() and os.path.exists(file) and os.path.samefile(output, file):
            raise ArgumentError(
                f"`output` must be another file than `{name}`, which it would replace; got "
                f"{path!r}. Give it a name of its own."
            )
    return output


def _csv(source: Source, x: Tensor, seed: int) -> Iterator[str]:
    """The lines of the answers, block by block."""
    rows = getattr(source, "rows_at_once", ROWS)
    for number, block in enumerate(x.split(rows)):
        columns = _answers(source, block, seed + number)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not number:
            writer.writerow(columns)
        values = zip(*(each.tolist() for each in columns.values()), strict=True)
        writer.writerows([f"{value:.7g}" for value in row] for row in values)
        yield text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
