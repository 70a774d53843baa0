"""Closed forms of posteriors over the last layer of a network: affine in what the rest computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyro_opu.guides.affine import Affine, check_affine, find_affine
from pyro_opu.guides.beginning import NoBeginning, cuts, evenly, recorded, uncertain
from pyro_opu.guides.heads import Head, under_draws
from pyro_opu.guides.networks import SET_UP, in_blocks
from pyro_opu.guides.writes import Unrecorded
from pyro_opu.inputs import PLAIN
from pyro_opu.parts import Part
from pyro_opu.programs.plug_in import PlugIn

__all__ = ["find_affine_head"]


@torch.no_grad()
def find_affine_head(plug_ins: Sequence[PlugIn], x: Tensor, parts: Sequence[Part]) -> Affine:
    """:func:`find_affine` in what a network computes that is the same under all draws.

    Args:
        plug_ins: Networks of the posterior, which answer with what a draw says of a row.
        x: Inputs ``(N, ...)``.
        parts: What is observed.

    Raises:
        NoBeginning: no network is read, or no draw is affine in what a fixed part of it computes.
    """
    reason = "the posterior is over no last layer of a network that can be read"
    for plug_in in plug_ins:
        if plug_in.draws is None:
            continue
        try:
            whole = recorded(plug_in, x)
        except Unrecorded as error:
            reason = f"its network cannot be read: {error}"
            continue
        for trunk, read in cuts(whole, plug_in, x):
            if trunk is None or uncertain(trunk, plug_in):
                continue
            network = trunk.folded(x[:2])
            columns = in_blocks(network.run, x[evenly(len(x), SET_UP)])
            if not bool(columns.isfinite().all()):
                continue
            ask = partial(_under_draws, read, plug_in.draws)
            try:
                check_affine(columns, parts)
                return replace(find_affine(ask, columns, PLAIN, parts), network=network)
            except (NoBeginning, LookupError, RuntimeError) as error:
                reason = str(error)  # what is left may read the inputs too, or not run under vmap
    raise NoBeginning(reason)


def _under_draws(read: Head, draws: dict[str, Tensor], columns: Tensor) -> Tensor:
    return under_draws(read, draws, lambda head: head.answer(columns), columns.numel())
