"""How near a student is to its teacher and what a pass of it costs, as several studies show it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pyro_opu
from papers.timing import spans


def nearness(report: pyro_opu.FidelityReport) -> dict[str, Any]:
    """The columns of a report that the tables show."""
    return {
        "KL": report.kl,
        "as near as draws": report.draws,
        "energy distance": report.energy_distance,
        "best Dirichlet": report.energy_distance_best,
        "mutual information": report.mutual_information,
        "teacher's": report.mutual_information_teacher,
        "rank correlation": report.mutual_information_spearman,
        "central 50 %": report.coverage_50,
        "central 90 %": report.coverage_90,
        "single inputs, factor": report.epistemic_factor,
        "faithful": {True: "yes", False: "no", None: "undecided"}[report.faithful],
    }


@torch.no_grad()
def passes(fast: Any, network: nn.Module, x: Tensor, budget: float) -> dict[str, float]:
    """One pass of a student beside one of the plain network, in turn, within so many seconds."""
    fused = fast.fuse()
    calls = {
        "plug-in, ms": lambda: network(x).softmax(-1),
        "one pass, ms": lambda: fast.dirichlet(x),
        "fused, ms": lambda: fused.dirichlet(x),
    }
    ms = {name: 1e3 * each.median for name, each in spans(calls, budget=budget).items()}
    ratios = {"one pass / plug-in": "one pass, ms", "fused / plug-in": "fused, ms"}
    return ms | {name: ms[way] / ms["plug-in, ms"] for name, way in ratios.items()}
