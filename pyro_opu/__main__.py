"""The command ``pyro-opu``: inspect a student or a program, check it, answer a table, export it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pyro_opu.checks import ArgumentError
from pyro_opu.export.reading import ReadProgram
from pyro_opu.predictive.folder import files_of
from pyro_opu.scoring.answers import Source, answers, load
from pyro_opu.scoring.job import Job, answer_into, answer_to_console
from pyro_opu.utils import files
from pyro_opu.utils.version import __version__

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
        (answer, "mean and uncertainties for every row of a CSV, Parquet or Arrow file"),
        (export, "write a student as ONNX (.onnx) or as a torch.export program (.pt2)"),
    ):
        command = commands.add_parser(run.__name__, help=text, description=text)
        also = "" if run is export else ", or a program (.onnx, .pt2) of a student or of draws"
        command.add_argument("student", help=f"a file or folder that save wrote{also}")
        command.set_defaults(run=run)
        if run is answer:
            text = "a .csv, .parquet or .arrow file of rows; - reads CSV from the pipe"
            command.add_argument("table", help=text)
            text = "a .csv, .parquet or .arrow file; by default CSV is printed"
            command.add_argument("-o", "--output", help=text)
            text = "the inputs by name, with commas; others are kept beside the answers (no CSV)"
            command.add_argument("--columns", help=text)
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
        for name, values in answers(source, source.form.shifted(example, far * noise)).items():
            if name != "bound" and not torch.isfinite(values).all():
                raise ValueError(f"its {name} is not finite {far:g} from zero.")
    print("whole, and its answers are finite")


def answer(source: Source, options: argparse.Namespace) -> None:
    """Answer a table, part by part."""
    columns = None if options.columns is None else options.columns.split(",")
    job = Job(options.student, options.table, options.header, columns, options.seed)
    if options.output is None:
        answer_to_console(job, source)
    else:
        answer_into(_output(options.output, options), job, source)


def export(source: Source, options: argparse.Namespace) -> None:
    """Write the program."""
    _output(options.output, options)
    if isinstance(source, ReadProgram):
        raise ArgumentError(
            f"`student` must be what save wrote; {options.student!r} is a program already. Copy it."
        )
    source.export(options.output)
    print(f"wrote {options.output}")


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


if __name__ == "__main__":
    sys.exit(main())
