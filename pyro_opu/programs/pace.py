"""Blocks of draws, and how many go quickest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from pyro_opu.programs.vmap import Draws

#: Numbers in the widest tensor of a block, of which the quickest is found.
TRIED, QUICK = (2**15, 2**17, 2**19), 2**17
#: How often each way is timed; seconds of all draws from which another program may be quicker.
TIMES, LONG = 3, 0.02


class Pace:
    """How the work goes quickest, found while it is done: in blocks of how many draws.

    Where it takes long, the original that the record stands for is timed too, and kept if quicker.

    Attributes:
        size: Draws of the next block.
        by_original: Whether it is done by the original.
    """

    def __init__(self, draws: int, sizes: Sequence[int], original: int = 0) -> None:
        self._draws = draws
        self._left = [(size, False) for size in sizes] * TIMES if len(sizes) > 1 or original else []
        self._original = min(original, sizes[-1])
        self._seconds: dict[tuple[int, bool], float] = {}
        self.size, self.by_original = self._left.pop(0) if self._left else (sizes[0], False)

    @classmethod
    def of(cls, draws: int, width: int, most: int, timed: bool, original: int) -> Pace:
        """One for draws that make tensors of ``width`` numbers, in blocks of ``most`` at most.

        The original is timed by blocks of ``original`` draws at most.

        Where the work is not to depend on the clock, as what is drawn at random must not, the size
        is one that is quick for most programs.
        """
        numbers = [each for each in (*TRIED, most) if each <= most] if timed else [min(QUICK, most)]
        sizes = sorted({max(1, min(draws, each // width)) for each in numbers})
        return cls(draws, sizes, original if timed else 0)

    def blocks(
        self, run: Callable[[slice], Draws], original: Callable[[slice], Draws]
    ) -> Iterator[tuple[slice, Draws]]:
        """Blocks of draws and what is found of them, each in the way whose turn it is.

        What is done with a block before the next is asked for counts as the work.
        """
        start = 0
        while start < self._draws:
            way = self.size, self.by_original
            block = slice(start, min(self._draws, start + self.size))
            began = time.perf_counter()
            yield block, (original if self.by_original else run)(block)
            start = block.stop
            if self._left and way == (start - block.start, self.by_original):
                self._note(way, (time.perf_counter() - began) / self.size)

    def _note(self, way: tuple[int, bool], seconds: float) -> None:
        """The time of a draw by the way whose turn it was."""
        self._seconds[way] = min(seconds, self._seconds.get(way, math.inf))
        self.size, self.by_original = self._left.pop(0)
        if not self._left:
            best = min(self._seconds, key=self._seconds.__getitem__)
            if self._original and self._seconds[best] * self._draws > LONG:
                self._left, self._original = [(self._original, True)] * TIMES + [best], 0
                best = self._left.pop(0)
            self.size, self.by_original = best
