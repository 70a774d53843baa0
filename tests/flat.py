"""Distillations whose settings come in one dict, whether they are of ``distill`` or not."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any

from pyro_opu import OnePassPredictive, Training, as_teacher, distill

OF_SOURCE = signature(as_teacher).parameters.keys() - {"source"}
OF_TRAINING = {field.name for field in fields(Training)} - {"num_steps"}


def gathered(**flat: Any) -> dict[str, Any]:
    """Keywords of ``distill``, with those of ``Training`` in its argument."""
    training = {name: flat.pop(name) for name in OF_TRAINING & flat.keys()}
    return dict(**flat, training=Training(**training)) if training else flat


def distill_flat(source: Any, x: Any, **flat: Any) -> OnePassPredictive:
    """A student by keywords of ``distill``, ``Training`` and ``as_teacher``."""
    said = {name: flat.pop(name) for name in OF_SOURCE & flat.keys()}
    return distill(as_teacher(source, **said) if said else source, x, **gathered(**flat))
