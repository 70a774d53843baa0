"""State that a process has one of, changed and restored under one lock.

These are torch's random generators, Pyro's handlers, the validation of distributions, the modes of
modules, and functions that are replaced for a while. One thread at a time borrows any of them
(:func:`exclusive`), and may do so again inside. A student needs none of it, and waits for nobody:
while a thread has borrowed the generators, others draw through :func:`drawing` by their own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from pyro_opu.checks import check_seed

#: States of torch's default generators: "cpu", and "cuda" of every GPU once CUDA has started.
States = dict[str, Any]


class FairLock:
    """A re-entrant lock that threads get in the order in which they ask for it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock; returns False if another thread holds it and ``wait`` is False."""
        me = threading.get_ident()
        with self._mutex:
            if self._owner in (None, me):
                self._owner, self._depth = me, self._depth + 1
                return True
            if not wait:
                return False
            mine = (me, threading.Lock())
            mine[1].acquire()
            self._waiting.append(mine)
        try:
            mine[1].acquire()  # until a release hands the lock over
        except BaseException:  # an interrupt
            with self._mutex:
                waits = mine in self._waiting
                if waits:
                    self._waiting.remove(mine)
            if not waits:
                self.release()
            raise
        return True

    def release(self) -> None:
        """Give the lock to the thread that has waited longest."""
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                (self._owner, turn), self._depth = self._waiting.popleft(), 1
                turn.release()


class _Defaults:
    """Whether a thread has borrowed torch's default generators.

    ``outer`` stands for the CPU's meanwhile; ``swap`` is held while states are exchanged.
    """

    def __init__(self) -> None:
        self.lock, self.swap = FairLock(), threading.Lock()
        self.borrowed, self.outer = False, torch.Generator()


_defaults = _Defaults()


def _renew() -> None:
    """A forked process has one thread, and none of the parent's locks is released in it."""
    global _defaults
    _defaults = _Defaults()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def _states() -> States:
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if started else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _set(states: States) -> None:
    torch.set_rng_state(states["cpu"])
    if states["cuda"]:  # counting devices takes longer than a step
        for index in range(min(len(states["cuda"]), torch.cuda.device_count())):
            torch.cuda.set_rng_state(states["cuda"][index], index)


def exclusive() -> FairLock:
    """Only one thread at a time inside any of these; the same one may enter again."""
    return _defaults.lock


@contextmanager
def replaced(holder: object, name: str, function: object) -> Iterator[None]:
    """Put a function in the place of a module's or class's, and put that back on exit."""
    with exclusive():
        before = vars(holder)[name]
        setattr(holder, name, function)
        try:
            yield
        finally:
            setattr(holder, name, before)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore torch's random state on exit; does not initialise CUDA."""
    with exclusive():
        mine = _defaults
        with mine.swap:
            before, outermost = _states(), not mine.borrowed
            if outermost:
                mine.outer.set_state(before["cpu"])
                mine.borrowed = True
        try:
            yield
        finally:
            with mine.swap:
                if outermost:  # other threads may have drawn
                    before["cpu"], mine.borrowed = mine.outer.get_state(), False
                _set(before)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators, and restore them on exit; ``None`` leaves them alone."""
    seed = check_seed(seed)
    if seed is None:
        yield
        return
    with preserve_rng():
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        yield


class RandomStream:
    """Random numbers of one job, put into torch's default generators whenever it is at work.

    Jobs in several threads take turns, and each draws what it would draw alone.
    """

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        if device is not None and device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
        self.seed = seed
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """Restart with another seed."""
        with seeded(seed):
            self.states = _states()

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Draw these numbers inside; restore torch's generators on exit."""
        with preserve_rng():
            _set(self.states)
            try:
                yield
            finally:
                self.states = _states()


def fold_in(seed: int, number: int) -> int:
    """Derive an independent seed.

    Number 0 is for a loader, 1 + r for the batches of rank r, 2^32 for draws of a joint student.
    """
    (word,) = np.random.SeedSequence((seed % 2**64, number)).generate_state(1, np.uint64)
    return int(word) >> 1


@contextmanager
def drawing(device: torch.device | str = "cpu") -> Iterator[torch.Generator | None]:
    """A generator to draw with: ``None``, torch's own, or another while a thread borrows that."""
    mine = _defaults
    if mine.lock.acquire(wait=False):
        try:
            yield None
        finally:
            mine.lock.release()
    else:
        with mine.swap:
            outer = mine.outer if mine.borrowed else None
            fresh = int(torch.randint(2**62, (), generator=outer))
        yield torch.Generator(device).manual_seed(fresh)


@contextmanager
def evaluating(source: object) -> Iterator[None]:
    """Put a module into evaluation mode, and restore the mode of each of its parts on exit."""
    if not isinstance(source, nn.Module):
        yield
        return
    with exclusive():
        modes = {module: module.training for module in source.modules()}
        source.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off an autocast of the caller's, also as a decorator: answers keep their precision."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
