"""Peak memory of every way at N = 1000, S = 500, C = 10, each in a process of its own."""

from __future__ import annotations

import argparse

import torch

from benchmarks.memory import in_a_process, peak_of
from benchmarks.speed_models import ALIKE, SUBJECTS, Kit
from benchmarks.speed_peers import absent
from benchmarks.speed_ways import (
    Call,
    Row,
    laplace_of,
    numpyro_ways,
    quick_ways,
    slow_ways,
    student_of,
)

ROWS, CLASSES = 1000, 10
WAYS = (
    "plug-in",
    "one pass",
    f"one pass{ALIKE}",
    "drop-in call",
    "Predictive",
    "Predictive, parallel",
    "batched teacher",
    "NumPyro",
    "NumPyro, parallel",
    "laplace-torch, probit",
)


def part(args: argparse.Namespace) -> dict[str, list[Row]]:
    """The table of the perceptron; on a GPU what torch has allocated, without NumPyro."""
    cpu = args.device == "cpu"
    gone = {"NumPyro": absent("numpyro") or not cpu, "laplace-torch": absent("laplace")}
    names = Kit(SUBJECTS["mlp"], CLASSES, 2, torch.device("cpu")).names
    found = []
    for way in ("Predictive",) if args.quick else WAYS:
        if any(way.startswith(name) for name, missing in gone.items() if missing):
            continue
        asked = ["--memory-of", way, "--draws", str(args.draws), "--device", args.device]
        peak = in_a_process("benchmarks.speed", *asked)
        row = {"student": student_of(way, names), "model": SUBJECTS["mlp"].name.format(CLASSES)}
        row |= {"S": args.draws, "N": ROWS, "way": way.removesuffix(ALIKE)}
        found.append({**row, "peak beside the weights, MB": peak})
    return {"Peak memory": found}


def of_one(way: str, draws: int, device: str) -> float:
    """In a process of its own: megabytes that a call adds to what weights and inputs take.

    A small call before it loads what is loaded but once; NumPyro's peak is with its compilation.
    """
    torch.set_num_threads(1)
    kit = Kit(SUBJECTS["mlp"], CLASSES, draws, torch.device(device))
    x = kit.inputs(ROWS)
    answer(kit, way, x[:2], min(2, draws))()
    ready = answer(kit, way, x, draws)
    if device == "cpu":
        return peak_of(ready)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ready()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


@torch.no_grad()
def answer(kit: Kit, way: str, x: torch.Tensor, draws: int) -> Call:
    """The call of a way, with all draws, ready to run without gradients."""
    if way.startswith("laplace"):
        return laplace_of(kit, x, draws)[way]
    known = quick_ways(kit, x, captured=False)
    if way in known:
        return torch.no_grad()(known[way])
    ways = slow_ways(kit, x, draws) | numpyro_ways(kit, x, draws, both=True)
    return torch.no_grad()(ways[way].make(draws))
