"""Columns that a teacher uses as an index: made-up values there name nothing, or something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

import torch
from torch import Tensor

from pyro_opu.rng import preserve_rng

__all__ = ["at_made_up_inputs", "check_indices", "index_columns"]

#: Rows at which the teacher is asked, columns that are tried, and draws.
ROWS, COLUMNS, DRAWS = 16, 64, 2
#: An index runs from 0 to this at most; above it a number may well change by nothing.
LARGEST = 10_000
#: What is added to an index: rounded or cut, it is the same one.
FRACTION = 0.45
#: Between two indices the answer must change by this share of its size, above all rounding, and
#: within one index by less than this share of that: what is linear up to LARGEST changes by more.
BETWEEN, WITHIN = 1e-3, 2e-5
ADVICE = (
    "Pass transfer=HeldOut() for the rows of x alone, or transfer=Shuffle() for values of x in new "
    "combinations (both from pyro_opu.transfer)"
)

Asked = Callable[[Tensor, int], Iterator[Tensor]]


def index_columns(stream: Asked, x: Tensor) -> list[int]:
    """Columns of ``x`` that the teacher uses as an index, found by asking at values that x has.

    A column of whole numbers from 0 is one if the answer at k + 0.45 is that at k, and the answer
    at another of its values is another one. Codes that enter as numbers, counts, binary and one-hot
    columns and pixels change the answer by their fraction too. No value is asked about that is
    below the smallest or reaches the next above the largest of its column.

    Args:
        stream: The teacher's, from inputs and a number of draws to blocks ``(S, n, K)``.
        x: Transfer inputs ``(N, D)``; of inputs of another shape no column is looked at.

    Returns:
        Their numbers, in ascending order, of at most 64 columns that are tried.
    """
    if x.ndim != 2:
        return []
    whole = (x == x.round()).all(0) & (x.amin(0) >= 0) & (x.amax(0) <= LARGEST)
    tried = (whole & (x.amin(0) < x.amax(0))).nonzero().flatten()
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


def check_indices(stream: Asked, x: Tensor) -> None:
    """Refuse inputs that the default transfer policy would make indices for.

    Args:
        stream: As for :func:`index_columns`.
        x: Transfer inputs ``(N, *input_shape)``.

    Raises:
        ValueError: the teacher uses a column as an index.
    """
    found = index_columns(stream, x)
    if found:
        raise ValueError(
            "`x` must hold numbers that may be moved, where `transfer` is left to its default; "
            f"`source` uses the columns {found} as indices: at k + {FRACTION} it answers as at k. "
            "Moved, they name entries that do not exist or, below zero, others from the end. "
            f"{ADVICE}; or give the model one-hot columns. Where any number may stand there, pass "
            "transfer=default_transfer(x)."
        )


def at_made_up_inputs(ask: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """The same question to the teacher, with an IndexError of the model explained."""

    @wraps(ask)
    def asked(x: Tensor, num_draws: int) -> Tensor:
        try:
            return ask(x, num_draws)
        except (IndexError, RuntimeError) as error:
            if not isinstance(cause := error.__cause__ or error, IndexError):
                raise
            raise ValueError(
                "`transfer` must make inputs that `source` can answer; at some that it made the "
                f"model raised IndexError: {cause}. Are columns of x indices? {ADVICE}."
            ) from error

    return asked
