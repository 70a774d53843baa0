r"""Whether a stream of rows is still like rows that were kept, looked at after any of them.

The rank of a new row's score among those of all rows so far, kept ones and stream, is

.. math::
    p_t = (\#\{i : s_i > s_t\} + u_t\, \#\{i : s_i = s_t\}) / n_t, \quad u_t \sim U(0, 1),

a row being equal to itself. If the stream is like the kept rows, so that all orders are equally
likely, these are independent and uniform, however scores are distributed and however few rows were
kept: how well these know it is in the ranks. Gamblers bet that they are not. Each stakes a share s
of its capital on an interval I, and begins at a time of its own, whose prior weights are
:math:`S_{t-1} - S_t`:

.. math::
    A_t = (A_{t-1} + S_{t-1} - S_t)\, (1 + s\,(1[p_t \in I] / |I| - 1)), \quad
    S_t = 1 / (1 + \log(1 + t)).

The evidence :math:`M_t`, the mean of :math:`A_t + S_t` over gamblers, is a martingale that begins
at 1. It ever reaches :math:`1 / \alpha` with a probability of at most :math:`\alpha` (Ville).

References:
    Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World (2005), sections 7.1 and 8.1.
    Shafer, Vovk: Game-Theoretic Foundations for Probability and Finance (2019), chapter 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyro_opu.guides.novelty import NOVEL
from pyro_opu.utils.printing import Printed

__all__ = ["INPUTS", "Evidence", "Watch", "counted", "edges_of"]

#: The score of the inputs; all others are of answers.
INPUTS = "novelty"
#: Shares of the rows taught at, by which scores are counted.
_TAILS = (0.001, 0.002, 0.005, 0.01, 0.02)
LEVELS = (*_TAILS, *(k / 20 for k in range(1, 20)), *(1 - t for t in reversed(_TAILS)))
#: Rows that are looked at together.
ROWS = 128


def _fixed() -> np.ndarray:
    """Ends of the intervals that stay, halves, quarters, eighths and tails, ``(2, G)``."""
    halved = [(k / n, (k + 1) / n) for n in (2, 4, 8) for k in range(n)]
    tails = [each for n in (16, 32, 64, 128) for each in ((0.0, 1 / n), (1 - 1 / n, 1.0))]
    return np.array(halved + tails).T


FIXED, STAKES = _fixed(), (0.5, 0.1)


def bets(times: np.ndarray, kept: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends of every gambler's interval at rows ``(B,)`` of the stream, ``(B, G)``; stakes ``(G,)``.

    Beside intervals that stay there are two that hold the ranks of a stream of which all rows lie
    beyond all kept ones: few kept rows are soon outnumbered.
    """
    share = (times / (kept + times))[:, None]
    low, high = (np.tile(ends, (len(times), 1)) for ends in FIXED)
    low, high = np.hstack([low, 0 * share, 1 - share]), np.hstack([high, share, 0 * share + 1])
    return np.tile(low, 2), np.tile(high, 2), np.repeat(STAKES, low.shape[1])


def edges_of(taught: np.ndarray) -> np.ndarray:
    """Edges between which scores are counted: quantiles of rows ``(m,)`` taught at.

    No kept row says where: it would be unlike a new one.
    """
    return np.unique(np.quantile(taught, LEVELS, method="lower"))


def counted(scores: np.ndarray, edges: np.ndarray | Sequence[float] = LEVELS) -> dict[str, Any]:
    """Counts of the scores of kept rows ``(n,)`` between edges, as plain values for a report.

    By default the scores are shares, as novelty is.
    """
    counts = np.bincount(np.searchsorted(edges, scores), minlength=len(edges) + 1)
    return {"edges": list(map(float, edges)), "counts": counts.tolist()}


class Evidence:
    """The evidence that one score has changed its distribution, row by row.

    Args:
        found: What :func:`counted` gave.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.edges = np.array(found["edges"])
        self.kept = np.array(found["counts"])
        self.counts, self.rows, self.log = self.kept.copy(), 0, 0.0
        self._active = np.full(len(STAKES) * (FIXED.shape[1] + 2), -math.inf)

    def add(self, scores: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The logarithm of the evidence after each of these rows ``(B,)``."""
        blocks = range(0, len(scores), ROWS)
        found = [self._bet(self.ranks(scores[k : k + ROWS], u[k : k + ROWS])) for k in blocks]
        return np.concatenate([np.zeros(0), *found])

    def ranks(self, scores: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The rank of each row among all so far, the largest first; the rows are counted."""
        bins = np.searchsorted(self.edges, scores)
        so_far = self.counts + (bins[:, None] == np.arange(len(self.counts))).cumsum(0)
        self.counts = so_far[-1]
        alike = so_far[np.arange(len(bins)), bins]
        not_above = so_far.cumsum(1)[np.arange(len(bins)), bins]
        total = so_far.sum(1)
        return np.asarray((total - not_above + u * alike) / total)

    def _bet(self, p: np.ndarray) -> np.ndarray:
        times = self.rows + np.arange(len(p) + 1)
        low, high, stake = bets(times[1:], int(self.kept.sum()))
        inside = (low < p[:, None]) & (p[:, None] <= high)
        won = np.log(1 - stake + stake * inside / (high - low)).cumsum(0)
        asleep = 1 / (1 + np.log1p(times))
        unit = np.maximum(self._active, 0)
        begun = (asleep[:-1] - asleep[1:])[:, None] * np.exp(
            np.vstack([0 * won[:1], -won[:-1]]) - unit
        )
        capital = won + unit + np.log(np.exp(self._active - unit) + begun.cumsum(0))
        self._active, self.rows = capital[-1], self.rows + len(p)
        most = np.maximum(capital.max(1), 0)
        log = most + np.log(np.exp(capital - most[:, None]).mean(1) + asleep[1:] * np.exp(-most))
        self.log = float(log[-1])
        return np.asarray(log)


class Watch(Printed):
    """What ``fast.watch`` has counted since it began; it prints in a few lines.

    Attributes:
        alarm: Whether the rows were found to be others than those taught at; it stays.
        since: The batch of the alarm, the first being 1; ``None`` without one.
        row: The row of the alarm, the first of all batches being 1.
        of: "inputs" or "answers", whose scores raised it.
        batches, rows: How many there were.
        false_alarms: The probability of an alarm in a stream, however long, like the kept rows.
        evidence: The :class:`Evidence` by score.

    Args:
        found: What was found at kept rows, by score.
        false_alarms: Half of it is spent on the inputs, half on all scores of answers.
    """

    def __init__(self, found: Mapping[str, Mapping[str, Any]], false_alarms: float) -> None:
        self.evidence = {name: Evidence(each) for name, each in found.items()}
        self.false_alarms = false_alarms
        self.batches = self.rows = 0
        self.since: int | None = None
        self.row: int | None = None
        self.of: str | None = None
        self._noise = np.random.default_rng(0)
        others = len(found) - 1
        self.needed = {
            name: math.log(2 * (1 if name == INPUTS else others) / false_alarms) for name in found
        }

    @property
    def alarm(self) -> bool:
        """Whether the rows are no longer those of teaching."""
        return self.since is not None

    def add(self, scores: Mapping[str, np.ndarray]) -> None:
        """Look at a batch, by score ``(B,)``."""
        count = len(scores[INPUTS])
        u = self._noise.random((count, len(self.evidence)))
        first: dict[str, int] = {}
        for k, (name, each) in enumerate(self.evidence.items()):
            above = np.flatnonzero(each.add(scores[name], u[:, k]) >= self.needed[name])
            if len(above):
                first[name] = int(above[0])
        self.batches += 1
        if first and not self.alarm:
            name = min(first, key=first.__getitem__)
            self.since, self.row = self.batches, self.rows + first[name] + 1
            self.of = "inputs" if name == INPUTS else "answers"
        self.rows += count

    def __str__(self) -> str:
        kept = next(iter(self.evidence.values())).kept.sum()
        alarm = f"alarm in batch {self.since}, row {self.row or 0:,}, by the {self.of}; "
        lines = [
            f"{alarm if self.alarm else 'no alarm; '}{self.rows:,} rows in {self.batches:,} "
            f"batches, {kept:,} kept; false in at most {100 * self.false_alarms:g} % of streams"
        ]
        width = 2 + max(map(len, self.evidence))
        for name, each in self.evidence.items():
            told = f"evidence 10^{each.log / math.log(10):.1f}, "
            told += f"an alarm at 10^{self.needed[name] / math.log(10):.1f}"
            if name == INPUTS:
                novel = np.searchsorted(each.edges, NOVEL) + 1
                shares = [
                    c[novel:].sum() / max(1, c.sum()) for c in (each.counts - each.kept, each.kept)
                ]
                told += "; above {:g} {:.3g} % of rows, {:.3g} % of kept ones".format(
                    NOVEL, *(100 * share for share in shares)
                )
            lines.append(f"{name:<{width}}{told}")
        return "\n".join(lines)

    __repr__ = __str__
