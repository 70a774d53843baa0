"""A written program read again, as a function of inputs in one tensor."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, all_finite, check_path
from pyro_opu.export.formats import METADATA, SEED, open_onnx, run_onnx
from pyro_opu.inputs import Form
from pyro_opu.utils.chunks import NUMBERS

__all__ = ["ReadProgram", "is_program", "read_program"]

#: Rows that are answered at once, at most.
ROWS = 2048
#: The parts of the inputs, in order -> named outputs.
Run = Callable[..., dict[str, Tensor]]


class ReadProgram:
    """What ``fast.export`` or ``exact(...).export`` wrote, as a function.

    Attributes:
        form: The form of the inputs.
        input_shape: The shape of a row of them in one tensor.
        num_classes: C, where one label is observed.
        num_draws: Posterior draws inside, ``None`` of a student.
        bounds: A student's ``fast.bound(level)`` by level.
        outputs: Shape and unit of every output, by name.
        rows_at_once: Rows of a call that take little memory.

    Args:
        run: The program.
        described: The description in its file.
    """

    def __init__(self, run: Run, described: Mapping[str, Any]) -> None:
        self._run, self.version = run, described["pyro_opu_version"]
        self._inputs = described.get("inputs") or [described["input"]]
        self.form = Form.from_config(described["form"])
        columns = sum(part.columns for part in self.form.parts)
        self.input_shape = (columns,) if columns else tuple(self._inputs[0]["shape"][1:])
        self.num_classes: int | None = described["num_classes"]
        self.num_draws: int | None = described.get("num_draws")
        self.bounds: dict[str, Any] = described.get("bound", {})
        self.outputs: dict[str, dict[str, Any]] = described["outputs"]
        numbers = described.get("numbers_of_a_row", 1)
        self.rows_at_once: int = max(1, min(ROWS, NUMBERS // numbers))

    def __call__(self, x: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """The outputs at inputs in one tensor, rows first.

        Raises:
            ValueError: the program cannot answer them, such as an index that the draws do not have.
        """
        given = {SEED: torch.tensor([seed]), **self.form.named_parts(x)}
        taken = [given[each["name"]].to(getattr(torch, each["dtype"])) for each in self._inputs]
        index = x[:, self.form.index_columns]
        wrong = index % 1 != 0
        if self.num_draws is not None:
            wrong |= index < 0  # which a model would count from the end
        if not all(map(all_finite, taken)) or bool(wrong.any()):
            raise ArgumentError(
                "`x` must hold numbers that are finite in the program's precision, and whole ones "
                "from 0 on where it takes an index; got others. Correct these rows."
            )
        try:
            found = self._run(*taken)
        except Exception as error:
            raise ArgumentError(
                "`x` must be rows that the program can answer; it raised: "
                f"{str(error).strip()[:300]}. Is there an index that the posterior does not have?"
            ) from error
        shapes = {name: output["shape"] for name, output in self.outputs.items()}
        return {name: found[name].movedim(shape.index("N"), 0) for name, shape in shapes.items()}

    def __str__(self) -> str:
        held = "of a student" if self.num_draws is None else f"with {self.num_draws:,} draws inside"
        named = [
            f"{name} ({', '.join(map(str, each['shape']))}), {each['unit']}"
            for name, each in self.outputs.items()
        ]
        shape = "" if self.form.parts else f", {self.input_shape}"
        first = f"a program {held}, written by pyro_opu {self.version}"
        lines = [first, f"inputs: {self.form}{shape}", *(f"output: {each}" for each in named)]
        lines += [
            f"bound: mean within {bound} of its teacher's at {level} of new rows"
            for level, bound in self.bounds.items()
            if bound is not None
        ]
        return "\n".join(lines)


def is_program(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one, by its suffix; a student's may end in ``.pt2``, too."""
    path = Path(path)
    return path.suffix == ".onnx" or (path.suffix == ".pt2" and zipfile.is_zipfile(path))


def read_program(path: str | os.PathLike[str], threads: int | None = None) -> ReadProgram:
    """Read a program that this package wrote; ``threads`` are those of a ``.onnx``.

    A ``.pt2`` holds pickled objects: read only files that you trust.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: this package did not write it, or it is damaged.
        ImportError: a ``.onnx`` where neither onnxruntime nor onnx is installed.
    """
    path = check_path("path", path)
    content = path.read_bytes()
    try:
        return _of_onnx(content, threads) if path.suffix == ".onnx" else _of_archive(content)
    except ImportError:
        raise
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise ArgumentError(
            f"`path` must be a program that .export of this version wrote; {path.name!r} is not, "
            f"or is damaged ({type(error).__name__}: {said}). Export it again."
        ) from error


def _of_onnx(content: bytes, threads: int | None) -> ReadProgram:
    session, metadata = open_onnx(content, threads)
    described = _described(metadata.get(METADATA))
    names = [each["name"] for each in described.get("inputs") or [described["input"]]]
    return ReadProgram(run_onnx(session, names, list(described["outputs"])), described)


def _of_archive(content: bytes) -> ReadProgram:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:  # before anything is unpickled
        places = [name for name in archive.namelist() if name.endswith(f"extra/{METADATA}")]
        described = _described(archive.read(places[0]) if places else None)
    logger = logging.getLogger("torch._export.serde.serialize")  # of symbols that do not occur
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)
            run = torch.export.load(io.BytesIO(content)).module()
        return ReadProgram(run, described)
    finally:
        logger.setLevel(level)


def _described(text: str | bytes | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text or "{}")
    if "form" not in found:
        raise ValueError("it has no description by pyro_opu")
    return found
