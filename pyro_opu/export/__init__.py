"""A student as a file that needs neither Pyro nor this package: ONNX, or torch.export's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_path, check_row_shape, instance_of
from pyro_opu.export.formats import FORMATS, check_packages, run_onnx
from pyro_opu.export.program import REAL_UNITS, UNITS, StudentProgram, differing, trace
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.utils import files

__all__ = ["export"]


def export(
    fast: OnePassPredictive,
    path: str | os.PathLike[str],
    example_x: Tensor | None = None,
    *,
    outputs: Sequence[str] | None = None,
) -> None:
    r"""Write a student as one program x -> mean, concentration and the uncertainties.

    The suffix says the format: ``.onnx`` (operator set 18, any ONNX runtime) or ``.pt2``
    (``torch.export.load``). Reading a ``.pt2`` runs pickle, by torch's doing: load only those from
    a source you trust; an ``.onnx`` file and what ``save`` writes hold no code. The number of rows
    N is free. The outputs are those of :func:`pyro_opu.uncertainty` by the same formulas, computed
    in float64 inside and rounded to the student's dtype; digamma and log-gamma, which ONNX lacks,
    are made of plain operations that are right to 1e-14.

    All guides of this package can be exported, and those of your own that torch.export can trace. A
    logistic normal has no differential entropy here, and holds 256 points per input in memory. A
    regression student has mean, total, aleatoric and epistemic, ``(N,)`` each.

    In the file's metadata, under ``pyro_opu``, stands a description as JSON: shape and dtype of
    the input, number of classes, sites, version, and the shape and unit of every output. It is in
    ``metadata_props`` of ONNX, and an extra file of torch.export's archive.

    Args:
        fast: The student.
        path: Ends in ``.onnx`` or ``.pt2``. Written aside and moved into place.
        example_x: Inputs ``(N, *input_shape)`` at which the program is traced and compared with the
            student before it is written; by default zeros. A guide of this package is compared up
            to 1e6 deviations from its transfer inputs too: NaN and infinity stand where the
            student has them, and nowhere else. The program takes inputs in the student's dtype, or
            in float64 if these are and the guide centres them (time stamps).
        outputs: Names of the outputs, in their order; by default all. What is not asked for is not
            computed: of a mixture the differential entropy costs more than all the rest.

    Raises:
        ValueError: another suffix; an output that there is not; inputs of another shape; a guide
            that cannot be traced, or that ONNX cannot express.
        TypeError: ``fast`` is not a student, ``path`` not a path, or ``example_x`` not a tensor.
        FileNotFoundError: the folder does not exist.
        ImportError: for ``.onnx`` without the extra "onnx".

    Example:
        >>> import tempfile, torch
        >>> from pyro_opu import OnePassPredictive, PredictiveGuide
        >>> guide = PredictiveGuide.for_inputs(torch.randn(9, 4), 3, hidden=(8,))
        >>> fast = OnePassPredictive(guide, (4,), 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export(fast, f"{folder}/student.pt2", outputs=["mean", "epistemic"])
        ...     program = torch.export.load(f"{folder}/student.pt2").module()
        >>> {name: tuple(value.shape) for name, value in program(torch.randn(7, 4)).items()}
        {'mean': (7, 3), 'epistemic': (7,)}
    """
    advice = "A guide goes through OnePassPredictive.from_guide."
    instance_of("fast", fast, OnePassPredictive, "a student, as distill returns it", advice)
    path = check_path("path", path)
    if path.suffix not in FORMATS:
        raise ValueError(
            f"`path` must end in {' or '.join(sorted(FORMATS))}, which says the format; got "
            f"{path.name!r}. To keep a student for Python use save."
        )
    files.placed(path)
    check_packages(path.suffix)
    student = StudentProgram(fast, outputs)
    x = _checked_example(fast, student, example_x)
    program = trace(student, x)
    content = FORMATS[path.suffix](program, student.outputs, _description(fast, student, x.dtype))
    if path.suffix == ".onnx":
        wrong = differing(student, run_onnx(content, student.outputs), x)
        if wrong:
            raise ValueError(
                f"`fast` must have a guide that ONNX can express; the model's {wrong!r} is not the "
                "student's. Leave that output out with outputs=..., or write a .pt2."
            )
    files.put(path, content)


def _checked_example(
    fast: OnePassPredictive, student: StudentProgram, example_x: Tensor | None
) -> Tensor:
    if example_x is None:
        return torch.zeros(2, *fast.input_shape, dtype=student.dtype)
    check_inputs(example_x, "example_x", dtype=student.dtype)
    advice = "Pass inputs as the student takes them."
    check_row_shape("example_x", example_x, fast.input_shape, advice)
    return in_dtype_of(student.guide, example_x.detach().cpu())


def _description(
    fast: OnePassPredictive, student: StudentProgram, input_dtype: torch.dtype
) -> dict[str, Any]:
    """What the file says of itself."""
    from pyro_opu import __version__

    dtype = str(input_dtype).removeprefix("torch.")
    units, classes = (REAL_UNITS, None) if student.real else (UNITS, fast.num_classes)
    return {
        "pyro_opu_version": __version__,
        "input": {"name": "x", "shape": ["N", *fast.input_shape], "dtype": dtype},
        "num_classes": classes,
        "sites": [site.name for site in fast.sites],
        "outputs": {
            name: {
                "shape": ["N", classes] if name == "mean" and classes else ["N"],
                "unit": units[name],
            }
            for name in student.outputs
        },
    }
