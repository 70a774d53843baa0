"""Inputs made of token ids: texts that are filled up to one length stay such texts."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.inputs import inputs_of
from pyro_opu.transfer import HeldOut, Shuffle
from pyro_opu.transfer.default import transfer_for
from pyro_opu.transfer.policy import Mixture
from pyro_opu.transfer.tokens import Spans, padding

FIRST, LAST, PAD, LENGTH = 1, 2, 0, 12


def texts(rows: int = 80, *, left: bool = False) -> Tensor:
    """Ids ``(N, L)``: a first id, 1 to 9 words, a last id, and padding."""
    generator = torch.Generator().manual_seed(0)
    length = torch.randint(3, LENGTH, (rows, 1), generator=generator)
    ids = torch.randint(5, 30, (rows, LENGTH), generator=generator)
    ids[:, 0] = FIRST
    ids = torch.where(torch.arange(LENGTH) < length, ids, PAD).scatter(1, length - 1, LAST)
    return ids.flip(1) if left else ids


def test_spans_of_other_rows_leave_texts_whole() -> None:
    torch.manual_seed(0)
    ids = texts()
    inputs = inputs_of({"ids": ids, "mask": (ids != PAD).long()}, None)
    policy = transfer_for(inputs.tensor, None, inputs.form)
    assert isinstance(policy, Mixture) and isinstance(policy.components[1][1], Spans)
    made, mask = policy.fit(inputs.tensor).sample(400).long().split(LENGTH, 1)
    assert torch.equal(mask, (made != PAD).long())
    assert bool((made[:, 0] == FIRST).all()) and bool(((made == LAST).sum(1) == 1).all())
    lengths = mask.sum(1, keepdim=True)
    assert bool((made.gather(1, lengths - 1) == LAST).all())  # the last id ends the text
    for column in range(LENGTH):  # nothing unseen at its place
        assert bool(torch.isin(made[:, column], ids[:, column]).all())
    known = (made[:, None] == ids).all(-1).any(1).double().mean()
    assert 0.5 < float(known) < 0.95  # half of the rows as they are, and texts of one word


def test_padding_is_found_on_both_sides_and_not_in_tables() -> None:
    assert padding(texts()) == padding(texts(left=True)) == PAD
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(0, 3, (80, 6), generator=generator)
    table[:, -1] = (table[:, -1] > 0).long()
    assert padding(table) is None
    assert padding(table[:, -1:]) is None
    inputs = inputs_of(table, None)
    policy = transfer_for(inputs.tensor, None, inputs.form)
    assert isinstance(policy, Mixture)
    assert [type(each) for _, each in policy.components] == [HeldOut, Shuffle]


def test_a_code_that_no_other_column_has_is_no_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(1, 5, (80, 5), generator=generator)
    table[:, -1] = (torch.rand(80, generator=generator) < 0.3).long() * 7
    assert padding(table) is None
