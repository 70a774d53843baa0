"""Begin a distillation at an earlier student, whose posterior has changed a little since."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pyro_opu.guides.fused import is_fused
from pyro_opu.guides.joint import JointGuide, marginal_of
from pyro_opu.outcomes import Outcome, SiteLayout, ValidationSet
from pyro_opu.outcomes.base import NETWORK
from pyro_opu.packing import Packing
from pyro_opu.predictive.one_pass import OnePassPredictive
from pyro_opu.teachers.plug_in import PlugIn

__all__ = ["begin_at", "chosen_by_default", "follow", "law_is_open", "moved"]

#: Entry of a report: whether the family of the answers is the one that suits the posterior.
BY_DEFAULT = "family_by_default"


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


def chosen_by_default(start: OnePassPredictive | None, default: bool) -> dict[str, bool]:
    """The entry of the report that lets a later student choose its family anew.

    Args:
        start: The earlier student, of which it is passed on; one of an older file has none.
        default: Whether ``guide`` was left out, where there is no earlier student.
    """
    return {BY_DEFAULT: default if start is None else start.report.get(BY_DEFAULT, False)}


def law_is_open(start: OnePassPredictive | None, guide: Any) -> bool:
    """Whether the draws may choose what the guide's moments are read as; see :data:`.LAWS`.

    Args:
        start: The earlier student, for which they did or did not.
        guide: What ``distill`` was given.
    """
    if start is not None:
        return bool(start.report.get(BY_DEFAULT, False))
    return guide is None or (isinstance(guide, str) and guide in (NETWORK, JointGuide.kind))


def follow(
    start: OnePassPredictive | None,
    guide: nn.Module,
    outcome: Outcome,
    x: Tensor,
    held_out: ValidationSet,
    found: dict[str, Any],
    plug_ins: list[PlugIn],
    packing: Packing | None,
) -> nn.Module:
    """Where training begins: the earlier student's guide, told what is true of the posterior now.

    If the family of its answers was chosen by the draws, and another suits them now, a guide of
    that family takes its place, at the posterior's network: an earlier mixture is dear, and a
    Dirichlet begun there is nearer in as many steps.

    Args:
        start: The earlier student; ``None`` gives back the guide.
        guide: Its guide, which is told in place.
        outcome, x, held_out, found, plug_ins, packing: As of ``Outcome.guide``.
    """
    if start is None:
        return guide
    if start.report.get(BY_DEFAULT, False):
        now = outcome.guide(None, x, held_out, found, plug_ins, packing)
        if type(now) is not type(guide):
            return now
    outcome.tell_again(guide, x, held_out, plug_ins)
    return guide


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
