"""Seconds that `distill` takes where it is given seconds: everything from the call to the return.

    python -m benchmarks.efforts [--seconds 10 30 60] [--cases convolution resnet18 digits]

The sources are the scoreboard's small convolution, its logistic regression of ten classes, and a
resnet18 of torchvision with dropout before its head, its weights as they are drawn, at 2,000 images
of 3 x 32 x 32. Two threads.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import pyro_opu
from benchmarks.board_posteriors import POSTERIORS, task
from papers.results import finish, parser, say

CASES = ("convolution", "resnet18", "digits")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, nargs="+", default=[10.0, 30.0, 60.0])
    options.add_argument("--cases", nargs="+", default=list(CASES))
    args = options.parse_args()
    if args.quick:
        args.seconds, args.cases = [3.0], ["convolution"]
    rows = []
    for name in args.cases:
        for seconds in args.seconds:
            rows.append(taken(name, seconds))
            say({"so far": rows[-1:]})
    finish(__file__, args, {"Seconds": rows})


def taken(name: str, seconds: float) -> dict[str, Any]:
    """One distillation of so many seconds, of a source that nobody has asked before."""
    source, x = subject(name)
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fast = pyro_opu.distill(source, x, effort=seconds, seed=0, progress=False)
    spent = time.perf_counter() - begun
    return {
        "posterior": name,
        "asked, s": seconds,
        "taken, s": spent,
        "share": spent / seconds,
        "steps": fast.report["spent"]["steps"],
        "near as draws": fast.report["draws"],
        "warned": len(said),
    }


def subject(name: str) -> tuple[Any, Tensor]:
    """A source, and the inputs that it is distilled at."""
    if name in POSTERIORS:
        found = task(name)
        return found.source, found.transfer
    torch.manual_seed(0)
    return residual_network(), torch.rand(2000, 3, 32, 32)


def residual_network() -> nn.Module:
    from torchvision.models import resnet18

    network = resnet18(num_classes=10)
    network.fc = nn.Sequential(nn.Dropout(0.5), nn.Linear(512, 10))
    return network.eval()


if __name__ == "__main__":
    main()
