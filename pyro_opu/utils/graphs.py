"""What a GPU does, recorded once and launched again as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def record(
    run: Callable[[], T],
    scratch: Tensor,
    *,
    warm: int = 3,
    aside: torch.cuda.Stream | None = None,
    mode: Literal["global", "thread_local"] = "global",
) -> tuple[Any, T]:
    """Record a run on the current device; returns the graph, and what the run returned.

    A graph holds addresses: what it reads and writes must be kept as long as it is replayed.

    Args:
        run: Launches the same kernels at the same addresses whenever it is called.
        scratch: Some tensor on the device; nothing is written to it.
        warm: Calls before it is recorded, as libraries must be initialised outside of a graph.
        aside: The stream on which all this is done; by default another one.
        mode: Whether calls of CUDA by other threads, such as those that allocate memory, end the
            recording and fail, or go on ("thread_local").

    Raises:
        RuntimeError: it waits for the host. torch's state is then as it was before.
    """
    aside = torch.cuda.Stream() if aside is None else aside
    before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    aside.wait_stream(before)
    with torch.cuda.stream(aside):  # torch does not restore the stream of a failed capture
        for _ in range(warm):
            run()
        try:
            with torch.cuda.graph(graph, pool, aside, capture_error_mode=mode):
                found = run()
        except RuntimeError:
            _end_failed(graph, pool, scratch)
            raise
    before.wait_stream(aside)
    return graph, found


def _end_failed(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], scratch: Tensor) -> None:
    """Restore torch's state on the current stream after the end of a capture has raised.

    Otherwise the allocator counts the capture as under way, and the random generator stays in
    capture mode ("Offset increment outside graph capture") until some capture succeeds.
    """
    graph.reset()
    device = torch.cuda.current_device()
    with suppress(RuntimeError, AttributeError):  # already ended, or private names of another torch
        torch.cuda.memory._cuda_endAllocateToPool(device, pool)
        torch.cuda.memory._cuda_releasePool(device, pool)
    torch.cuda.synchronize()
    trivial = torch.cuda.CUDAGraph()
    trivial.capture_begin()
    scratch.zero_()  # recorded, never run
    trivial.capture_end()
