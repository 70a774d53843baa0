"""A student as a folder, in the layout that model hubs read: weights, description, model card."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_path, instance_of
from pyro_opu.predictive.student_file import KIND
from pyro_opu.utils import files
from pyro_opu.utils.tables import json_ready
from pyro_opu.utils.version import __version__

__all__ = ["file_of", "files_of", "is_folder", "model_card", "write_student"]

#: Names of the files in a folder.
WEIGHTS, DESCRIPTION, CARD = "model.safetensors", "config.json", "README.md"
#: What tells that a description or a card is a student's.
MARK, _HEADER = "pyro_opu", "library_name: pyro_opu"
_UNSAID = "not said"


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a folder: one that exists, or one that ends as one."""
    check_path("path", path)
    text = os.fspath(path)
    return text.endswith(("/", os.sep)) or os.path.isdir(text)


def file_of(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The file with the weights: in a folder the one of that name."""
    return Path(path) / WEIGHTS if is_folder(path) else path


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """All files of a student at this path, whether they exist or not."""
    folder = Path(path)
    return [folder / each for each in (WEIGHTS, DESCRIPTION, CARD)] if is_folder(path) else [folder]


def write_student(
    path: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    description: Mapping[str, object],
    card: str,
    *,
    overwrite: bool = False,
) -> None:
    """Write a student's weights, and then in a folder its description and the text of a card.

    Nothing is written where a file is there that is no student's and says something else, unless
    it is to be overwritten.
    """
    beside: dict[str, bytes] = {}
    if is_folder(path):
        _check_folder(path)
        marked = json_ready({MARK: __version__, **description})
        plain = json.dumps(marked, indent=2, allow_nan=False)
        beside = {DESCRIPTION: f"{plain}\n".encode(), CARD: card.encode()}
    if not overwrite:
        _check_own(path, beside)
    if beside:
        Path(path).mkdir(exist_ok=True)
    files.write(file_of(path), KIND, tensors, description)
    for name, content in beside.items():
        files.put(Path(path) / name, content)


def _check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a folder that is not there and cannot be made: its parents must be."""
    folder = check_path("path", path)
    if not Path(os.path.realpath(folder)).parent.is_dir():
        raise FileNotFoundError(
            f"`path` must lie in an existing folder; {str(folder.parent)!r} does not exist. "
            "Create it."
        )
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(
            f"`path` must be a folder; {str(folder)!r} is a file. Take another name."
        )


def _check_own(path: str | os.PathLike[str], new: dict[str, bytes]) -> None:
    """Refuse to replace a file that is no student's, is not empty, and says something else."""
    marks: dict[str, Callable[[Path], bool]] = {
        DESCRIPTION: lambda file: file.read_bytes().startswith(b'{\n  "%s":' % MARK.encode()),
        CARD: lambda file: _HEADER.encode() in file.read_bytes().split(b"\n---")[0],
    }
    others = [
        file.name
        for file in files_of(path)
        if file.is_file()
        and file.stat().st_size
        and not (marks[file.name](file) if file.name in new else files.is_of(file, KIND))
        and not (file.name in new and file.read_bytes() == new[file.name])
    ]
    if others:
        raise ArgumentError(
            f"`path` must not hold what is no student's; {os.fspath(path)!r} has "
            f"{', '.join(others)}. Take another name, or pass overwrite=True to replace it."
        )


def model_card(
    student: Any,
    *,
    fidelity: object = None,
    name: str = "One-pass predictive",
    data: str = _UNSAID,
    license: str | None = None,
) -> str:
    """The card of a student in Markdown, with the header that model hubs read.

    It is filled from ``student.report``; what a report cannot know is said here.

    Args:
        student: A :class:`~pyro_opu.OnePassPredictive`.
        fidelity: What :func:`~pyro_opu.fidelity` says of it at rows that it has not seen.
        name: The heading.
        data: What the posterior was conditioned on, in words.
        license: An identifier such as "apache-2.0".

    Raises:
        TypeError: no student; a ``name``, ``data`` or ``license`` that is no text.
        ValueError: a ``license`` that is no identifier.

    Example:
        >>> import torch
        >>> from pyro_opu import OnePassPredictive, PredictiveGuide
        >>> guide = PredictiveGuide.for_inputs(torch.randn(9, 4), 3)
        >>> print(model_card(OnePassPredictive(guide, (4,), 3), license="mit").splitlines()[2])
        license: mit
    """
    if not hasattr(student, "report"):
        raise ArgumentTypeError(
            f"`student` must be a OnePassPredictive; got {type(student).__name__}. Pass the result "
            "of distill."
        )
    for argument, text in {"name": name, "data": data, "license": license or "other"}.items():
        instance_of(argument, text, str, "text")
    if license and not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", license, re.ASCII):
        raise ArgumentError(
            f"`license` must be an identifier such as 'apache-2.0'; got {license[:60]!r}. Write "
            "'other', and what it says in the card's text."
        )
    report = student.report
    lines = ["---", _HEADER, f"license: {license or 'other'}"]
    lines += [f"pipeline_tag: {_task(student)}", "tags:", "- bayesian", "- uncertainty", "---", ""]
    lines += [f"# {_line(name)}", "", _summary(student), ""]
    lines += ["## How to use it", "", "```python", "from pyro_opu import OnePassPredictive", ""]
    lines += ['student = OnePassPredictive.load("folder/")', "student.uncertainty(x)  # one pass"]
    lines += ["```", "", "## What it was taught by", "", f"- Data: {_line(data)}."]
    lines += [f"- Teacher: {_line(report.get('taught_by', _UNSAID))}."]
    lines += [f"- pyro_opu {__version__}, seed {_line(report.get('seed', _UNSAID))}.", ""]
    lines += ["## How near it is to its teacher", ""]
    lines += _block(report if "kl_ratio" in report else "No report was kept.")
    if fidelity is not None:
        lines += ["At rows that it was not taught at:", "", *_block(fidelity)]
    lines += ["## Limits", "", *(f"- {text}" for text in _limits(student)), ""]
    return "\n".join(lines)


def _task(student: Any) -> str:
    what = "regression" if student.num_classes is None else "classification"
    return f"{'image' if len(student.input_shape) > 1 else 'tabular'}-{what}"


def _summary(student: Any) -> str:
    numbers = sum(parameter.numel() for parameter in student.parameters())
    return (
        f"A network of {numbers:,} numbers that answers an input of shape "
        f"{tuple(student.input_shape)} with the predictive distribution of a Bayesian model: "
        f"{student.outcome}, and how sure the posterior is, in one forward pass."
    )


def _limits(student: Any) -> list[str]:
    together = (
        "Draws are joint over inputs."
        if student.joint
        else (
            "Draws are independent between inputs: sums, differences and rankings of rows need a "
            'student of distill(..., guide="joint").'
        )
    )
    return [
        "An error of its teacher, of the model or of the sampler, is its error too.",
        "Far from the inputs that it was taught at it may differ from its teacher.",
        together,
    ]


def _line(text: object) -> str:
    """Text that stays on its line."""
    return " ".join(str(text).split())


def _block(text: object) -> list[str]:
    """Text as it is, between fences that are longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", str(text))), default=0))
    return [f"{fence}text", str(text), fence, ""]
