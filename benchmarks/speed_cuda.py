"""On a GPU: replays of recorded passes, rows per second, and shares of the device's peak."""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.speed_models import SUBJECTS, Kit
from benchmarks.speed_ways import Call, Row
from benchmarks.timing import spans
from pyro_opu.export.capture import GraphPass

MANY = 100_000


class Peak(NamedTuple):
    """Of a device, by its maker's data sheet: bytes and float32 operations per second.

    The operations are those outside of tensor cores: products of matrices are in float32 here.
    """

    bytes: float
    flops: float


#: Part of the device's name -> its peak; the first that fits.
PEAKS = {
    "H200": Peak(4.8e12, 67e12),
    "H100 PCIe": Peak(2.0e12, 51e12),
    "H100": Peak(3.35e12, 67e12),
    "A100-SXM4-80GB": Peak(2.039e12, 19.5e12),
    "A100-SXM4-40GB": Peak(1.555e12, 19.5e12),
    "A100-PCIE-40GB": Peak(1.555e12, 19.5e12),
    "Tesla T4": Peak(0.32e12, 8.1e12),
}


class Work(NamedTuple):
    """Of a network at N inputs: operations in its products, and bytes that must move at least.

    The bytes are weights and inputs read once, and what every linear layer writes.
    """

    flops: float
    bytes: float


def part(args: argparse.Namespace) -> dict[str, list[Row]]:
    """The perceptron at one row, at a thousand, and at as many as fill the device."""
    kit = Kit(SUBJECTS["mlp"], 10, 2, torch.device(args.device))
    budget = 0.1 if args.quick else args.budget
    many = 1000 if args.quick else MANY
    rows = [row for count in sorted({1, 1000, many}) for row in replays(kit, count, budget)]
    rows += throughput(kit, many, budget)
    return {"CUDA": [{"device": torch.cuda.get_device_name(args.device), **row} for row in rows]}


def replays(kit: Kit, count: int, budget: float) -> list[Row]:
    """Latency: the recorded passes alone, and whole calls with input and answer copied."""
    x = kit.inputs(count)
    plug_in = GraphPass(lambda y: (kit.plug_in(y),), x)
    ways: dict[str, Call] = {
        "plug-in, graph replay": plug_in.replay,
        "plug-in, graph, whole call": lambda: plug_in(x),
    }
    for end, fast in kit.students.items():
        captured = fast.capture(x)
        ways[f"one pass{end}, graph replay"] = captured._run.replay
        ways[f"one pass{end}, captured, whole call"] = lambda captured=captured: captured(x)
    took = timed_there(ways, budget)
    rows = []
    for way, seconds in took.items():
        base = took[f"plug-in, {'graph replay' if way.endswith('replay') else 'graph, whole call'}"]
        row = {"way": way, "N": count, "us": 1e6 * seconds, "times the plug-in": seconds / base}
        rows.append(row)
    return rows


def throughput(kit: Kit, many: int, budget: float) -> list[Row]:
    """Rows per second of all rows in one call, and the shares of the device's peak."""
    x = kit.inputs(many)
    captured = kit.fast.capture(x)
    ways: dict[str, Call] = {
        "plug-in": lambda: kit.plug_in(x),
        "one pass": lambda: kit.fast.dirichlet(x).log_mean,
        "one pass, captured": lambda: captured(x).log_mean,
    }
    peak, found = peak_of(torch.cuda.get_device_name(kit.device)), []
    took = timed_there(ways, budget)
    for way, seconds in took.items():
        work = work_of(kit.plug_in if way == "plug-in" else kit.fast.guide, many)
        row = {"way": way, "N": many, "us": 1e6 * seconds, "rows per s": many / seconds}
        row["share of the plug-in's rows per s"] = took["plug-in"] / seconds
        found.append({**row, **achieved(work, seconds, peak)})
    return found


def achieved(work: Work, seconds: float, peak: Peak | None) -> Row:
    """Rates, and their shares of the peak; "unknown" of a device that is not in the table."""
    row: Row = {"GB/s": work.bytes / seconds / 1e9, "TFLOP/s": work.flops / seconds / 1e12}
    share = [0.0, 0.0] if peak is None else [work.bytes / peak.bytes, work.flops / peak.flops]
    names = ("share of peak bandwidth", "share of peak FLOP/s")
    for name, value in zip(names, share, strict=True):
        row[name] = "unknown" if peak is None else value / seconds
    return row


def peak_of(name: str) -> Peak | None:
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def work_of(network: nn.Module, rows: int) -> Work:
    """Of the linear layers, float32."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    products = sum(layer.weight.numel() for layer in layers)
    moved = products + rows * (layers[0].in_features + sum(layer.out_features for layer in layers))
    return Work(2.0 * rows * products, 4.0 * moved)


@torch.no_grad()
def timed_there(ways: dict[str, Call], budget: float) -> dict[str, float]:
    """Median seconds of each until the device has done it."""
    return {way: took.median for way, took in spans(ways, budget, torch.cuda.synchronize).items()}
