"""Whether ``Predictive(parallel=True)`` says what ``Predictive`` says: seen, not assumed."""

from __future__ import annotations

import warnings

import pyro
import torch
from pyro.infer import Predictive
from torch import Tensor

from benchmarks.speed_models import Kit, Subject, lined_up
from benchmarks.speed_ways import Row

#: Draws, classes.
S, C = 6, 3


def checks(subject: Subject) -> list[Row]:
    """Samples as they are and lined up, at N other than S and at N = S, against one by one."""
    kit = Kit(subject, C, S, torch.device("cpu"))
    kit.samples = {name: torch.randn_like(value) for name, value in kit.samples.items()}
    found = []
    for name, samples in (
        ("(S, D)", kit.samples),
        ("(S, 1, D)", lined_up(kit.samples)),
    ):
        for rows in (S - 1, S):
            says = verdict(kit, samples, kit.inputs(rows))
            row = {"model": subject.name.format(C), "samples": name, "S": S, "N": rows}
            found.append({**row, "parallel=True": says})
    return found


def verdict(kit: Kit, samples: dict[str, Tensor], x: Tensor) -> str:
    """ "right", "silently wrong", or the name of the error."""
    expected = logits(kit, kit.samples, x, parallel=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = logits(kit, samples, x, parallel=True)
    except (RuntimeError, ValueError) as error:
        return type(error).__name__
    # Products of matrices add up in another order, in logits of up to some hundreds.
    same = found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-2)
    return "right" if same else "silently wrong"


def logits(kit: Kit, samples: dict[str, Tensor], x: Tensor, *, parallel: bool) -> Tensor:
    """What the observed site's distribution has as logits, for every draw: ``(S, N, ...)``."""

    def model(x: Tensor) -> None:
        trace = pyro.poutine.trace(kit.model).get_trace(x)
        pyro.deterministic("logits", trace.nodes["obs"]["fn"].logits)

    return Predictive(model, samples, parallel=parallel, return_sites=("logits",))(x)["logits"]
