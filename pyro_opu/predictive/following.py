"""Begin a distillation at an earlier student, whose posterior has changed a little since."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pyro_opu.guides.fused import is_fused
from pyro_opu.guides.joint import marginal_of
from pyro_opu.outcomes import Outcome, SiteLayout, ValidationSet
from pyro_opu.packing import Packing
from pyro_opu.predictive.one_pass import OnePassPredictive

__all__ = ["begin_at", "moved"]


def begin_at(
    start: OnePassPredictive | None,
    guide: Any,
    outcome: Outcome,
    x: Tensor,
    packing: Packing | None,
    sites: Sequence[SiteLayout],
) -> Any:
    """A copy of the guide of ``start``, which must answer what this teacher is asked.

    Args:
        start: The earlier student; ``None`` gives back the guide.
        guide: What ``distill`` was given beside it.
        outcome, x, packing, sites: Of this distillation.
    """
    if start is None:
        return guide
    if guide is not None:
        raise ValueError(
            f"`start` brings its own guide; got `guide` too, {guide!r:.60}. Leave one of them out."
        )
    if is_fused(start.guide):
        raise ValueError(
            "`start` must be a student as it was before fuse(), which merges weights; got one that "
            "fuse() made. Pass what fuse() was called on."
        )
    if packing is not None and start.packing is not None:
        packing = packing.named([part.name for part in start.packing.parts])
    for what, mine, theirs in (
        ("the outcome", start.outcome, outcome),
        ("the form of several inputs", start.packing, packing),
        ("the shape of an input", start.input_shape, tuple(x.shape[1:])),
        ("the sites that come back", start.sites, tuple(sites)),
    ):
        if mine != theirs:
            raise ValueError(
                f"`start` must be a student of the same inputs and outcome; {what} differs: {mine} "
                f"of it, {theirs} here. Call distill as for `start`, or leave it out."
            )
    return copy.deepcopy(marginal_of(start.guide)).requires_grad_(True)


def moved(
    start: OnePassPredictive | None, guide: nn.Module, held_out: ValidationSet
) -> dict[str, Any]:
    """How far the posterior has moved away from the student that a run begins at.

    Args:
        start: That student.
        guide: Its guide, as it was.
        held_out: Judges it by the posterior as it is now.

    Returns:
        "start" for the report: "kl" and "kl_ratio"; "kl_ratio_before", as judged by its own.
    """
    if start is None:
        return {}
    found = held_out.judge(guide)
    first = {name: found[name] for name in ("kl", "kl_ratio")}
    own = start.report.get("kl_ratio")
    return {"start": first if own is None else {**first, "kl_ratio_before": own}}
