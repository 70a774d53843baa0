"""Students as ONNX and torch.export files, against themselves, over the test rows.

python -m benchmarks.export_check

Two students, distilled in a few hundred steps, since what is asked is whether the files say the
same: digits with MC dropout (as ``benchmarks.digits_fidelity``) and MNIST with the network of
``benchmarks.mnist_dropout`` after one epoch. Every file runs in a process of its own in which
neither Pyro nor this package can be imported, ONNX Runtime without torch too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import pyro_opu
from benchmarks.digits import digits
from benchmarks.mnist_dropout import images, trained
from benchmarks.results import parser, say, write
from benchmarks.timing import timed
from pyro_opu.models.neural_network import dropout_network, fit_network

COMMAND = "python -m benchmarks.export_check"
#: Forbidden modules, then what is asked of a file: read x.npy, write the answers beside it.
SCRIPTS = {
    ".onnx": """
import sys; sys.modules.update(dict.fromkeys(["torch", "pyro", "pyro_opu"]))
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
answers = session.run(names, {"x": numpy.load("x.npy")})
numpy.savez("answers.npz", **dict(zip(names, answers)))
""",
    ".pt2": """
import sys; sys.modules.update(dict.fromkeys(["pyro", "pyro_opu"]))
import numpy, torch
program = torch.export.load(sys.argv[1]).module()
answers = program(torch.from_numpy(numpy.load("x.npy")))
numpy.savez("answers.npz", **{name: value.detach().numpy() for name, value in answers.items()})
""",
}
RUNTIMES = {".onnx": "ONNX Runtime", ".pt2": "torch.export"}


class Student(NamedTuple):
    """A student, the data it is of, and rows it is asked about."""

    data: str
    fast: Any
    x: Tensor


def main() -> None:
    quick = parser(__doc__.splitlines()[0]).parse_args().quick
    torch.set_num_threads(1)
    tables: dict[str, list[dict]] = {}
    for student in (on_digits(quick), on_mnist(quick)):
        for title, row in checked(student).items():
            tables.setdefault(title, []).append({"data": student.data, **row})
        say(tables)
        if not quick:
            write("export_check", COMMAND, {"distillation steps": steps(quick)}, tables)


def steps(quick: bool) -> int:
    return 5 if quick else 300


def on_digits(quick: bool) -> Student:
    """All 1,797 rows are asked about; those that nobody has seen are not what matters here."""
    data = digits(0)
    torch.manual_seed(0)
    network = fit_network(dropout_network((64, 128, 128, 10)), *data.train, epochs=20)
    return Student(
        "digits", distilled(network, data.transfer.x, quick), torch.cat([part.x for part in data])
    )


def on_mnist(quick: bool) -> Student:
    """The test rows of MNIST."""
    rows = 2000 if quick else 60_000
    x, y = (part[:rows] for part in images(train=True))
    settings = SimpleNamespace(epochs=1, learning_rate=1e-3, weight_decay=1e-6)
    network, _ = trained(0, (x, y), settings)
    asked = images(train=False)[0][: 500 if quick else None]
    return Student("MNIST, test rows", distilled(network, x, quick), asked)


def distilled(network: torch.nn.Module, x: Tensor, quick: bool) -> Any:
    """By moments alone and few draws, to be short."""
    return pyro_opu.distill(
        network, x, loss="moments", num_draws=4, num_steps=steps(quick), seed=0, progress=False
    )


def checked(student: Student) -> dict[str, dict[str, float]]:
    """Runtime -> the largest differences and the size of the file; and times."""
    found, eager = {}, named(student.fast, student.x)
    with TemporaryDirectory() as place:
        folder = Path(place)
        np.save(folder / "x.npy", student.x.numpy())
        for suffix, runtime in RUNTIMES.items():
            path = folder / f"student{suffix}"
            student.fast.export(path)
            size = {"rows": len(student.x), "file, kB": path.stat().st_size / 1e3}
            found[runtime] = {**size, **differences(alone(path), eager)}
        found["Time of all rows, one thread"] = times(student, folder / "student.onnx")
    return found


def named(fast: Any, x: Tensor) -> dict[str, np.ndarray]:
    """All that a file gives, by the student itself."""
    answers = {"mean": fast.dirichlet(x).mean, **fast.uncertainty(x).to_dict()}
    return {name: value.numpy() for name, value in answers.items()}


def alone(path: Path) -> dict[str, np.ndarray]:
    """The answers of a file in a process that can import neither Pyro nor this package."""
    subprocess.run(
        [sys.executable, "-c", SCRIPTS[path.suffix], path.name], cwd=path.parent, check=True
    )
    with np.load(path.parent / "answers.npz") as answers:
        return dict(answers)


def differences(found: dict[str, np.ndarray], eager: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest over all rows: absolute of the mean, relative of the concentration."""
    gap = {name: np.abs(value - eager[name]) for name, value in found.items()}
    others = [name for name in gap if name not in ("mean", "concentration")]
    relative = gap["concentration"] / eager["concentration"]
    return {
        "mean, largest difference": float(gap["mean"].max()),
        "concentration, largest relative difference": float(relative.max()),
        "other outputs": len(others),
        "their largest difference, relative above 1": max(
            float((gap[name] / np.maximum(np.abs(eager[name]), 1.0)).max()) for name in others
        ),
    }


def times(student: Student, path: Path) -> dict[str, float]:
    """Milliseconds of ONNX Runtime for all outputs and for the two that matter, and of torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fast, x, array = student.fast, student.x, {"x": student.x.numpy()}
    with torch.no_grad():
        took = timed(
            {
                "ONNX Runtime, all outputs, ms": lambda: session.run(None, array),
                "eager, all outputs, ms": lambda: named(fast, x),
                "ONNX Runtime, mean and concentration, ms": lambda: session.run(
                    ["mean", "concentration"], array
                ),
                "eager, mean and concentration, ms": lambda: fast.dirichlet(x).concentration,
            },
            1.0,
        )
    return {name: 1e3 * seconds for name, seconds in took.items()}


if __name__ == "__main__":
    main()
