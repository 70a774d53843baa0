"""The file formats of a traced student: torch.export's archive and ONNX."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.export.program import FileProgram

#: Operator set of the ONNX files, read by ONNX Runtime 1.14 (December 2022) and later.
OPSET = 18
#: Key of the description, which is JSON, in either file.
METADATA = "pyro_opu"
#: Name of the input that labels are drawn by.
SEED = "seed"

Program = torch.export.ExportedProgram


def archive(program: Program, module: FileProgram, description: Mapping[str, object]) -> bytes:
    """The file that ``torch.export.load`` reads, with the description as an extra file."""
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={METADATA: json.dumps(description)})
    return file.getvalue()


def onnx(program: Program, module: FileProgram, description: dict[str, Any]) -> bytes:
    """The ONNX model, with the description in its metadata."""
    outputs = module.outputs
    inputs = description.get("inputs") or [description["input"]]
    with warnings.catch_warnings():  # of an axis that all inputs have
        warnings.filterwarnings("ignore", "# The axis name: N will not be used", UserWarning)
        written = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[each["name"] for each in inputs],
            output_names=list(outputs),
            dynamic_shapes=module.dynamic_shapes,
            custom_translation_table=_exact_numbers(),
            verbose=False,
        )
    assert written is not None  # so it is without a file name
    model = written.model
    for node in model.graph:
        node.metadata_props.clear()  # the steps of torch it was made of
        for value in node.outputs:
            if value.name in outputs and not value.is_graph_output():
                value.name = f"{value.name}_inside"  # the name of an output is taken
    model.producer_name, model.producer_version = "pyro_opu", description["pyro_opu_version"]
    model.metadata_props[METADATA] = json.dumps({**description, "opset": OPSET})
    return written.model_proto.SerializeToString()


def _exact_numbers() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Translations of operations that keep the precision of the tensors.

    The exporter rounds constants to float32, which turns the smallest float64 into zero.
    """
    import onnx_ir
    from onnxscript import opset18

    op: Any = opset18

    def constant(number: float, dtype: int) -> Any:
        kind = onnx_ir.DataType(dtype)
        return op.Constant(value=onnx_ir.tensor(number, dtype=kind))

    def scalar_tensor(
        s: float, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False
    ) -> Any:
        return constant(s, dtype)

    def clamp(self: Any, min: float | None = None, max: float | None = None) -> Any:
        # Written as a maximum and a minimum, the exporter would merge them and lose a bound where
        # one value is clamped twice.
        bounds = (None if n is None else constant(n, self.dtype) for n in (min, max))
        return op.Clip(self, *bounds)

    def sigmoid(self: Any) -> Any:
        one = constant(1.0, self.dtype)  # that of some runtimes is 0 below -18, and off by 1e-7
        return op.Div(one, op.Add(one, op.Exp(op.Neg(self))))

    aten = torch.ops.aten
    return {
        aten.scalar_tensor.default: scalar_tensor,
        aten.clamp.default: clamp,
        aten.sigmoid.default: sigmoid,
    }


def open_onnx(content: bytes, threads: int | None = None) -> tuple[Any, Mapping[str, str]]:
    """A session of ONNX Runtime, or else of the reference of onnx, and the file's metadata."""
    if find_spec("onnxruntime"):
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = threads or 0  # 0: as many as there are cores
        session = InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return session, session.get_modelmeta().custom_metadata_map
    if not find_spec("onnx"):
        raise ImportError(
            "Reading ONNX needs the package onnxruntime, which is not installed: pip install "
            "onnxruntime. A file that ends in .pt2 needs torch alone."
        )
    from onnx import load_from_string
    from onnx.reference import ReferenceEvaluator

    model = load_from_string(content)
    return ReferenceEvaluator(model), {each.key: each.value for each in model.metadata_props}


def run_onnx(
    session: Any, names: Sequence[str], outputs: Sequence[str]
) -> Callable[..., dict[str, Tensor]]:
    """Make a session a function of tensors."""

    def run(*inputs: Tensor) -> dict[str, Tensor]:
        given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        with np.errstate(all="ignore"):
            values = session.run(list(outputs), given)
        return {name: torch.as_tensor(v) for name, v in zip(outputs, values, strict=True)}

    return run


def check_packages(suffix: str) -> None:
    """Raise an ImportError where onnx or onnxscript is not there to write ``.onnx``."""
    if suffix == ".onnx" and not all(map(find_spec, ("onnx", "onnxscript"))):
        raise ImportError(
            "Writing ONNX needs the packages onnx and onnxscript, which are not installed: "
            'pip install "pyro_opu[onnx]". A file that ends in .pt2 needs neither.'
        )


#: Makers of the file's bytes, by suffix.
FORMATS: dict[str, Callable[[Program, FileProgram, dict[str, Any]], bytes]] = {
    ".pt2": archive,
    ".onnx": onnx,
}
