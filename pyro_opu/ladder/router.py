"""A guarded pair where this package is not: the text of a router between two ONNX files."""

from __future__ import annotations

from pathlib import Path

from pyro_opu.checks import ArgumentError
from pyro_opu.utils import files

__all__ = ["NAMES", "check_router", "put_router"]

#: What a folder holds.
NAMES = ("fast.onnx", "exact.onnx", "router.py")
#: How the file begins, by which it is known.
_BEGINS = '"""Answers of a pyro_opu guarded pair'
_ROUTER = '''{begins}: fast.onnx, and {elsewhere} at rows it has no certificate for."""

from pathlib import Path

import numpy as np
import onnxruntime

{sessions} = (
    onnxruntime.InferenceSession(Path(__file__).with_name(f"{{name}}.onnx")) for name in {names}
)


def answer(*x):
    """Mean (N, ...) and epistemic part (N,) of inputs in order, and which rows went elsewhere."""
    names = [each.name for each in fast.get_inputs()]
    mean, epistemic, novelty = fast.run(["mean", "epistemic", "novelty"], dict(zip(names, x)))
    away = ~(novelty <= {novelty!r}){unsettled}
    if away.any():
        {elsewhere_code}
    return mean, epistemic, away
'''
_EXACT = """some = {name: part[away] for name, part in zip(names, x)}
        mean[away], epistemic[away] = exact.run(["mean", "epistemic"], some)"""
_NONE = (
    """raise ValueError(f"no certificate for {away.sum()} rows, the first is {away.argmax()}")"""
)


def check_router(folder: Path) -> None:
    """Refuse a folder with a ``router.py`` that :func:`put_router` did not write."""
    path = folder / NAMES[-1]
    if path.exists() and not path.read_text().startswith(_BEGINS):
        raise ArgumentError(
            f"`folder` must have no {path.name} of somebody else's; {str(folder)!r} has one. "
            "Name another folder."
        )


def put_router(
    folder: Path,
    novelty: float,
    margin: float | None,
    threshold: float,
    num_classes: int | None,
    has_exact: bool,
) -> None:
    """Write ``router.py``, which needs NumPy and onnxruntime alone."""
    path = folder / NAMES[-1]
    unsettled = ""
    if margin is not None:
        decided = f"mean[:, 1] - {threshold!r}"
        if num_classes != 2:
            decided = f"np.ptp(np.sort(mean)[:, -2:], axis=1) - {threshold!r}"
        unsettled = f" | (abs({decided}) <= {margin!r})"
    text = _ROUTER.format(
        begins=_BEGINS,
        elsewhere="exact.onnx" if has_exact else "an error",
        sessions="fast, exact" if has_exact else "(fast,)",
        names=("fast", "exact") if has_exact else ("fast",),
        novelty=novelty,
        unsettled=unsettled,
        elsewhere_code=_EXACT if has_exact else _NONE,
    )
    files.put(path, text.encode())
