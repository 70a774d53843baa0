"""What a saved student or a written program says of rows, as named columns of numbers."""

from __future__ import annotations

import os
from itertools import product

import torch
from torch import Tensor

from pyro_opu.export.reading import ROWS, ReadProgram, is_program, read_program
from pyro_opu.predictive import OnePassPredictive

__all__ = ["Source", "answers", "load", "no_answers"]

#: What answers.
Source = OnePassPredictive | ReadProgram


def load(path: str | os.PathLike[str], threads: int | None = None) -> Source:
    """Read a student or a program; ``threads`` are those of a ``.onnx``."""
    return read_program(path, threads) if is_program(path) else OnePassPredictive.load(path)


@torch.no_grad()
def answers(source: Source, x: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Class probabilities, or the mean, and all else that it says, ``(N,)`` each.

    Rows are answered some thousands at a time; labels of the k-th thousands are drawn by
    ``seed + k``.
    """
    blocks = x.split(getattr(source, "rows_at_once", ROWS))
    found = [_of_block(source, block, seed + number) for number, block in enumerate(blocks)]
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def no_answers(source: Source) -> dict[str, Tensor]:
    """The columns at no rows."""
    example = source.form.example(source.input_shape)
    return {name: values[:0] for name, values in answers(source, example).items()}


def _of_block(source: Source, x: Tensor, seed: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if isinstance(source, ReadProgram):
        said = source(x, seed)
        if source.num_classes is not None and "mean" in said:
            found |= _columns("p", said.pop("mean"), "")
        for name, values in said.items():
            found |= _columns(name, values)
        return found
    tables = source._tables_of(*source._answer_and_novelty(x))
    for site, table in tables.items():
        said = table.to_dict()
        if source.num_classes is not None:
            found |= _columns("p", said.pop("mean"), "")
        for name, values in said.items():
            found |= _columns(f"{site}.{name}" if len(tables) > 1 else name, values)
    return found


def _columns(name: str, values: Tensor, mark: str = "_") -> dict[str, Tensor]:
    """Numbers ``(N, ...)`` as columns ``(N,)``, called by their places where there are several."""
    places = product(*map(range, values.shape[1:]))
    names = (mark.join([name, *map(str, place)]) for place in places)
    return dict(zip(names, values.reshape(len(values), -1).unbind(1), strict=True))
