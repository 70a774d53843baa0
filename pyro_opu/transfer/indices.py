"""Detection of columns that a teacher uses as an index, where generated values are invalid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.rng import preserve_rng

__all__ = ["at_made_up_inputs", "check_indices", "index_columns", "unmoved_columns"]

#: Rows, columns and draws at most.
ROWS, COLUMNS, DRAWS = 16, 64, 2
#: Largest index; above it rounding may hide a change.
LARGEST = 10_000
#: What is added to an index: rounded or truncated, it is the same one.
FRACTION = 0.45
#: Least relative change between two indices, above all rounding, and largest change within one
#: index relative to that: what is linear up to LARGEST changes by more.
BETWEEN, WITHIN = 1e-3, 2e-5
#: Numbers that are looked at at once.
AT_ONCE = 2**22
ADVICE = (
    "Pass transfer=HeldOut() for the rows of x alone, or transfer=Shuffle() for values of x in new "
    "combinations (both from pyro_opu.transfer)"
)

Asked = Callable[[Tensor, int], Iterator[Tensor]]


def index_columns(stream: Asked, x: Tensor) -> list[int]:
    """Find the columns of ``x`` ``(N, D)`` that the teacher uses as an index, at most 64 tried.

    A column of whole numbers from 0 is one if the answer at k + 0.45 is that at k, and the answer
    at another of its values differs. Codes that enter as numbers, counts, binary and one-hot
    columns and pixels change the answer by their fraction too. ``stream`` is the teacher's, from
    inputs and a number of draws to blocks ``(S, n, K)``.
    """
    if x.ndim != 2:
        return []
    tried = (_may_be_index(x) & (x.amax(0) <= LARGEST)).nonzero().flatten()
    if not len(tried):
        return []
    tried = tried[torch.linspace(0, len(tried) - 1, min(COLUMNS, len(tried))).round().long()]
    rows = x[torch.linspace(0, len(x) - 1, min(ROWS, len(x))).round().long()]
    blocks = [rows]
    for column in tried.tolist():
        within, other = rows.clone(), rows.clone()
        within[:, column] += FRACTION
        values = x[:, column].unique()
        place = torch.searchsorted(values, rows[:, column].contiguous())
        other[:, column] = values[(place + 1) % len(values)]
        blocks += [within, other]
    with preserve_rng(), torch.no_grad():  # one call: the same draws in all blocks
        answers = torch.cat(list(stream(torch.cat(blocks), DRAWS)), 1)
    base, *changed = answers.double().split(len(rows), 1)
    size = base.abs().amax((0, 1)).clamp_min(torch.finfo(x.dtype).tiny)  # of each class
    moves = [float(((answer - base).abs() / size).amax()) for answer in changed]
    return [
        column
        for column, within, other in zip(tried.tolist(), moves[::2], moves[1::2], strict=True)
        if other > BETWEEN and within < WITHIN * other
    ]


def unmoved_columns(x: Tensor, is_default: bool, codes: Sequence[int]) -> list[int]:
    """Columns of ``x`` ``(N, D)`` at which no other values than its own may be asked about.

    They are those of codes; where the user has named a policy, also all of whole numbers that may
    be an index, which have not been looked at then.
    """
    if is_default or x.ndim != 2:
        return sorted(codes)
    return sorted({*codes, *_may_be_index(x).nonzero().flatten().tolist()})


def _may_be_index(x: Tensor) -> Tensor:
    """Which columns ``(D,)`` hold whole numbers from 0, and more than one."""
    least = x.amin(0)
    found = (least >= 0) & (least < x.amax(0))
    for some in x.split(max(1, AT_ONCE // max(1, x.shape[1]))):
        if not bool(found.any()):
            break
        found &= (some == some.round()).all(0)
    return found


def check_indices(stream: Asked, x: Tensor) -> None:
    """Raise ValueError if the teacher uses a column as an index, see :func:`index_columns`."""
    found = index_columns(stream, x)
    if found:
        raise ArgumentError(
            "`x` must hold numbers that may be moved, where `transfer` is left to its default; "
            f"`source` uses the columns {found} as indices: at k + {FRACTION} it answers as at k. "
            "Moved, they name entries that do not exist or, below zero, others from the end. "
            f"{ADVICE}; or give the model the index as an input of its own, int64 in a tuple or "
            "dict, or one-hot columns. Where any number may stand there, pass "
            "transfer=default_transfer(x)."
        )


def at_made_up_inputs(ask: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """Wrap a call of the teacher: an IndexError of the model becomes a ValueError that advises."""

    @wraps(ask)
    def asked(x: Tensor, num_draws: int) -> Tensor:
        try:
            return ask(x, num_draws)
        except (IndexError, RuntimeError) as error:
            if not isinstance(cause := error.__cause__ or error, IndexError):
                raise
            raise ArgumentError(
                "`transfer` must make inputs that `source` can answer; at some that it made the "
                f"model raised IndexError: {cause}. Are columns of x indices? {ADVICE}."
            ) from error

    return asked
