"""One pass of the digits network beside laplace-torch, fused passes, and sweeps of MC dropout."""

from __future__ import annotations

import argparse
from typing import Any

import pyro
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from benchmarks.digits import digits
from benchmarks.speed_models import PERCEPTRON, guides, student_name
from benchmarks.speed_peers import absent, laplace_ways
from benchmarks.speed_ways import Call, Row, clocked, rows_of
from benchmarks.timing import spans
from pyro_opu import PredictiveGuide
from pyro_opu.guides.networks import default_trunk_config, fit_scales
from pyro_opu.models.neural_network import dropout_network, fit_network, perceptron

#: The digits network, and the inputs it is asked about.
DIGITS, ASKED = (64, 128, 128, 10), 500
#: Inputs of a timed call of a sweep.
BLOCK = 1000


def digits_part(args: argparse.Namespace) -> dict[str, list[Row]]:
    """One pass of both students and laplace-torch of the digits network with dropout."""
    torch.manual_seed(0)
    train = digits(0).train
    network = fit_network(dropout_network(DIGITS), *train, epochs=5 if args.quick else 50)
    network, x = network.eval().to(args.device), digits(0).test.x[:ASKED]
    x = torch.cat([x, x])[:ASKED].to(args.device)  # 497 test rows, and three of them again
    students = {
        end: pyro_opu.OnePassPredictive(guide, (64,), 10)
        for end, guide in guides(network, x, 10, DIGITS[1:-1]).items()
    }
    quick: dict[str, Call] = {"plug-in": lambda: network(x).softmax(-1)}
    for end, fast in students.items():
        quick[f"one pass{end}"] = lambda fast=fast: fast.dirichlet(x).concentration
    slow: dict[str, Call] = {}
    if not absent("laplace"):
        rows = tuple(part.to(args.device) for part in train)
        slow = laplace_ways(network, rows, x, args.draws)
    budget, device = (args.budget, 0.0), torch.device(args.device)
    found = clocked(quick, {}, budget, 0.0, device) | clocked(slow, {}, budget, 0.0, device)
    names = {end: student_name(end, fast.guide) for end, fast in students.items()}
    same = {"model": "MLP 64-128-128-10", "S": args.draws, "N": ASKED}
    return {"All ways": rows_of(found, same, names)}


def fused_part(args: argparse.Namespace) -> dict[str, list[Row]]:
    """A pass as it is trained, fused, and captured, beside a network of its widths and activation.

    The plug-in network is timed as it is, and compiled as a captured pass is.
    """
    torch.manual_seed(0)
    rows: list[Row] = []
    for sizes in ((*PERCEPTRON, 10), DIGITS):
        network = perceptron(sizes).requires_grad_(False).to(args.device)
        x = torch.randn(1000, sizes[0], device=args.device)
        trunk = {**default_trunk_config(x, sizes[1:-1]), "activation": "relu"}
        guide = PredictiveGuide.from_config({"trunk": trunk, "num_classes": 10, "shared": True})
        fit_scales(guide.to(args.device), x)
        fast = pyro_opu.OnePassPredictive(guide.requires_grad_(False).eval(), sizes[:1], 10)
        for some in (x[:1], x):
            took = spans(fused_ways(network, fast, some), args.budget, wait(args.device))
            same = {"model": f"MLP {'-'.join(map(str, sizes))}", "N": len(some)}
            for way, each in took.items():
                row = {**same, "way": way, "ms": 1e3 * each.median, "IQR, ms": 1e3 * each.iqr}
                rows.append({**row, "times the plug-in": each.median / took["plug-in"].median})
    return {"Fused": rows}


def fused_ways(network: nn.Module, fast: pyro_opu.OnePassPredictive, x: Tensor) -> dict[str, Call]:
    """The network, the guide alone, and what a student does: it checks its inputs too."""
    quick, captured = fast.fuse(), fast.capture(x)
    compiled = torch.compile(network, dynamic=True)
    ways: dict[str, Call] = {
        "plug-in": lambda: network(x).softmax(-1),
        "plug-in, compiled": lambda: compiled(x).softmax(-1),
        "guide": lambda: fast.guide(x),
        "guide, fused": lambda: quick.guide(x),
        "one pass": lambda: fast.dirichlet(x),
        "one pass, fused": lambda: quick.dirichlet(x),
        "one pass, captured": lambda: captured(x),
    }
    return {name: torch.no_grad()(way) for name, way in ways.items()}


def wait(device: str) -> Call:
    return (lambda: None) if device == "cpu" else torch.cuda.synchronize


def sweep_seconds(
    network: nn.Module, x: Tensor, draws: int, done: Call, rows: int = BLOCK
) -> float:
    """Of ``Predictive`` over x with a dropout network: calls of so many rows, one is timed."""
    predictive, block = Predictive(dropout_model(network), num_samples=draws), x[:rows]
    network.train()
    with torch.no_grad():
        call = spans({"": lambda: predictive(block)}, 0.0, done)[""].median
    network.eval()
    return call * len(x) / len(block)


def dropout_model(network: nn.Module) -> Any:
    """The network in training mode as a Pyro model: another mask in every run."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = network(x)
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", pyro.distributions.Categorical(logits=logits), obs=y)

    return model
