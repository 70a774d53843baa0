"""What a posterior says of inputs, as a recorded program under its draws."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.programs.agreement import close, gaps
from pyro_opu.programs.algebra import is_simplex, output
from pyro_opu.programs.apart import row_axes
from pyro_opu.programs.bound import Bound
from pyro_opu.programs.pace import Pace
from pyro_opu.programs.recorded import VALID, Recorded, few
from pyro_opu.programs.recorder import NotRecorded, NotValid, Together
from pyro_opu.programs.vmap import Draws
from pyro_opu.programs.watched import Watched
from pyro_opu.rng import exclusive, preserve_rng, seeded
from pyro_opu.utils.chunks import joined, numbers_at_once

#: The output of a posterior's program, and its exponential, where that is probabilities.
SAID, PROBS = "said", "probs"
#: Draws under which a record is compared with the program; rows of a block, and rows that are
#: compared with themselves alone.
COMPARED, ROWS, ALONE = 2, 2**10, 4


@dataclass(frozen=True)
class PosteriorProgram:
    """A posterior as what it is: a program of (draws, inputs), and the draws it is run under.

    Attributes:
        program: ``(draws, [x]) -> {"said": (S, N, K)}``, all draws at once.
        draws: Tensors ``(S, ...)`` each.
        alone: The same of one draw, as it is written, with errors of its own.
    """

    program: Together
    draws: Draws
    alone: Callable[[Draws, Tensor], object] | None = None

    def complain(self, x: Tensor) -> None:
        """Raise the error that a draw has at these inputs, if one has."""
        if self.alone is None:
            return
        for draw in range(self.num_draws):
            self.alone({name: value[draw] for name, value in self.draws.items()}, x)

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
        logs: Whether what is said are logarithms of probabilities, which are recorded too.

    Attributes:
        bound: The record with its draws.
        watched: What it holds besides these.
        proved: Whether rows of probabilities must sum to one, or be NaN.

    Raises:
        NotRecorded: the program is not one sequence of operations for all numbers of rows.
    """

    def __init__(
        self, posterior: PosteriorProgram, x: Tensor, most: int | None = None, logs: bool = False
    ) -> None:
        self.posterior, self.most = posterior, most
        self._together = _with_probs(posterior.program) if logs else posterior.program
        with preserve_rng():
            recorded = Recorded(self._together, posterior.draws, [x])
        self.bound = Bound(recorded, posterior.draws)
        self.proved = logs and is_simplex(output(recorded.program)[recorded.names.index(PROBS)])
        self.watched = Watched([recorded], posterior.draws)
        self._apart = row_axes(recorded) is not None
        self._width = self.bound.width(1)
        self._checked: dict[int, bool] = {}
        self._paces: dict[Hashable, Pace] = {}

    @property
    def is_random(self) -> bool:
        """Whether the same draw says something else in every call."""
        return SAID in self.bound.recorded.random

    def check(self, x: Tensor) -> None:
        """Compare with the program itself, once for each number of rows.

        Raises:
            NotRecorded: it says something else, or other numbers could not be sampled.
        """
        agrees = self._checked.get(len(x))
        if agrees is None:
            draws = few(self.posterior.draws, COMPARED)
            with exclusive():
                with seeded(0):
                    expected = self._together(draws, [x])
                with seeded(0):
                    found = self.bound.recorded(draws, [x])
            agrees = self._checked[len(x)] = not gaps(found, expected)
        if not agrees:
            raise NotRecorded(f"it answers inputs of length {len(x)} in another way")

    def blocks(self, x: Tensor, *names: str) -> Iterator[tuple[int, Iterator[Draws]]]:
        """Rows of each block, and their answers ``(s, n, K)`` by successive draws, by name."""
        rows = self.rows_at_once(x)
        for block in x.split(rows) if len(x) > rows else (x,):
            self.check(block)
            yield len(block), self._by_draws(block, names)

    def rows_at_once(self, x: Tensor) -> int:
        """Rows of a block: one draw fits, and what is said under all; or all, which may mix."""
        rows = max(1, min(ROWS, self._most(x) // self._width))
        return rows if len(x) <= rows or self.is_apart(x) else len(x)

    def is_apart(self, x: Tensor) -> bool:
        """Whether rows say nothing of one another: by the operations, or as some of them show."""
        return self._apart or self._says_apart(x)

    def _says_apart(self, x: Tensor) -> bool:
        """Whether some rows say together what each says alone, under a draw."""
        x = x if len(x) > 1 else torch.cat([x, torch.zeros_like(x)])  # 0 is an index, too
        draw, rows = few(self.posterior.draws, 1), x[:: -(-len(x) // ALONE)]
        whole, *alone = (self.bound.recorded(draw, [r])[SAID] for r in (rows, *rows.split(1)))
        return not self.is_random and close(joined(alone, 1), whole)

    def _most(self, x: Tensor) -> int:
        return self.most or numbers_at_once(x.device)

    def _by_draws(self, x: Tensor, names: Sequence[str]) -> Iterator[Draws]:
        key = len(x).bit_length(), *names
        if (pace := self._paces.get(key)) is None:
            size, width = self.posterior.num_draws, self.bound.width(len(x))
            pace = self._paces[key] = Pace.of(size, width, self._most(x), not self.is_random, size)
        asked = (*names, VALID) if VALID in self.bound.names else names
        run = self.bound.at([x], asked)

        def original(block: slice) -> Draws:
            return self._together({k: v[block] for k, v in self.posterior.draws.items()}, [x])

        for _, found in pace.blocks(run, original):
            if not bool(found.get(VALID, True)):
                self.posterior.complain(x)
                raise NotValid
            yield found

    def whole(self, x: Tensor, name: str = SAID) -> Tensor:
        """All of it, ``(S, N, K)``."""
        parts = [joined([found[name] for found in each], 0) for _, each in self.blocks(x, name)]
        return joined(parts, 1)


def _with_probs(program: Together) -> Together:
    def together(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
        found = program(draws, inputs)
        return {**found, PROBS: found[SAID].exp()}

    return together
