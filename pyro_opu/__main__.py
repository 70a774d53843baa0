"""The command ``pyro-opu``: inspect a saved student, check it, answer a table, export it."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_opu import OnePassPredictive
from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Form
from pyro_opu.predictive.folder import files_of
from pyro_opu.utils import files
from pyro_opu.utils.csv_rows import csv_rows
from pyro_opu.utils.version import __version__

#: Rows that are answered at once.
ROWS = 4096
#: Deviations of the inputs at which a check asks.
DEVIATIONS = (0.0, 1.0, 100.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, 1 where a file is refused."""
    parser = argparse.ArgumentParser("pyro-opu", description=__doc__)
    parser.add_argument("--version", action="version", version=f"pyro_opu {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for run, text in (
        (inspect, "what a student is, and how near to its teacher"),
        (check, "whether the file is whole and the student answers with numbers"),
        (answer, "mean and uncertainties for every row of a CSV file"),
        (export, "write it as ONNX (.onnx) or as a torch.export program (.pt2)"),
    ):
        command = commands.add_parser(run.__name__, help=text, description=text)
        command.add_argument("student", help="a file or folder that save wrote")
        command.set_defaults(run=run)
        if run is answer:
            command.add_argument("table", help="rows of numbers; - reads them from the pipe")
            command.add_argument("-o", "--output", help="a CSV file; by default it is printed")
            command.add_argument(
                "--header",
                action=argparse.BooleanOptionalAction,
                help="the first line names the columns, or is a row; by default seen by its cells",
            )
        elif run is export:
            command.add_argument("output", help="FILE.onnx or FILE.pt2")
    options = parser.parse_args(arguments)
    try:
        options.run(OnePassPredictive.load(options.student), options)
    except (OSError, TypeError, ValueError, ImportError) as error:
        print(f"pyro-opu: {error}", file=sys.stderr)
        return 1
    return 0


def inspect(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Print what a student is."""
    count = sum(parameter.numel() for parameter in student.parameters())
    print(f"{student.extra_repr()}\n{student.guide.extra_repr()}, {count:,} weights")
    print(f"inputs: {student.form}")
    print(student.report if "kl_ratio" in student.report else "no report was kept")


def check(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Ask at inputs near and far; loading has checked the sum of the file."""
    example = student.form.example(student.input_shape)
    noise = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
    for far in DEVIATIONS:
        for name, values in _answers(student, student.form.shifted(example, far * noise)).items():
            if not torch.isfinite(values).all():
                raise ValueError(f"its {name} is not finite {far:g} from zero.")
    print("whole, and its answers are finite")


def answer(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Answer a table of numbers."""
    named = bool(student.form.parts) and all(part.source for part in student.form.parts)
    if len(student.input_shape) != 1 or not (named or student.form.kind in ("plain", "tensor")):
        raise ArgumentError(
            f"`student` must take one row of numbers for a CSV file; its inputs are "
            f"{student.form}, {tuple(student.input_shape)}. Answer them in Python."
        )
    output = None if options.output is None else _output(options.output, options)
    if options.table == "-":
        content = sys.stdin.buffer.read()
    else:
        content = Path(options.table).read_bytes()
    header = None
    if named:
        x = student.form.pack(_table(content, student.form), "table", check_seen=True)
    else:
        x, header = csv_rows(content, student.input_shape[0], options.header)
    if header is not None:
        print(f"pyro-opu: took line 1 for a header: {header[:60]}", file=sys.stderr)
    columns: dict[str, list[Tensor]] = {}
    for block in x.split(ROWS):
        for name, values in _answers(student, block).items():
            columns.setdefault(name, []).append(values)
    text = _csv({name: torch.cat(parts).tolist() for name, parts in columns.items()})
    if output is None:
        sys.stdout.write(text)
    else:
        files.put(output, text.encode())


def _table(content: bytes, form: Form) -> Any:
    """The table of a CSV file with a header, its columns of the kinds of the student's."""
    from pandas import read_csv

    columns = [column for part in form.parts for column in part.source]
    texts = {each.name: str for each in columns if str in map(type, each.names)}
    dates = [each.name for each in columns if each.kind == "date"]
    return read_csv(io.BytesIO(content), dtype=texts, parse_dates=dates)


def export(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Write the program."""
    _output(options.output, options)
    student.export(options.output)
    print(f"wrote {options.output}")


@torch.no_grad()
def _answers(student: OnePassPredictive, x: Tensor) -> dict[str, Tensor]:
    """Class probabilities, or the mean, and all measures, ``(N,)`` each."""
    found: dict[str, Tensor] = {}
    if student.num_classes is not None:
        found |= {f"p{k}": p for k, p in enumerate(student.dirichlet(x).mean.unbind(-1))}
    measured: Any = student.uncertainty(x)
    tables = measured if isinstance(measured, dict) else {"": measured}
    for site, table in tables.items():
        for name, values in table.to_dict().items():
            for index, column in enumerate(values.reshape(len(x), -1).unbind(-1)):
                number = f"_{index}" if values.ndim > 1 else ""
                found[f"{site}{'_' if site else ''}{name}{number}"] = column
    return found


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


def _csv(columns: dict[str, list[float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [f"{value:.7g}" for value in row] for row in zip(*columns.values(), strict=True)
    )
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
