"""Slices of the inputs that bound memory, and rows spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from pyro_opu.checks import positive_int

#: Numbers in the widest tensor of one evaluation on a processor, 8 MB in float32. Far fewer do not
#: hide a call of Pyro's handlers, a millisecond; more leave its cache, and take twice the time.
NUMBERS = 2**21
#: On a GPU, where 2^21 leave it idle: at most so many, a gigabyte in float32, and of smaller
#: memories this share, as several such tensors live at once.
GPU_NUMBERS, GPU_SHARE = 2**28, 1 / 64
# Elements of one block of draws (S, n, C): 16 MB in float32, a few of which live at once.
_ELEMENTS_AT_ONCE = 2**22
# Inputs of one forward pass; activations may be much larger than the output.
_INPUTS_AT_ONCE = 2**10


@cache
def numbers_at_once(device: torch.device) -> int:
    """Numbers in the widest tensor of an evaluation there: the device is busy, its memory not full.

    By what the device is, not by what is free on it, so that a run can be repeated.
    """
    if device.type != "cuda":
        return NUMBERS
    memory: int = torch.cuda.get_device_properties(device).total_memory
    return max(NUMBERS, min(GPU_NUMBERS, int(GPU_SHARE * memory) // 4))


def chunks(
    num_inputs: int, num_draws: int, num_classes: int, chunk_size: int | None = None
) -> Iterator[slice]:
    """Yield slices of the inputs, by default of at most 1,024 rows and four million numbers.

    Example:
        >>> list(chunks(5, num_draws=100, num_classes=3, chunk_size=2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if chunk_size is None:
        chunk_size = min(_INPUTS_AT_ONCE, max(1, _ELEMENTS_AT_ONCE // (num_draws * num_classes)))
    else:
        chunk_size = positive_int("chunk_size", chunk_size)
    for start in range(0, num_inputs, chunk_size):
        yield slice(start, min(start + chunk_size, num_inputs))


def rows_at_once(x: Tensor, outputs: int = 1) -> int:
    """Rows of one pass of a network, whose activations may be much larger than its inputs.

    It answers with so many ``outputs`` a row.
    """
    width, numbers = max(64, x.shape[1:].numel()), numbers_at_once(x.device)
    most = max(_INPUTS_AT_ONCE, numbers // (16 * width))
    return max(1, min(most, numbers // max(width, outputs)))


def spread_rows(x: Tensor, most: int) -> Tensor:
    """At most so many of the rows of ``x``, evenly spread from the first to the last."""
    return x[torch.linspace(0, len(x) - 1, min(most, len(x)), device=x.device).long()]


def some_rows(x: Tensor, rows: int) -> Tensor:
    """The first rows of ``x``, repeated where it has fewer."""
    return x[torch.arange(rows, device=x.device) % len(x)]


def joined_in_place(parts: Iterable[Tensor], rows: int) -> Tensor:
    """Parts of so many rows in all, of which two are never held."""
    whole, done = torch.empty(0), 0
    for part in parts:
        if not done:
            whole = part.new_empty(rows, *part.shape[1:])
        whole[done : done + len(part)] = part
        done += len(part)
    return whole


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Blocks as one tensor, without a copy of one alone."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
