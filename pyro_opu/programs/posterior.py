"""What a posterior says of inputs, as a recorded program under its draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pyro_opu.programs.agreement import gaps
from pyro_opu.programs.bound import Bound, Pace
from pyro_opu.programs.recorded import VALID, Recorded, few
from pyro_opu.programs.recorder import NotRecorded, Together
from pyro_opu.programs.vmap import Draws
from pyro_opu.programs.watched import Watched
from pyro_opu.rng import exclusive, preserve_rng, seeded
from pyro_opu.utils.chunks import joined, numbers_at_once

#: The one output of a posterior's program.
SAID = "said"
#: Draws under which a record is compared with the program; rows of a block.
COMPARED, ROWS = 2, 2**10


@dataclass(frozen=True)
class PosteriorProgram:
    """A posterior as what it is: a program of (draws, inputs), and the draws it is run under.

    Attributes:
        program: ``(draws, [x]) -> {"said": (S, N, K)}``, all draws at once.
        draws: Tensors ``(S, ...)`` each.
    """

    program: Together
    draws: Draws

    @property
    def num_draws(self) -> int:
        """S."""
        return len(next(iter(self.draws.values())))


class Said:
    """Recorded answers of a posterior at inputs ``(N, ...)``, block by block.

    Args:
        posterior: Program and draws.
        x: Inputs of the shape and dtype of all later ones.
        most: Numbers in the widest tensor of a block; by default as many as keep the device busy.

    Attributes:
        bound: The record with its draws.
        watched: What it holds besides these.

    Raises:
        NotRecorded: the program is not one sequence of operations for all numbers of rows.
    """

    def __init__(self, posterior: PosteriorProgram, x: Tensor, most: int | None = None) -> None:
        self.posterior, self.most = posterior, most
        with preserve_rng():
            recorded = Recorded(posterior.program, posterior.draws, [x])
        self.bound = Bound(recorded, posterior.draws)
        self.watched = Watched([recorded], posterior.draws)
        self._width = recorded.width(1)
        self._checked: set[int] = set()
        self._paces: dict[int, Pace] = {}

    @property
    def is_random(self) -> bool:
        """Whether the same draw says something else in every call."""
        return SAID in self.bound.recorded.random

    def check(self, x: Tensor) -> None:
        """Compare with the program itself, once for each number of rows.

        Raises:
            NotRecorded: it says something else, or other numbers could not be sampled.
        """
        if len(x) in self._checked:
            return
        draws = few(self.posterior.draws, COMPARED)
        with exclusive():
            with seeded(0):
                expected = self.posterior.program(draws, [x])
            with seeded(0):
                found = self.bound.recorded(draws, [x])
        if gaps(found, expected):
            raise NotRecorded(f"it answers {len(x)} rows in another way")
        self._checked.add(len(x))

    def blocks(self, x: Tensor) -> Iterator[tuple[int, Iterator[Tensor]]]:
        """Rows of each block, and their answers ``(s, n, K)`` by successive draws."""
        rows = self.rows_at_once(x)
        for block in x.split(rows) if len(x) > rows else (x,):
            self.check(block)
            yield len(block), self._by_draws(block)

    def rows_at_once(self, x: Tensor) -> int:
        """Rows of a block: one draw fits, and what is said under all."""
        return max(1, min(ROWS, self._most(x) // self._width))

    def _most(self, x: Tensor) -> int:
        return self.most or numbers_at_once(x.device)

    def _by_draws(self, x: Tensor) -> Iterator[Tensor]:
        size, key = self.posterior.num_draws, len(x).bit_length()
        if (pace := self._paces.get(key)) is None:
            width = self.bound.recorded.width(len(x))
            pace = self._paces[key] = Pace.of(size, width, self._most(x), not self.is_random)
        run = self.bound.at([x])
        start = 0
        while start < size:
            block = slice(start, min(size, start + pace.size))
            with pace.timed(block.stop - start):
                found = run(block)
            if not bool(found.get(VALID, True)):
                raise NotRecorded("it samples what cannot be sampled")
            yield found[SAID]
            start = block.stop

    def whole(self, x: Tensor) -> Tensor:
        """All of it, ``(S, N, K)``."""
        parts = [joined(list(answers), 0) for _, answers in self.blocks(x)]
        return joined(parts, 1)
