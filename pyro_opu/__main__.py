"""The command ``pyro-opu``: inspect a saved student, check it, answer a table, export it."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import torch
from torch import Tensor

from pyro_opu import OnePassPredictive
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
            command.add_argument("table", help="rows of numbers, with or without a header; - reads")
            command.add_argument("-o", "--output", help="a CSV file; by default it is printed")
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
    if student.packing is not None:
        print(f"inputs: {student.packing}")
    print(student.report if "kl_ratio" in student.report else "no report was kept")


def check(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Ask at inputs near and far; loading has checked the sum of the file."""
    example = torch.zeros(8, *student.input_shape)
    if student.packing is not None:
        example = student.packing.example().to(example.dtype)
    noise = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
    for far in DEVIATIONS if student.packing is None else (0.0,):
        for name, values in _answers(student, example + far * noise).items():
            if not torch.isfinite(values).all():
                raise ValueError(f"its {name} is not finite {far:g} from zero.")
    print("whole, and its answers are finite")


def answer(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Answer a table of numbers."""
    if len(student.input_shape) != 1 or (student.packing and student.packing.form != "tensor"):
        raise ValueError(
            f"`student` must take one row of numbers for a CSV file; its inputs are "
            f"{student.packing or tuple(student.input_shape)}. Answer them in Python."
        )
    if options.table == "-":
        x = _table(sys.stdin, student.input_shape[0])
    else:
        with open(options.table, newline="") as file:
            x = _table(file, student.input_shape[0])
    columns: dict[str, list[Tensor]] = {}
    for block in x.split(ROWS):
        for name, values in _answers(student, block).items():
            columns.setdefault(name, []).append(values)
    whole = {name: torch.cat(parts).tolist() for name, parts in columns.items()}
    if options.output is None:
        _write(sys.stdout, whole)
    else:
        with open(options.output, "w", newline="") as file:
            _write(file, whole)


def export(student: OnePassPredictive, options: argparse.Namespace) -> None:
    """Write the program."""
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


def _table(file: TextIO, width: int) -> Tensor:
    """Rows of numbers; a first row that holds words is a header."""
    rows: list[list[float]] = []
    for number, row in enumerate(csv.reader(file), 1):
        try:
            values = [float(cell) for cell in row]
        except ValueError as error:
            if number == 1:
                continue
            raise ValueError(f"`table` must hold numbers; line {number} has {error}.") from None
        if values and len(values) != width:
            raise ValueError(
                f"`table` must have {width} columns, as the student's inputs; line {number} has "
                f"{len(values)}. Leave out the label and the index."
            )
        rows += [values] if values else []
    if not rows:
        raise ValueError("`table` must have at least one row of numbers; got none.")
    return torch.tensor(rows, dtype=torch.float64)


def _write(file: TextIO, columns: dict[str, list[float]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [f"{value:.7g}" for value in row] for row in zip(*columns.values(), strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
