"""What is changed for a while and put back: random generators, and the modes of modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def kept_random() -> Iterator[None]:
    """Torch's random generators are afterwards as they were; a CUDA not yet started stays so."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else []):
        yield


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Torch's generators seeded inside, and as they were afterwards; ``None`` leaves them alone.

    A CUDA that has not been started yet stays so.
    """
    if seed is None:
        yield
        return
    with kept_random():
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def evaluating(source: Any) -> Iterator[None]:
    """A module in evaluation mode inside, the mode of each of its parts put back after.

    Anything that is no module is left alone.
    """
    modes = {m: m.training for m in source.modules()} if isinstance(source, nn.Module) else {}
    if isinstance(source, nn.Module):
        source.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
