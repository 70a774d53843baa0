"""Transfer inputs from a loader, more than fit in memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.inputs import PLAIN, Form, form_of
from pyro_opu.rng import RandomStream
from pyro_opu.transfer.policy import TransferPolicy
from pyro_opu.utils.chunks import joined_in_place

__all__ = ["Passes", "Stream", "is_loader"]

#: Numbers in a window, and its least and most rows.
WINDOW_NUMBERS, LEAST_ROWS, MOST_ROWS = 2**24, 256, 2**14
#: Rows whose hashes are found at once.
KEYS_AT_ONCE = 64
#: Rows of a pass that are looked at for indices, at most.
INDEXED_ROWS = 2**22


def is_loader(x: object) -> bool:
    """Whether x is a ``DataLoader`` or another iterable that is not a collection."""
    return isinstance(x, Iterable) and not isinstance(x, Collection)


class Passes:
    """The batches of a loader, pass after pass, with a position that can be saved and restored.

    The loader has random numbers of its own, from ``seed``, so that draws between two batches do
    not change the next. Ranks that share a loader take its batches in turn; under torch's
    ``DistributedSampler`` each takes all that it gets.

    A batch is inputs, or a tuple or list that begins with them: labels and the like may follow.
    Inputs are a tensor ``(n, *input_shape)`` or a dict of tensors; several by position are a tuple
    inside the batch's own, ``((x, group), y)``, so that ``(x, y)`` is not taken for two inputs.

    Attributes:
        form: The form of several inputs, known from the first batch on.
    """

    def __init__(self, loader: Iterable[object], seed: int, ranks: Ranks = ALONE) -> None:
        if isinstance(loader, Iterator):
            raise ArgumentTypeError(
                "`x` must be a tensor, or a loader that can be iterated again and again; got "
                f"{type(loader).__name__}, which passes once. Pass a DataLoader."
            )
        self.loader, self.ranks = loader, ranks
        self.form: Form = PLAIN
        self.random = RandomStream(seed)
        self.began, self.passed, self.taken, self.number = self.random.states, 0, 0, 0
        self._batches: Iterator[Any] | None = None

    def take(self) -> Tensor | None:
        """The next batch ``(n, *input_shape)`` of any rank; ``None`` where a pass ends."""
        began = self.random.states
        with self.random.borrowed():
            if self._batches is None:
                self.began = began
                sampler: Any = getattr(self.loader, "sampler", None)
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(self.passed)
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
        if batch is not None:
            x = _inputs_of(batch)
            if not self.number:
                self.form = form_of(x)
            self.taken, self.number = self.taken + 1, self.number + 1
            return self.form.pack(x).detach()
        if not self.taken:
            raise ArgumentError(
                "`x` must be a loader that gives at least one batch in every pass; got none. Is "
                "its dataset empty, or smaller than one batch with drop_last?"
            )
        self._batches, self.taken, self.passed = None, 0, self.passed + 1
        return None

    def own(self) -> Tensor:
        """The next batch of this rank."""
        from torch.utils.data.distributed import DistributedSampler

        divided = isinstance(getattr(self.loader, "sampler", None), DistributedSampler)
        while True:
            mine = divided or self.number % self.ranks.size == self.ranks.rank
            batch = self.take()
            if batch is not None and mine:
                return batch

    def position(self) -> dict[str, Any]:
        """The position, for :meth:`seek`."""
        random = self.random.states if self._batches is None else self.began
        counts = {"passed": self.passed, "taken": self.taken, "number": self.number}
        return {"random": random, **counts}

    def seek(self, position: dict[str, Any]) -> None:
        """Restore a position by reading the earlier batches of its pass again."""
        self._batches, self.taken = None, 0
        self.random.states, self.passed = position["random"], position["passed"]
        while self.taken < position["taken"]:
            if self.take() is None:
                raise ArgumentError(
                    "`x` must give the batches that it gave before `checkpoint` was written; a "
                    f"pass has ended before batch {position['taken']}. Pass the same loader."
                )
        self.number = position["number"]


class Stream:
    """Transfer inputs from a loader, drawn by a policy from a window that moves.

    The held-out inputs of the first window validate the student, and are left out of every later
    window. As many rows are read as are drawn; when they fill a window the policy is fitted to it.
    So memory holds two windows, a sorted loader is mixed within windows only, and policies see the
    scale and the extremes of one window at a time. All ranks begin with the first window of rank 0.
    Where inputs are indices, the first pass is read to its end for the values that occur, without
    keeping its rows. Arguments as of :class:`Passes`.

    Attributes:
        first: The rows of the first window; several inputs are packed.
        form: The form of several inputs, and all values of the indices among them.
        fitted: The policy, fitted to the window.
        settings: Sizes of the loader's first batch and of a window.
    """

    def __init__(self, loader: Iterable[object], seed: int, ranks: Ranks = ALONE) -> None:
        self.passes = Passes(loader, seed, ranks)
        first = self._first_window()
        self.form = form = self._seen(first)
        self.first = ranks.broadcast(form.cast(first))
        self._policy: TransferPolicy | None = None
        self.fitted: TransferPolicy | None = None
        self._held_out = torch.empty(0, dtype=torch.long)
        self._coming: list[Tensor] = []
        self._window: dict[str, Any] | None = None  # where it began; None is the first
        self._next = self.passes.position()
        self._owed = 0

    def _first_window(self) -> Tensor:
        """Read batches until the window is full or the pass ends."""
        parts: list[Tensor] = []
        while (batch := self.passes.take()) is not None:
            parts.append(batch)
            numbers = math.prod(batch.shape[1:])
            self.rows = min(MOST_ROWS, max(LEAST_ROWS, WINDOW_NUMBERS // numbers))
            if sum(map(len, parts)) >= self.rows:
                break
        self.settings = {"first batch": len(parts[0]), "window": self.rows}
        return _concatenate(parts)

    def _seen(self, first: Tensor) -> Form:
        """The form, with the indices in the first pass of all ranks."""
        form = self.passes.form
        if not form.indices:
            return form
        seen: list[tuple[int, set[float]]] = [(column, set()) for column, _ in form.indices]
        batch: Tensor | None = first
        rows = 0
        while batch is not None:
            for column, values in seen:
                values.update(batch[:, column].unique().tolist())
            rows += len(batch)
            more = self.passes.taken and rows < INDEXED_ROWS
            batch = self.passes.take() if more else None
        for rank in self.passes.ranks.all_gather(seen):
            form = form.seeing([values for _, values in rank])
        return form

    def follow(self, policy: TransferPolicy, rest: Tensor, held_out: Tensor) -> Stream:
        """Draw by a policy from now on, first from ``rest``, and never give ``held_out``.

        The two are the rows of the first window ``(N, *input_shape)``; a row in both is given.
        Returns the stream itself.
        """
        self._policy, self.fitted = policy, policy.fit(rest)
        keys = row_keys(held_out)
        self._held_out = keys[~torch.isin(keys, row_keys(rest))]
        self.rows = min(self.rows, len(rest))
        return self

    def sample(self, n: int) -> Tensor:
        """Draw n transfer inputs from the window, and read as many rows from the loader."""
        self._owed += n
        while self._owed > 0:
            self._read()
        assert self.fitted is not None
        return self.fitted.sample(n)

    def _read(self) -> None:
        """Read one batch into the next window; move there when it is full."""
        if not self._coming:
            self._next = self.passes.position()
        batch = self.form.check_seen(self.form.cast(self.passes.own()))
        self._owed -= len(batch)
        held_out = self._held_out.to(batch.device)
        self._coming.append(batch[~torch.isin(row_keys(batch), held_out)])
        if sum(map(len, self._coming)) >= self.rows:
            assert self._policy is not None
            self.fitted = None  # before the next window is looked at
            self.fitted = self._policy.fit(_concatenate(self._coming))
            self._coming, self._window = [], self._next

    def let_go(self) -> None:
        """Hold no window any more: nothing is drawn from now on."""
        self.fitted, self._coming = None, []

    def position(self) -> dict[str, Any]:
        """The position, for :meth:`seek`: where to read the rows again, not the rows."""
        return {"window": self._window, "coming": len(self._coming), "owed": self._owed}

    def seek(self, position: dict[str, Any]) -> None:
        """Restore a position, not before the present one; its window is read again."""
        now, then = self._window or {}, position["window"] or {}
        if any(now.get(name) != then.get(name) for name in ("passed", "taken")):
            self.passes.seek(then)
            self._coming, self._window = [], None
            while self._window is None:
                self._read()
        for _ in range(position["coming"] - len(self._coming)):
            self._read()
        self._owed = position["owed"]


def row_keys(x: Tensor) -> Tensor:
    """Hash every row, ``(N,)``."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    words = x.detach().flatten(1).contiguous().view(kinds[x.element_size()])
    generator = torch.Generator().manual_seed(0)
    odd = 2 * torch.randint(-(2**61), 2**61, words.shape[1:], generator=generator) + 1
    odd = odd.to(x.device)
    # Modulo 2^64, in any order the same; few at a time, as they are twice as large.
    return torch.cat([(some * odd).sum(1) for some in words.split(KEYS_AT_ONCE)])


def _inputs_of(batch: object) -> Any:
    """The inputs of a batch, unchecked."""
    x = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(x, (Tensor, Mapping, tuple, list)):
        raise ArgumentTypeError(
            "`x` must be a loader whose batches are tensors, dicts of tensors, or tuples whose "
            f"first item is one; got a batch of type {type(batch).__name__}. Pick the inputs in "
            "its collate_fn."
        )
    return x


def _concatenate(parts: list[Tensor]) -> Tensor:
    """One tensor of rows, which must have one shape; they are taken out of the list meanwhile."""
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ArgumentError(
            "`x` must be a loader whose inputs all have one shape; got "
            f"{sorted(shapes)}. Resize or pad them in its collate_fn."
        )
    if len({part.dtype for part in parts}) > 1:
        return torch.cat(parts)
    rows = sum(map(len, parts))
    return joined_in_place((parts.pop(0) for _ in range(len(parts))), rows)
