"""Peak memory of ``distill`` and of ``fidelity``: that of a chunk, not that of all the answers.

python -m benchmarks.memory

S draws at N inputs for C classes are S N C numbers; here that is 1.2 GB and more. Every row is a
process of its own on Linux; its peak is what the call added to what the process held before. The
teacher is a logistic regression with 16 features that holds its draws, for ``fidelity`` twice S.

Freed tensors go back to the system at once (``MALLOC_MMAP_THRESHOLD_``): left to itself glibc keeps
them for later, and a process of many classes that holds 0.1 GB grows to 1 GB by and by.

``distill`` sees its inputs a batch at a time: S is the number of draws in a step, and 50 steps have
every kind of block in them. ``fidelity`` goes over all inputs in chunks; with many classes a chunk
takes seconds, so the N of those rows is smaller, and the peak is that of the first few chunks.

The second table has a default student, of 20 steps, of a million rows, of 10,000 columns, and of
10,000 classes. The third has one of two convolutions, or of torchvision's resnet18, with dropout
before the head, at images of three channels: a tensor, or a loader that makes them as it is asked.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pyro.infer import Predictive
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pyro_opu
from papers.results import finish, parser, say
from pyro_opu import PredictiveGuide
from pyro_opu.models.logistic_regression import logistic_regression

S, FEATURES = 500, 16
#: What is called, N, C, and the chunk: of ``distill`` the inputs of a step, else of ``fidelity``.
ROWS = (
    ("distill", 6000, 10, 64),
    ("distill", 60_000, 10, 64),
    ("distill", 60_000, 10, 256),
    ("distill", 6000, 1000, 4),
    ("distill", 60_000, 1000, 4),
    ("distill", 60_000, 1000, 16),
    ("fidelity", 600, 10, 50),
    ("fidelity", 6000, 10, 50),
    ("fidelity", 60_000, 10, 50),
    ("fidelity", 6000, 10, 400),
    ("fidelity", 12, 1000, 2),
    ("fidelity", 60, 1000, 2),
    ("fidelity", 60, 1000, 8),
)
#: N, D, C and S of a regression that is distilled by default, but for its steps.
SHAPES = ((1_000_000, 20, 2, 200), (2000, 10_000, 2, 100), (1000, 20, 10_000, 20))
#: Network, images, their sides, steps, and whether a loader gives them.
IMAGES = (
    ("convolutions", 12_000, 32, 20, 0),
    ("convolutions", 12_000, 32, 20, 1),
    ("convolutions", 600, 224, 5, 1),
    ("convolutions", 2400, 224, 5, 1),
    ("resnet18", 2000, 32, 20, 0),
)
QUICK = (("distill", 2000, 10, 16), ("fidelity", 20, 10, 10))
#: Freed tensors of so many bytes and more are given back.
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
STATUS = Path("/proc/self/status")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--of", nargs=4, help=argparse.SUPPRESS)
    options.add_argument("--images", nargs=5, help=argparse.SUPPRESS)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.images:
        print(of_images(args.images[0], *map(int, args.images[1:])))
        return
    if args.of and args.of[0].isdigit():
        print(of_shape(*map(int, args.of)))
        return
    if args.of:
        print(one(args.of[0], *map(int, args.of[1:]), steps=50))
        return
    rows: list[dict] = []
    for what, inputs, classes, chunk in QUICK if args.quick else ROWS:
        asked = [what, str(inputs), str(classes), str(chunk)]
        if args.quick:
            peak = one(what, inputs, classes, chunk, steps=3)
        else:
            peak = in_a_process("benchmarks.memory", "--of", *asked)
        held = S * inputs * classes * 4 / 1e6
        row = {"call": what, "S": S, "N": inputs, "C": classes, "chunk": chunk}
        rows.append({**row, "S N C in float32, MB": held, "peak, MB": peak, "share": peak / held})
        say({"so far": rows[-1:]})
    shapes: list[dict] = []
    for shape in () if args.quick else SHAPES:
        found: dict = dict(zip(("N", "D", "C", "S"), shape, strict=True))
        data = shape[0] * shape[1] * 4 / 1e6
        peak = in_a_process("benchmarks.memory", "--of", *map(str, shape))
        shapes.append({**found, "data, MB": data, "peak, MB": peak})
        say({"so far": shapes[-1:]})
    images: list[dict] = []
    for asked in () if args.quick else IMAGES:
        row = dict(zip(("network", "images", "side", "steps", "loader"), asked, strict=True))
        data = 3 * asked[1] * asked[2] ** 2 * 4 / 1e6
        peak = in_a_process("benchmarks.memory", "--images", *map(str, asked))
        images.append({**row, "all images, MB": data, "peak, MB": peak})
        say({"so far": images[-1:]})
    del args.of, args.images
    tables = {"Peak memory": rows, "Peak of other shapes": shapes, "Peak of images": images}
    finish(__file__, args, {name: each for name, each in tables.items() if each}, features=FEATURES)


def one(what: str, inputs: int, classes: int, chunk: int, *, steps: int) -> float:
    """Megabytes that one call adds; a small call before it loads what is loaded but once."""
    torch.manual_seed(0)
    draws = S if what == "distill" else 2 * S
    samples = {"weight": torch.randn(draws, FEATURES, classes), "bias": torch.zeros(draws, classes)}
    predictive = Predictive(logistic_regression(classes), samples)
    x = torch.randn(inputs, FEATURES)

    def distil(rows: int, steps: int) -> object:
        return pyro_opu.distill(
            predictive, x[:rows], num_steps=steps, loss="energy",
            transfer=pyro_opu.transfer.HeldOut(), seed=0, progress=False,
            training=pyro_opu.Training(batch_size=chunk, num_draws=S),
        )  # fmt: skip

    if what == "distill":
        distil(8, 1)
        return peak_of(lambda: distil(inputs, steps))
    guide = PredictiveGuide.for_inputs(x, classes, hidden=(16,)).requires_grad_(False).eval()
    student = pyro_opu.OnePassPredictive(guide, (FEATURES,), classes)

    def judge(rows: int) -> object:
        return pyro_opu.fidelity(
            student, predictive, x[:rows], num_draws=S, chunk_size=chunk, wasserstein_inputs=0
        )

    judge(1)
    return peak_of(lambda: judge(inputs))


def of_shape(inputs: int, features: int, classes: int, draws: int) -> float:
    """Megabytes that a default student of 20 steps takes beside its data."""

    def distil(inputs: int, features: int, classes: int) -> Callable[[], object]:
        torch.manual_seed(0)
        wide = () if classes == 2 else (classes,)
        weight = torch.randn(draws, features, *wide) / features**0.5
        samples = {"weight": weight, "bias": torch.zeros(draws, *wide)}
        predictive = Predictive(logistic_regression(classes), samples)
        x = torch.randn(inputs, features)
        return lambda: pyro_opu.distill(predictive, x, num_steps=20, seed=0, progress=False)

    distil(64, 8, 3)()
    return peak_of(distil(inputs, features, classes))


class Images(Dataset):
    """Random images, each made when it is asked for."""

    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        return torch.rand(3, self.side, self.side, generator=generator)


def network_of(name: str, side: int) -> nn.Module:
    """Two convolutions or resnet18, with dropout before a head of ten classes."""
    if name == "resnet18":
        from torchvision.models import resnet18

        network = resnet18(num_classes=10)
        network.fc = nn.Sequential(nn.Dropout(), network.fc)
        return network.eval()
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 4 if side > 100 else 1), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(), nn.Linear(256, 10),
    ).eval()  # fmt: skip


def of_images(name: str, count: int, side: int, steps: int, by_loader: int) -> float:
    """Megabytes that a student of a network takes, beside images in a tensor or all in all."""
    torch.manual_seed(0)
    network = network_of(name, side)
    images = Images(count, side)
    x: Any = DataLoader(images, 32, shuffle=True)
    if not by_loader:
        x = torch.stack([images[number] for number in range(count)])

    def distil(x: Any, steps: int) -> object:
        return pyro_opu.distill(network, x, num_steps=steps, seed=0, progress=False)

    distil(torch.rand(64, 3, 32, 32), 1)
    return peak_of(lambda: distil(x, steps))


def in_a_process(module: str, *arguments: str) -> float:
    """The last number that a module prints when it is run, which gives back what it frees."""
    command = [sys.executable, "-m", module, *arguments]
    env = os.environ | GIVEN_BACK
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    return float(done.stdout.split()[-1])


def peak_of(call: Callable[[], object]) -> float:
    """Megabytes of the process at its highest during a call, over what it held before; Linux.

    ``ru_maxrss`` would not do: a process begins with the peak of the one that started it.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what others have freed would serve the call
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    call()
    return status("VmHWM") - before


def status(name: str) -> float:
    """A size of this process in megabytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
