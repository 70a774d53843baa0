"""A Pyro model that observes several numbers of every row as a teacher of all of them."""

from __future__ import annotations

from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.checks import rows_off_simplex, simplex_tolerance
from pyro_opu.distributions.several import Part, by_part
from pyro_opu.programs.enumerated import (
    log_probs_apart,
    mixed_log_probs,
    mixed_normals,
    normals_apart,
)
from pyro_opu.programs.program import Program
from pyro_opu.programs.signature import Call
from pyro_opu.programs.sites import site_kind, unwrap
from pyro_opu.programs.trace import quiet, trace_of
from pyro_opu.rng import seeded
from pyro_opu.teachers.agreement import ComparedDraws
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.kinds import kind_of, said, said_of
from pyro_opu.utils.chunks import spread_rows

__all__ = ["SeveralDraws", "SeveralTeacher", "parts_of"]

#: Rows that tell how many trials there are, or which column of the inputs says so.
TOLD = 1024


class SeveralDraws(JointDraws):
    """Draws ``(S, N, K)`` of several numbers of every row, side by side (:func:`.by_part`).

    They say class probabilities of labels and of trials, mean and log deviation of a real y or a
    count.

    Attributes:
        parts: The observed sites.
    """

    kind = "several"
    parts: tuple[Part, ...] = ()

    @property
    def num_outputs(self) -> int:
        return sum(part.columns * part.width for part in self.parts)

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the observed sites."""
        return tuple(part.site for part in self.parts)

    def _answer_text(self) -> str:
        return f"sites {', '.join(self.observed)}"

    def _check_output(self, draws: Tensor, rows: int) -> Tensor:
        if draws.ndim != 3 or draws.shape[1] != rows or not torch.isfinite(draws.sum()):
            found = "NaN or infinity" if draws.ndim == 3 else f"shape {tuple(draws.shape)}"
            raise ValueError(
                f"`source`'s sites {list(self.observed)} must have finite parameters at each of "
                f"{rows} inputs; got {found}. Check the posterior draws (torch.isfinite) and the "
                "model at these inputs."
            )
        parts = []
        for part, values in zip(self.parts, by_part(draws, self.parts), strict=True):
            probs = values.exp() if part.on_simplex else values
            tolerance = simplex_tolerance(probs.dtype)
            if part.on_simplex and rows_off_simplex(probs[:4, :64])[1] > tolerance:
                raise ValueError(
                    f"`source`'s site '{part.site}' must have probabilities that sum to 1. Does "
                    "the model pass numbers outside [0, 1] as probs? Pass logits, or a softmax."
                )
            parts.append(probs.reshape(*draws.shape[:2], -1))
        return torch.cat(parts, -1)


class SeveralTeacher(SeveralDraws, ComparedDraws):
    """The observed sites of a :class:`pyro.infer.Predictive` as draws of their parameters.

    Args:
        predictive, call: As of :class:`~.ModelDraws`.
        axes: The parts, and the axis of each one's array that holds the rows, from the end.
    """

    allowed = "of labels, real numbers or counts"

    def __init__(self, predictive: Predictive, axes: dict[Part, int], call: Call) -> None:
        super().__init__(predictive, call=call)
        self.parts, self.axes = tuple(axes), axes

    def _choose_site(self, program: Program) -> str:
        return self.parts[0].site

    def _read_all(self, fns: dict[str, Any], rows: int) -> Tensor:
        read = []
        for part in self.parts:
            values = said(part.kind, fns[part.site])
            _check_trials(part, fns[part.site])
            axis = self.axes[part] - 1
            if -axis > values.ndim or values.shape[axis] not in (1, rows):
                raise ValueError(
                    f"`source`'s site '{part.site}' must hold values for every input; got shape "
                    f"{tuple(values.shape[:-1])} for {rows} inputs. Put it in "
                    "pyro.plate('data', len(x))."
                )
            first = values.movedim(axis, 0).flatten(1)
            read.append(first.expand(rows, first.shape[1]))
        return torch.cat(read, 1)

    def _mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        found = []
        for part, values in zip(self.parts, by_part(said, self.parts), strict=True):
            mixed = mixed_log_probs if part.on_simplex else mixed_normals
            of_numbers = mixed(log_weights.repeat_interleave(part.columns, 1), values)
            found.append(of_numbers.reshape(said.shape[1], -1))
        return torch.cat(found, 1)

    def _mixed_apart(self, one: Tensor, two: Tensor) -> float:
        both = zip(by_part(one[None], self.parts), by_part(two[None], self.parts), strict=True)
        return max(
            (log_probs_apart if part.on_simplex else normals_apart)(*pair)
            for part, pair in zip(self.parts, both, strict=True)
        )


@torch.no_grad()
def parts_of(program: Program, x: Tensor, site: str | None) -> dict[Part, int]:
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
    alone = len(found) == 1 and found[0][0].kind in ("classes", "real")
    of_vectors = alone and found[0][0].kind == "real" and unwrap(free[names[0]]).event_shape
    if not found or (alone and found[0][0].columns == 1 and not of_vectors):
        return {}
    return dict(found)


def _part(program: Program, name: str, x: Tensor) -> tuple[Part, int]:
    """A site, and the axis that holds the rows, from the end."""
    fns = [run.nodes[name]["fn"] for run in program.runs]
    two, three = (said_of(fn).shape for fn in fns)
    program.check_each_row(name)
    kind = kind_of(fns[0])
    assert kind is not None
    axes = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if len(axes) != 1:  # one for all rows
        axes = [len(two) - 2]
    shape = tuple(size for axis, size in enumerate(two[:-1]) if axis != axes[0])
    columns = () if set(shape) <= {1} else shape
    trials = _trials(program, name, x) if site_kind(fns[0]) == "binomial" else {"trials": 1}
    if trials != {"trials": 1}:  # the first rows may have one each
        kind = "trials"
    return Part(name, kind, columns, two[-1], **trials), axes[0] - len(two) + 1


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
    raise _unlike_trials(name)


def _check_trials(part: Part, fn: Any) -> None:
    """Refuse numbers of trials that differ at rows that were not looked at before."""
    if part.trials_column is not None or site_kind(fn) != "binomial":
        return
    if bool((torch.as_tensor(unwrap(fn).total_count) != part.trials).any()):
        raise _unlike_trials(part.site)


def _unlike_trials(site: str) -> ValueError:
    return ValueError(
        f"`source`'s site '{site}' must have the same total_count in all rows, or one that is an "
        "input: a student answers without the model. Pass it as one of the inputs, "
        "x=(..., total_count), float."
    )
