"""A program as a file that needs neither Pyro nor this package: ONNX, or torch.export's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, check_inputs, check_path, instance_of
from pyro_opu.export.formats import FORMATS, check_packages, open_onnx, run_onnx
from pyro_opu.export.program import FileProgram, Outputs, StudentProgram, differing, trace
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.guides.novelty import Novelty
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.utils import files
from pyro_opu.utils.version import __version__

__all__ = ["export"]


def export(
    guide: nn.Module,
    path: str | os.PathLike[str],
    example_x: Tensor,
    *,
    outputs: Outputs = None,
    sites: Sequence[str] = (),
    form: Form = PLAIN,
    novelty: Novelty | None = None,
    bound: float | None = None,
    said: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write a guide as one program x -> mean, concentration and the uncertainties.

    The suffix says the format: ``.onnx`` (operator set 18, any ONNX runtime) or ``.pt2``
    (``torch.export.load``, which runs pickle: load only files you trust). The number of rows N is
    free. The outputs are those of :func:`pyro_opu.uncertainty`, computed in float64 and rounded to
    the guide's dtype. All guides of this package can be exported, and those of your own that
    torch.export can trace.

    The metadata under ``pyro_opu`` (``metadata_props`` of ONNX, an extra file of torch.export's
    archive) is JSON: shape and dtype of the input, with the columns of a table and the names
    of categories, the form by which the command reads them, number of classes, sites, version, and
    the shape and unit of every output.

    Args:
        guide: Module ``x -> answer``, such as ``fast.guide``.
        path: Ends in ``.onnx`` or ``.pt2``; replaced atomically.
        example_x: Inputs ``(N, *input_shape)`` at which the program is traced and compared with the
            guide; one of this package is compared up to 1e6 deviations from its transfer inputs
            too. The program takes inputs in the guide's dtype, or in float64 if these are and the
            guide centres them (time stamps).
        outputs: Names of the outputs, in their order; by default mean, concentration and epistemic,
            of a real y or a count mean and variances. "all" is whatever the answer has in closed
            form, and novelty, which takes several times as long.
        sites: Names for the description.
        form: The form of several inputs, which ``example_x`` holds as one tensor. The program
            takes its parts, by position; in ONNX by name. At an index that was not seen, which it
            cannot refuse, it answers NaN.
        novelty: A student's novelty (``fast.detector``), for the outputs "novelty" and "trust", 1
            where it is at most .99, inside the taught region, and 0 outside.
        bound: ``fast.bound()``, for an output "bound": this inside, infinite outside.
        said: What else the metadata says, as plain values: of a student "bound" and "margin", by
            level, what :meth:`.OnePassPredictive.bound` gives.

    Raises:
        ValueError: another suffix; an unknown output; a guide that cannot be traced, or that ONNX
            cannot express.
        TypeError: ``guide`` is not a module, ``path`` not a path, or ``example_x`` not a tensor.
        FileNotFoundError: the folder does not exist.
        ImportError: for ``.onnx`` without the extra "onnx".

    Example:
        >>> import tempfile, torch
        >>> from pyro_opu import PredictiveGuide
        >>> x = torch.randn(9, 4)
        >>> guide = PredictiveGuide.for_inputs(x, 3, hidden=(8,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export(guide, f"{folder}/student.pt2", x, outputs=["mean", "epistemic"])
        ...     program = torch.export.load(f"{folder}/student.pt2").module()
        >>> {name: tuple(value.shape) for name, value in program(torch.randn(7, 4)).items()}
        {'mean': (7, 3), 'epistemic': (7,)}
    """
    advice = "Pass fast.guide, or call the student's own method."
    instance_of("guide", guide, nn.Module, "a module x -> answer", advice)
    checked_path(path)
    student = StudentProgram(guide, example_x.shape[1:], outputs, novelty, form, bound)
    student.description = said
    check_inputs(example_x, "example_x", dtype=student.dtype)
    write(student, path, in_dtype_of(student.guide, example_x.detach().cpu()), sites)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The place of a file in a format that can be written.

    Raises:
        TypeError, ValueError: no path, or of another suffix.
        FileNotFoundError: its folder does not exist.
        ImportError: for ``.onnx`` without the extra "onnx".
    """
    path = check_path("path", path)
    if path.suffix not in FORMATS:
        raise ArgumentError(
            f"`path` must end in {' or '.join(sorted(FORMATS))}, which says the format; got "
            f"{path.name!r}. To keep a student for Python use save."
        )
    files.placed(path)
    check_packages(path.suffix)
    return path


def write(
    module: FileProgram, path: str | os.PathLike[str], x: Tensor, sites: Sequence[str] = ()
) -> int:
    """Trace a module, check the file's answers at inputs in one tensor, and put it there.

    Returns:
        The size of the file in bytes.

    Raises:
        ValueError: it cannot be traced, ONNX cannot express it, or it answers otherwise.
    """
    path = checked_path(path)
    inputs = module.inputs(x)
    if path.suffix == ".onnx" and (both := sorted(inputs.keys() & set(module.outputs))):
        raise ArgumentError(
            f"`{module.argument}` must have inputs of other names than its outputs in ONNX; got "
            f"{both} for both. Rename the model's argument, or write a .pt2."
        )
    program = trace(module, tuple(inputs.values()))
    described = _description(module, inputs, sites)
    try:
        content = FORMATS[path.suffix](program, module, described)
    except torch.onnx.OnnxExporterError as error:
        raise ArgumentError(_inexpressible(module, error)) from error
    if path.suffix == ".onnx":
        try:
            session, _ = open_onnx(content)
        except Exception as error:
            raise ArgumentError(_inexpressible(module, error)) from error
        run = run_onnx(session, list(inputs), module.outputs)
        wrong = differing(module, run, tuple(inputs.values()))
        if wrong:
            raise ArgumentError(
                f"`{module.argument}` must be one that ONNX can express; the model's {wrong!r} is "
                "another one. Leave that output out with outputs=..., or write a .pt2."
            )
    files.put(path, content)
    return len(content)


def _inexpressible(module: FileProgram, error: Exception) -> str:
    """The error of an operation that ONNX lacks, by its name where it is known."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    found = re.search(r"aten[.:]+[\w.]+", f"{cause} {error}")
    what = found.group() if found else (str(cause).splitlines() or [type(cause).__name__])[0]
    return (
        f"`{module.argument}` must be one that ONNX can express; it has no {what[:200]}. Write a "
        ".pt2, which has all of torch's operations."
    )


def _description(
    module: FileProgram, inputs: dict[str, Tensor], sites: Sequence[str]
) -> dict[str, Any]:
    """The metadata of the file."""
    columns = {part.name: part.describe()["source"] for part in module.form.parts if part.source}
    parts = [part.name for part in module.form.parts] or ["x"]
    described = [
        {
            "name": name,
            "shape": ["N", *x.shape[1:]] if name in parts else list(x.shape),
            "dtype": str(x.dtype).removeprefix("torch."),
            **({"columns": columns[name]} if name in columns else {}),
        }
        for name, x in inputs.items()
    ]
    return {
        "pyro_opu_version": __version__,
        **({"input": described[0]} if len(described) == 1 else {"inputs": described}),
        "form": module.form.describe(),
        "num_classes": module.num_classes,
        **module.description,
        "sites": list(sites),
        "outputs": {
            name: {"shape": module.shapes[name], "unit": unit}
            for name, unit in module.units.items()
        },
    }
