"""A student as a folder, in the layout that model hubs read: weights, description, model card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pyro_opu.checks import check_path
from pyro_opu.utils import files
from pyro_opu.utils.tables import json_ready
from pyro_opu.utils.version import __version__

__all__ = ["file_of", "is_folder", "model_card", "write_folder"]

#: Names of the files in a folder.
WEIGHTS, DESCRIPTION, CARD = "model.safetensors", "config.json", "README.md"
_UNSAID = "not said"


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a folder: one that exists, or one that ends as one."""
    check_path("path", path)
    text = os.fspath(path)
    return text.endswith(("/", os.sep)) or os.path.isdir(text)


def file_of(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The file with the weights: in a folder the one of that name."""
    return Path(path) / WEIGHTS if is_folder(path) else path


def write_folder(path: str | os.PathLike[str], description: dict[str, Any], card: str) -> None:
    """Write description and card beside where the weights go; makes the folder, not its parents."""
    folder = check_path("path", path)
    if not Path(os.path.realpath(folder)).parent.is_dir():
        raise FileNotFoundError(
            f"`path` must lie in an existing folder; {str(folder.parent)!r} does not exist. "
            "Create it."
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`path` must be a folder; {str(folder)!r} is a file. Take another name.")
    folder.mkdir(exist_ok=True)
    plain = json.dumps(json_ready(description), indent=2, allow_nan=False)
    files.put(folder / DESCRIPTION, (plain + "\n").encode())
    files.put(folder / CARD, card.encode())


def model_card(
    student: Any,
    *,
    fidelity: Any = None,
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

    Example:
        >>> import torch
        >>> from pyro_opu import OnePassPredictive, PredictiveGuide
        >>> guide = PredictiveGuide.for_inputs(torch.randn(9, 4), 3)
        >>> print(model_card(OnePassPredictive(guide, (4,), 3), license="mit").splitlines()[2])
        license: mit
    """
    if not hasattr(student, "report"):
        raise TypeError(
            f"`student` must be a OnePassPredictive; got {type(student).__name__}. Pass the result "
            "of distill."
        )
    report = student.report
    lines = ["---", "library_name: pyro_opu", f"license: {license or 'other'}"]
    lines += [f"pipeline_tag: {_task(student)}", "tags:", "- bayesian", "- uncertainty", "---", ""]
    lines += [f"# {name}", "", _summary(student), ""]
    lines += ["## How to use it", "", "```python", "from pyro_opu import OnePassPredictive", ""]
    lines += ['student = OnePassPredictive.load("folder/")', "student.uncertainty(x)  # one pass"]
    lines += ["```", "", "## What it was taught by", "", f"- Data: {data}."]
    lines += [f"- Teacher: {report.get('taught_by', _UNSAID)}."]
    lines += [f"- pyro_opu {__version__}, seed {report.get('seed', _UNSAID)}.", ""]
    lines += ["## How near it is to its teacher", ""]
    lines += _block(report if "kl_ratio" in report else "No report was kept.")
    if fidelity is not None:
        lines += ["At rows that it was not taught at:", "", *_block(fidelity)]
    lines += ["## Limits", "", *(f"- {text}" for text in _limits(student)), ""]
    return "\n".join(lines)


def _task(student: Any) -> str:
    if student.num_classes is None:
        return "tabular-regression"
    return f"{'image' if len(student.input_shape) > 1 else 'tabular'}-classification"


def _summary(student: Any) -> str:
    what = f"{student.num_classes} classes" if student.num_classes else "real numbers or counts"
    numbers = sum(parameter.numel() for parameter in student.parameters())
    return (
        f"A network of {numbers:,} numbers that answers an input of shape "
        f"{tuple(student.input_shape)} with the predictive distribution of a Bayesian model: "
        f"{what}, and how sure the posterior is, in one forward pass."
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


def _block(text: Any) -> list[str]:
    return ["```text", str(text), "```", ""]
