"""Chunks of inputs."""

from __future__ import annotations

import pytest

from pyro_opu.utils.chunks import chunks


def test_chunks_cover_all_inputs_and_bound_the_block() -> None:
    parts = list(chunks(3000, 500, 10))
    assert [n for part in parts for n in range(part.start, part.stop)] == list(range(3000))
    assert all((part.stop - part.start) * 500 * 10 <= 2**22 for part in parts)
    assert [part.stop - part.start for part in chunks(3, 10**6, 10**3)] == [1, 1, 1]
    assert list(chunks(3000, 1, 2))[0].stop == 1024


def test_failure() -> None:
    with pytest.raises(ValueError, match="`chunk_size` must be a positive integer; got 0"):
        list(chunks(4, 1, 2, 0))
