"""How many inputs to handle at once, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

from pyro_opu.checks import positive_int

__all__ = ["chunks"]

# Elements of one block of draws (S, n, C): 16 MB in float32, of which a handful live at once.
_ELEMENTS_AT_ONCE = 2**22
# Inputs a network is shown at once; its activations may be much larger than its answer.
_INPUTS_AT_ONCE = 2**10


def chunks(
    num_inputs: int, num_draws: int, num_classes: int, chunk_size: int | None = None
) -> Iterator[slice]:
    """Slices of the inputs that bound the memory of a block of draws.

    Args:
        num_inputs: Number of inputs ``N``.
        num_draws: Draws ``S`` per input that are held at once.
        num_classes: Classes ``C``.
        chunk_size: Inputs per slice. By default as many as make about four million numbers, and at
            most 1,024.

    Yields:
        Consecutive slices that cover ``range(num_inputs)``.

    Example:
        >>> list(chunks(5, num_draws=100, num_classes=3, chunk_size=2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if chunk_size is None:
        chunk_size = min(_INPUTS_AT_ONCE, max(1, _ELEMENTS_AT_ONCE // (num_draws * num_classes)))
    else:
        positive_int("chunk_size", chunk_size)
    for start in range(0, num_inputs, chunk_size):
        yield slice(start, min(start + chunk_size, num_inputs))
