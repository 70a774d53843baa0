"""Which guide is trained, and where it begins: the teacher's network, or an earlier student."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.choosing import Choice
from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.guides import PredictiveGuide, in_units_of, trainable
from pyro_opu.guides.affine import check_affine, find_affine
from pyro_opu.guides.base import student_at
from pyro_opu.guides.beginning import NoBeginning, Start, check_digits
from pyro_opu.guides.fused import is_fused
from pyro_opu.guides.joint import marginal_of
from pyro_opu.guides.last_layer import find_affine_head
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.inputs import Form, Inputs
from pyro_opu.judging import Judge
from pyro_opu.judging.advice import BY_GUIDE, graded
from pyro_opu.judging.yardstick import EXCELLENT
from pyro_opu.parts import Outcome, SiteLayout
from pyro_opu.predictive.one_pass import OnePassPredictive
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.held import hold
from pyro_opu.teachers.networks import DropoutTeacher, EnsembleTeacher
from pyro_opu.training import tuned
from pyro_opu.training.options import BY_DEFAULT, Request
from pyro_opu.training.run import Run
from pyro_opu.utils.warnings import warn_user

__all__ = ["Chosen", "affine_start", "at_rest", "check_start", "choose_guide"]


@dataclass(frozen=True)
class Chosen:
    """The guide that is trained, and what is known of it before.

    Attributes:
        guide: On its device, with weights that can be trained.
        described: What the choice has read off the held-out draws.
        started: Where training begins, for the report.
        earlier: How far the posterior has moved from an earlier student, for the report.
    """

    guide: nn.Module
    described: dict[str, Any]
    started: dict[str, Any]
    earlier: dict[str, Any]


def choose_guide(
    request: Request,
    teacher: BaseTeacher,
    choice: Choice,
    held_out: Judge,
    run: Run,
    unmoved: Sequence[int] = (),
) -> Chosen:
    """The guide of a distillation: the user's, a named one, that of an earlier student or the best.

    The first rank reads the draws for all. The teacher is asked about no other values than those
    of x in the columns that are unmoved.
    """
    x, form = run.inputs.tensor, run.inputs.form
    x = run.some(x, lambda rows: teacher.draws(rows, 1), tuned.SET_UP_SHARE, tuned.FEWEST_ROWS)
    described = run.ranks.broadcast(choice.describe(held_out))
    begin = find_start(request, teacher, choice, x, held_out, form, unmoved)
    earlier: dict[str, Any] = {}
    if request.start is not None:
        own = copy.deepcopy(marginal_of(request.start.guide)).requires_grad_(True)
        own = trainable(own, form, run.device)
        earlier = moved(request.start, own, held_out)
        found = follow(request, own, choice, x, held_out, described, begin, form)
    elif isinstance(request.marginal, nn.Module):
        found = request.marginal
    else:
        found = choice.guide(request.marginal, x, held_out, described, begin, form)
    started = begun_at(request, found, begin)
    return Chosen(trainable(found, form, run.device), described, started, earlier)


def check_start(
    request: Request, outcome: Outcome, inputs: Inputs, sites: Sequence[SiteLayout]
) -> None:
    """Refuse an earlier student that does not answer what this teacher is asked."""
    start, x = request.start, inputs.tensor
    if start is None:
        return
    if request.marginal is not None:
        raise ArgumentError(
            f"`start` brings its own guide; got `guide` too, {request.marginal!r:.60}. Leave one "
            "of them out."
        )
    if is_fused(start.guide):
        raise ArgumentError(
            "`start` must be a student as it was before fuse(), which merges weights; got one that "
            "fuse() made. Pass what fuse() was called on."
        )
    form = inputs.form.named([part.name for part in start.form.parts])
    for what, mine, theirs in (
        ("the outcome", start.outcome, outcome),
        ("the form of several inputs", start.form, form),
        ("the shape of an input", start.input_shape, tuple(x.shape[1:])),
        ("the sites that come back", start.sites, tuple(sites)),
    ):
        if mine != theirs:
            raise ArgumentError(
                f"`start` must be a student of the same inputs and outcome; {what} differs: {mine} "
                f"of it, {theirs} here. Call distill as for `start`, or leave it out."
            )


def find_start(
    request: Request,
    teacher: BaseTeacher,
    choice: Choice,
    x: Tensor,
    held_out: Judge,
    form: Form,
    unmoved: Sequence[int] = (),
) -> Start:
    """Where a student of this teacher begins, with a warning of a network that cannot be read."""
    if not request.guide_is_open:
        return Start(None, BY_GUIDE)
    plug_ins = teacher.plug_ins(x)
    found = choice.beginning(x, held_out, plug_ins, form)
    single = request.single_draw  # whose queries cost much
    if not single and (found.beginning is None or found.beginning.lacks_moments):
        affine = affine_start(teacher, choice, x, form, unmoved)
        if affine.beginning is None and found.beginning is None:
            affine = head_start(plug_ins, choice, x, form) or affine
        found = Start(affine.beginning or found.beginning, found.reason or affine.reason)
    of_networks = isinstance(teacher, (DropoutTeacher, EnsembleTeacher))
    scratch = not request.follows and found.beginning is None
    if scratch and of_networks and choice.begins_at_networks:
        warn_user(
            f"The student begins from scratch, not at the network that `source` is: {found.reason}."
            " It takes more steps, and may not come as near: see fast.report['start_reason']."
        )
    return found


def affine_start(
    teacher: BaseTeacher, choice: Choice, x: Tensor, form: Form, unmoved: Sequence[int] = ()
) -> Start:
    """The closed form of a teacher whose draws are affine in the inputs; it is asked quietly."""
    parts = choice.outcome.parts
    if teacher.in_steps:
        return Start(None, "every draw is constant in pieces")
    if codes := sorted({*unmoved} - {*form.index_columns}):
        return Start(
            None, f"columns {codes} may hold codes, and other numbers cannot be asked about"
        )
    try:
        check_affine(x, parts)
    except NoBeginning as error:
        return Start(None, str(error))
    with preserve_rng():
        held = teacher
        if teacher.max_draws is None or teacher.max_draws > tuned.AFFINE_DRAWS:
            try:
                held = hold(teacher, x, tuned.AFFINE_DRAWS)
            except ArgumentError:
                return Start(None, "it draws afresh at every call")
        if not torch.equal(held.streamed(x[:2]), held.streamed(x[:2])):
            return Start(None, "a draw does not answer the same twice")
        try:
            return Start(find_affine(partial(asked_between, held), x, form, parts))
        except NoBeginning as error:
            return Start(None, str(error))


def asked_between(teacher: BaseTeacher, rows: Tensor) -> Tensor:
    """What a teacher says at rows that are not those of x, which its model may refuse."""
    try:
        return teacher.streamed(rows)
    except Exception as error:
        reason = f"at rows between those of x it raised {type(error).__name__}"
        raise NoBeginning(reason) from error


def head_start(plug_ins: list[PlugIn], choice: Choice, x: Tensor, form: Form) -> Start | None:
    """The closed form of a posterior over the last layer of a network; ``None`` where it is not."""
    try:
        found = find_affine_head(plug_ins, x, choice.outcome.parts)
        if x.dtype == torch.float64:
            check_digits(x, form.index_columns)
    except NoBeginning:
        return None
    return Start(found)


def at_rest(
    chosen: Chosen, held_out: Judge, law_is_open: bool, ranks: Ranks = ALONE
) -> tuple[bool, float | None]:
    """Whether a guide in closed form is excellent as it begins: as near as 500 draws, and more.

    Its mutual information must be right at inputs of every certainty. Labels are then sticks, of
    two classes the normal logit itself; otherwise the guide stays as it is taught. The first rank
    decides for all.

    Returns:
        Beside it, the draws whose mean errs as much; ``None`` of a guide that was not scored.
    """
    guide = chosen.guide
    if not getattr(getattr(guide, "trunk", None), "is_closed_form", False):
        return False, None
    if law_is_open and isinstance(guide, PredictiveGuide):
        guide.read_as("sticks")
    report = held_out.scores(guide) | held_out.summary(guide) | chosen.described
    with torch.no_grad():
        fits = held_out.fits_by_certainty(student_at(guide, held_out.x))
    rests: bool = ranks.broadcast(graded(report)[0] == EXCELLENT and fits)
    if isinstance(guide, PredictiveGuide) and not rests:
        guide.read_as("dirichlet")
    return rests, report["draws"]


def begun_at(request: Request, guide: nn.Module, found: Start) -> dict[str, Any]:
    """What the report says of where training began.

    Args:
        request: With the earlier student, if there is one.
        guide: The guide that is trained.
        found: From :func:`find_start`.

    Returns:
        "start" and "start_reason", and the entry that lets a later student choose its family anew:
        an earlier student passes on its own; one of an older file has none.
    """
    guide = marginal_of(guide)
    trunk = getattr(guide, "trunk", None)
    start = request.start
    by_default = request.guide_is_open if start is None else request.start_by_default
    if start is not None and type(guide) is type(marginal_of(start.guide)):
        begun, reason = "student", "`start` was given"
    elif isinstance(trunk, NetworkTrunk):
        begun, reason = trunk.begins
    else:
        begun, reason = "scratch", found.reason
    return {"start": begun, "start_reason": reason, BY_DEFAULT: by_default}


def follow(
    request: Request,
    guide: nn.Module,
    choice: Choice,
    x: Tensor,
    held_out: Judge,
    found: dict[str, Any],
    begin: Start,
    form: Form,
) -> nn.Module:
    """The earlier student's guide, given what is true of the posterior now.

    If the family of its answers was chosen by the draws, and another suits them now, a guide of
    that family takes its place, at the posterior's network: an earlier mixture costs much, and a
    Dirichlet begun there is nearer in as many steps.

    Args:
        request: With the earlier student.
        guide: Its guide, which is changed in place.
        choice, x, held_out, found, begin, form: The arguments of ``Choice.guide``.
    """
    if request.start_by_default:
        now = choice.guide(None, x, held_out, found, begin, form)
        if type(now) is not type(guide):
            return now
    trunk = getattr(guide, "trunk", None)
    if isinstance(trunk, NetworkTrunk) and begin.beginning is not None:
        moments: Any = in_units_of(guide, begin.beginning)
        trunk.update_moments(moments)
    return guide


def moved(start: OnePassPredictive, guide: nn.Module, held_out: Judge) -> dict[str, Any]:
    """How far the posterior has moved away from the student that a run begins at.

    Args:
        start: That student.
        guide: Its guide, as it was.
        held_out: Judges it by the posterior as it is now.

    Returns:
        "earlier" for the report: "kl", "kl_ratio" and "draws"; "draws_before", as judged its own.
    """
    found = held_out.scores(guide)
    first = {name: found[name] for name in ("kl", "kl_ratio", "draws")}
    own = start.report.get("draws")
    return {"earlier": first if own is None else {**first, "draws_before": own}}
