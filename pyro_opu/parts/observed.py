"""What a model observes: which sites, and what their numbers are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.parts.base import Part
from pyro_opu.parts.classes import ClassPart, TrialsPart, check_one_trial, unlike_trials
from pyro_opu.parts.kinds import cure, described, described_all, kind_of
from pyro_opu.parts.outcome import Outcome
from pyro_opu.parts.real import RealPart
from pyro_opu.programs.program import Program
from pyro_opu.programs.sites import ALLOWED, site_kind, unwrap
from pyro_opu.programs.trace import quiet, trace_of
from pyro_opu.rng import seeded
from pyro_opu.utils.chunks import spread_rows

__all__ = ["observed_by"]

#: Rows that tell how many trials there are, or which column of the inputs says so.
TOLD = 1024
#: What a site of one label, and of one real y, may be, in words.
_REAL = "a real number, Normal or of another distribution with a mean and a variance"


def observed_by(program: Program, x: Tensor, site: str | None) -> tuple[Outcome, dict[str, int]]:
    """What a model observes; by site, the axis of its numbers that holds the rows, from the end.

    All sites that it returns and that no other one depends on; of these one label, or one real
    number per row, is an outcome of its own.

    Args:
        program: The model.
        x: Inputs ``(N, ...)``.
        site: The one site that is asked for.

    Raises:
        ValueError: no such site, or none that a student can answer.
    """
    if parts := _parts_of(program, x, site):
        return Outcome(tuple(parts)), {part.site: axis for part, axis in parts.items()}
    answered = [] if site else program.sites.answered(program.returned)
    if len(answered) == 1:  # of whatever kind it is
        program.check_each_row(answered[0])
    real = _is_real(program, site)
    site = _site(program, site, real)
    program.check_each_row(site)
    if not real:
        check_one_trial(program.runs[0].nodes[site]["fn"], site)
    part, axis = _part(program, site, x)
    outcome = Outcome.of_real() if real else Outcome.of_teacher(part.width)
    return outcome, {site: axis}


def _is_real(program: Program, site: str | None) -> bool:
    """Whether a model observes a real y, and no classes."""
    free = program.sites.fns
    if site in free:
        return kind_of(free[site]) is RealPart
    kinds = {kind_of(free[name]) for name in program.sites.answered(program.returned)}
    return RealPart in kinds and ClassPart not in kinds


def _site(program: Program, asked: str | None, real: bool) -> str:
    """The site of one label or of one real y; errors name the candidates."""
    free, nodes = program.sites.fns, program.runs[0].nodes
    fits = [k for k, fn in free.items() if (kind_of(fn) is RealPart if real else site_kind(fn))]
    if asked in fits:
        return asked
    if asked is None:
        free = {name: free[name] for name in program.sites.answered(program.returned)}
        fits = [name for name in fits if name in free]
        named = [name for name in fits if name in program.returned]
        # A latent of a prior may be the only normal site.
        sure = not real or len(free) == 1 or not program.posterior.is_prior
        if len(named) == 1 or (len(fits) == 1 and sure):
            return named[0] if len(named) == 1 else fits[0]
        raise _not_one(fits, free, real)
    kind = (
        "a latent site of the posterior"
        if asked in program.sites.latents
        else f"a {described(nodes[asked]['fn'])}"
        if asked in nodes
        else "which the model does not have"
    )
    if asked not in free:
        fits = program.sites.answered(program.returned)
        raise ArgumentError(
            f"`site` must name an observed site of the model; got '{asked}', {kind}. "
            f"Candidates: {fits}."
        )
    raise ArgumentError(
        f"`site` must name an observed site that is {_REAL if real else ALLOWED}; got '{asked}', "
        f"{kind}. Candidates: {fits}. {cure({asked: free[asked]})}"
    )


def _not_one(fits: list[str], found: dict[str, Any], real: bool) -> ValueError:
    """The error of a model whose observed site is not plain."""
    if real:
        return ArgumentError(
            "`site` must name the observed site of a real y, since it is not the only one that the "
            f"posterior does not fix: {described_all(found)}. Pass site='...'."
        )
    if fits:
        return ArgumentError(
            f"`site` must name one of the model's observed categorical sites, {fits}; got "
            f"none. Pass site='{fits[0]}', or another of them."
        )
    return ArgumentError(
        f"`source`'s model must have an observed site that is {ALLOWED}, a real number, or a count "
        "with a mean and a variance; the sites that the posterior does not fix are "
        f"{described_all(found)}. {cure(found)}"
    )


@torch.no_grad()
def _parts_of(program: Program, x: Tensor, site: str | None) -> dict[Part, int]:
    """All that a model observes, and axes; nothing of one label or one real number per row.

    Sites that another one depends on are taken for latents local to a row, not observed.

    Args:
        program: The model.
        x: Inputs ``(N, ...)``.
        site: The one site that is asked for.
    """
    free = program.sites.fns
    every = program.sites.answered(program.returned)
    answered = every if site is None else [name for name in free if name == site]
    names = [name for name in answered if kind_of(free[name]) is not None]
    named = [name for name in names if name in program.returned]
    names = named if named and site is None else names
    if len(names) > 1:
        upstream = {other for name in names for other in program.sites.behind(name)}
        names = (
            [] if program.posterior.is_prior else [name for name in names if name not in upstream]
        )
    found = [_part(program, name, x) for name in names]
    if len(found) == 1 and isinstance(part := found[0][0], (ClassPart, RealPart)):
        vector = isinstance(part, RealPart) and unwrap(free[part.site]).event_shape
        found = found if part.columns > 1 or vector else []
    return dict(found)


def _part(program: Program, name: str, x: Tensor) -> tuple[Part, int]:
    """A site, and the axis that holds the rows, from the end."""
    fns = [run.nodes[name]["fn"] for run in program.runs]
    kind = kind_of(fns[0])
    assert kind is not None
    two, three = (kind.said(fn).shape for fn in fns)
    program.check_each_row(name)
    axes = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if len(axes) != 1:  # one for all rows
        axes = [len(two) - 2]
    shape = tuple(size for axis, size in enumerate(two[:-1]) if axis != axes[0])
    columns = () if set(shape) <= {1} else shape
    trials = _trials(program, name, x) if site_kind(fns[0]) == "binomial" else {"trials": 1}
    if trials != {"trials": 1}:  # the first rows may have one each
        part: Part = TrialsPart(name, columns, **trials)
    elif kind is ClassPart:
        part = ClassPart(name, columns, two[-1])
    else:
        part = kind(name, columns)
    return part, axes[0] - len(two) + 1


def _trials(program: Program, name: str, x: Tensor) -> dict[str, int]:
    """How many trials a binomial site has, or the column of the inputs that says it."""
    rows = spread_rows(x, min(TOLD, program.model.max_rows or TOLD)).clone()
    nodes = program.runs[0].nodes
    known = {k: nodes[k]["value"] for k in program.sites.latents if k in nodes}
    with quiet(), seeded(0):
        base = unwrap(trace_of(program.model, known, rows).nodes[name]["fn"])
    count = torch.as_tensor(base.total_count).expand(base.batch_shape)
    if bool((count == count.flatten()[0]).all()) and int(count.flatten()[0]) > 0:
        return {"trials": int(count.flatten()[0])}
    if rows.ndim == 2 and count.numel() == len(rows):
        for column in range(rows.shape[1]):
            if torch.equal(count.flatten().to(rows.dtype), rows[:, column]):
                return {"trials_column": column}
    raise unlike_trials(name)
