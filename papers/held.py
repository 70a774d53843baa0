"""Posterior draws that take minutes, made once on a machine for all commands that ask for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch

from papers.datasets.sources import cache_folder


def held(name: str, settings: Any, make: Callable[[], Any], quick: bool) -> tuple[Any, float]:
    """What ``make()`` gives, tensors by name, and the processor seconds that it took.

    It is put into the user's cache under the name and the settings, from where the next call has
    it; in small sizes it is made anew.
    """
    key = f"{name}-{sha256(repr(settings).encode()).hexdigest()[:8]}"
    path = cache_folder() / "posteriors" / f"{key.replace(' ', '_')}.pt"
    if path.exists() and not quick:
        return torch.load(path)
    begun = time.process_time()
    made = make()
    found = made, time.process_time() - begun
    if not quick:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, aside := path.with_suffix(".part"))
        aside.replace(path)
    return found
