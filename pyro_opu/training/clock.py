"""The seconds of a run: how many are left, and what there is time for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.training import tuned
from pyro_opu.utils.warnings import warn_user

__all__ = ["Clock", "Countdown", "pace"]


@dataclass(frozen=True)
class Clock:
    """Seconds from the call to the return; without an end where none were asked for.

    Attributes:
        seconds: In all.
        begun: When the call was made, by ``time.perf_counter()``.
    """

    seconds: float = math.inf
    begun: float = field(default_factory=time.perf_counter)

    @property
    def runs(self) -> bool:
        """Whether seconds were asked for."""
        return math.isfinite(self.seconds)

    @property
    def telling(self) -> float:
        """Seconds of a call that tell its pace."""
        if not self.runs:
            return tuned.TELLING_AT_EASE
        return max(tuned.TELLING, tuned.TELLING_SHARE * self.seconds)

    @property
    def spent(self) -> float:
        """Seconds since the call."""
        return time.perf_counter() - self.begun

    def check(self) -> None:
        """Say at the return that more seconds were taken than were given."""
        if (spent := self.spent) > (1 + tuned.OVERRUN) * self.seconds:
            warn_user(
                f"`effort` was {self.seconds:.3g} seconds, and the call took {spent:.3g}: one look "
                "at `source`, or one step, takes long here. Give it more seconds, or fewer rows."
            )


@dataclass
class Countdown:
    """Steps that there is time for, the same on all ranks.

    Attributes:
        clock: The run's.
        after: Seconds that come after the last step.
        ranks: The first of them looks at the clock.
    """

    clock: Clock = field(default_factory=Clock)
    after: float = 0.0
    ranks: Ranks = ALONE
    _begun: float = 0.0
    _end: float = math.inf

    @property
    def left(self) -> float:
        """Seconds until what comes after the steps."""
        return self.clock.seconds - self.after - self.clock.spent

    def begin(self, seconds: float) -> None:
        """Begin to count steps, which may take so many seconds."""
        self._begun = self.clock.spent
        self._end = self._begun + seconds

    @property
    def over(self) -> bool:
        """Whether they have passed."""
        return self.clock.runs and self.ranks.broadcast(self.clock.spent > self._end)

    def more(self, taken: int) -> float:
        """How many more steps, at the pace of those that were taken since the beginning."""
        if not self.clock.runs:
            return math.inf
        spent = self.clock.spent
        found = (self._end - spent) * taken / max(spent - self._begun, 1e-9)
        return self.ranks.broadcast(max(0.0, found))


def pace(
    call: Callable[[int], object],
    most: int,
    device: torch.device,
    telling: float = tuned.TELLING,
    rows: int = tuned.FIRST_ROWS,
) -> float:
    """Seconds a row that a call takes, by calls at ever more rows, from so many on.

    Until one takes so long that it is ``telling``, and no longer gains by more rows: a call that
    takes as long at 16 rows as at 256 says nothing of a row at 16. What takes no second is called
    twice, since the first call of anything is slow.
    """

    def taken(rows: int) -> float:
        begun = time.perf_counter()
        call(rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    before = math.inf
    while True:
        rows = min(rows, most)
        found = taken(rows)
        if found < 1.0:
            found = min(found, taken(rows))
        gains = found / rows < tuned.GAINS * before
        if rows == most or found >= (tuned.AFFORDED if gains else 1.0) * telling:
            return found / rows
        before, rows = found / rows, 4 * rows
