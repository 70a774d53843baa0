"""Distil a network when Lightning has trained it."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from pyro_opu.distillation import distill
from pyro_opu.inputs import InputLike
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.teachers import Source

__all__ = ["distil_at_end"]


def distil_at_end(
    x: InputLike | None = None,
    *,
    source: Callable[[nn.Module], Source] | None = None,
    path: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """A Lightning callback that makes a student of the network at the end of ``fit``.

    The student is the callback's ``student``. In a run of several processes all of them train one,
    which needs the same ``x`` in each.

    Example:
        ``at_end = distil_at_end(x)``, ``Trainer(callbacks=[at_end]).fit(module, loader)``, and then
        ``at_end.student.uncertainty(x_new)``.

    Args:
        x: Transfer inputs of :func:`~pyro_opu.distill`; by default those of the training loader.
        source: What is distilled of the module; by default the module, whose dropout is sampled.
        path: Where the student is saved, too.
        options: Others of :func:`~pyro_opu.distill`.

    Raises:
        ImportError: Lightning is not installed.
    """

    class DistilAtEnd(_callback()):  # type: ignore[misc]
        student: OnePassPredictive | None = None

        def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
            teacher = pl_module if source is None else source(pl_module)
            given = trainer.train_dataloader if x is None else x
            self.student = distill(teacher, given, **options)
            if path is not None and trainer.is_global_zero:
                self.student.save(path)

    return DistilAtEnd()


def _callback() -> Any:
    """The class of callbacks, under either name of the package."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise ImportError(
        "distil_at_end needs Lightning, which is not installed: pip install lightning"
    )
