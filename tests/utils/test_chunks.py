"""Chunks of inputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pyro_opu.utils.chunks import chunks, numbers_at_once, rows_at_once


def test_chunks_cover_all_inputs_and_bound_the_block() -> None:
    parts = list(chunks(3000, 500, 10))
    assert [n for part in parts for n in range(part.start, part.stop)] == list(range(3000))
    assert all((part.stop - part.start) * 500 * 10 <= 2**22 for part in parts)
    assert [part.stop - part.start for part in chunks(3, 10**6, 10**3)] == [1, 1, 1]
    assert list(chunks(3000, 1, 2))[0].stop == 1024


@pytest.mark.parametrize(
    ("width", "outputs", "rows"),
    [(8, 2, 2048), (784, 10, 1024), (10_000, 2, 209), (8, 10_000, 209), (3 * 10**6, 2, 1)],
)
def test_rows_of_a_pass_by_what_it_reads_and_answers(width: int, outputs: int, rows: int) -> None:
    assert rows_at_once(torch.empty(1, width), outputs) == rows


@pytest.mark.parametrize(("memory", "numbers"), [(141, 2**28), (8, 2**25), (0.25, 2**21)])
def test_numbers_by_the_device(
    monkeypatch: pytest.MonkeyPatch, memory: float, numbers: int
) -> None:
    """8 MB in float32 on a processor; of a GPU a 64th of its memory, in GB, at most 1 GB."""
    assert numbers_at_once(torch.device("cpu")) == 2**21
    found = SimpleNamespace(total_memory=int(memory * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    numbers_at_once.cache_clear()
    try:
        assert numbers_at_once(torch.device("cuda", 0)) == numbers
    finally:
        numbers_at_once.cache_clear()
