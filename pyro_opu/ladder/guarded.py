"""A student where its certificate holds, and exact answers elsewhere."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_path, in_range, instance_of
from pyro_opu.guides.novelty import NOVEL
from pyro_opu.inputs import InputLike
from pyro_opu.judging.classes import decisive
from pyro_opu.ladder.base import Exact
from pyro_opu.ladder.exact import exact as exact_of
from pyro_opu.ladder.router import NAMES, check_router, put_router
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.rng import full_precision
from pyro_opu.teachers import Source
from pyro_opu.utils.warnings import warn_user

__all__ = ["Guarded", "Routed", "guarded"]


class Routed(NamedTuple):
    """How many rows went where."""

    last: int  #: To the exact answers, of this thread's last call.
    exact: int  #: To the exact answers in all calls.
    over: int  #: Answered by the student in all calls, as the budget was spent.
    rows: int  #: In all calls.


def guarded(
    fast: OnePassPredictive,
    exact: Source | Exact | None,
    level: float = 0.95,
    *,
    threshold: float | None = None,
    novelty: float = NOVEL,
    budget: float | None = None,
) -> Guarded:
    r"""Answer by the student where it has a certificate, and exactly elsewhere.

    Two kinds of rows go to ``exact``: those with ``fast.novelty(x) > novelty``, of which the bound
    says nothing; and those whose class the bound cannot settle, because the probability is within
    ``fast.bound(level, of="margin")`` of the threshold, or the lead of the likeliest class within
    it of zero. All others are answered in one pass. At new rows like those that the student was
    taught at the decision is then the exact one with a probability of at least ``level``.

    The exact answers are those of their own draws: of a posterior that draws afresh the promise is
    of new draws.

    Args:
        fast: What ``distill`` returned, or was loaded.
        exact: The posterior, what :func:`~pyro_opu.exact` made of it, or ``None`` to refuse such
            rows with an error ("abstain").
        level: The level of the bound.
        threshold: A probability of the second of two classes; see :meth:`.OnePassPredictive.bound`.
        novelty: 1 for no look at it.
        budget: The most that may go to ``exact``, as a share of all rows so far, the most novel
            first; the student answers what is left, ``.routed.over`` counts it, and a warning says
            so once. By default there is no limit.

    Returns:
        A :class:`~pyro_opu.ladder.guarded.Guarded`, called as both are.

    Raises:
        TypeError: ``fast`` is no student.
        ValueError: a student without a bound at this level, or without novelty; bad numbers.

    Example:
        >>> import torch, pyro_opu
        >>> weights = torch.randn(100, 2, 3)
        >>> posterior = lambda x: torch.softmax(x @ weights, -1)
        >>> fast = pyro_opu.distill(
        ...     posterior, torch.randn(500, 2), num_steps=100, seed=0, progress=False)
        >>> both = pyro_opu.guarded(fast, posterior)
        >>> both(torch.tensor([[1.0, 0.5], [50.0, -50.0]]))["obs"].shape, both.routed.last
        (torch.Size([100, 2]), 1)
    """
    advice = "Pass what distill returned."
    instance_of("fast", fast, OnePassPredictive, "a OnePassPredictive", advice)
    in_range("novelty", novelty, 0.0, 1.0)
    if budget is not None:
        in_range("budget", budget, 0.0, 1.0)
    if fast.bound(level) is None:
        found = fast.report.get("bound", {})
        why = found.get("reason") or f"{found.get('num_rows', 'no')} rows were kept for it"
        raise ArgumentError(
            f"`fast` must have a bound at the level {level:g}; it has none: {why}. Distil it at "
            "more rows, or take a lower `level`."
        )
    if fast.detector is None or fast.inputs is not None:
        lacks = "no novelty" if fast.detector is None else f"inputs={fast.inputs!r}"
        raise ArgumentError(
            "`fast` must have a novelty, and be called with its inputs alone; it has "
            f"{lacks}. Distil it again."
        )
    answers = exact if exact is None or isinstance(exact, Exact) else exact_of(exact)
    return Guarded(fast, answers, level, threshold, novelty, budget)


class Guarded:
    """A student and exact answers as one, called as both are; :func:`~pyro_opu.guarded` makes it.

    Draws are joint over rows among those that went to the exact answers alone.

    Attributes:
        fast: The student.
        exact: The exact answers, or ``None``.
        margins: How far from the threshold a class is settled, by observed site.
    """

    def __init__(
        self,
        fast: OnePassPredictive,
        exact: Any,
        level: float,
        threshold: float | None,
        novelty: float,
        budget: float | None,
    ) -> None:
        self.fast, self.exact = fast, exact
        self.novelty, self.budget = novelty, budget
        self.margins, self._thresholds = fast.margins(level, threshold)
        self._lock, self._own = threading.Lock(), threading.local()
        self._counts = Routed(0, 0, 0, 0)

    @property
    def routed(self) -> Routed:
        """How many rows went to the exact answers."""
        with self._lock:
            return self._counts._replace(last=getattr(self._own, "last", 0))

    def outside(self, x: InputLike) -> Tensor:
        """Which rows the student has no certificate for, ``(N,)``; nothing is counted."""
        answer, novelty = self._one_pass(x)
        return self._farness(answer, novelty) > 0

    @torch.no_grad()
    def __call__(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draws of the student's sites, laid out as ``Predictive`` does."""
        fast = self.fast
        x = fast._input(args, kwargs)
        answer, novelty = self._one_pass(x)
        found = fast._sampled(fast._checked(x), answer)
        index = self._routes(answer, novelty)
        if not len(index):
            return found
        args, kwargs = fast.form.call(self._rows(x, index))
        theirs = self.exact(*args, **kwargs)
        for site in fast.sites:
            _put(found[site.name], theirs[site.name], index, 1 + site.shape.index(-1))
        return found

    @torch.no_grad()
    def probs(self, x: InputLike, num_draws: int | None = None) -> Tensor:
        """Draws of class probabilities ``(S, N, C)``."""
        answer, novelty = self._one_pass(x)
        found = self.fast.probs(x, num_draws)
        index = self._routes(answer, novelty)
        if len(index):
            rows = self.fast.form.unpack(self._rows(x, index))
            count = None if len(found) == self.exact.max_draws else len(found)
            _put(found, self.exact.probs(rows, count), index, 1)
        return found

    @torch.no_grad()
    def uncertainty(self, x: InputLike) -> Any:
        """The table of :func:`pyro_opu.uncertainty`, of several sites a dict."""
        fast = self.fast
        answer, novelty = self._one_pass(x)
        tables = fast._tables_of(answer, novelty)
        index = self._routes(answer, novelty)
        if len(index):
            theirs = self.exact.uncertainty(fast.form.unpack(self._rows(x, index)))
            several = len(fast.outcome.parts) > 1
            for site, table in tables.items():
                exact = theirs[site] if several else theirs
                for name, values in table.to_dict().items():  # all are computed before
                    if name in exact.keys():  # noqa: SIM118
                        _put(values, exact[name], index, 0)
        return fast.outcome.shown(tables)

    def export(self, folder: str | os.PathLike[str], example_x: InputLike | None = None) -> None:
        """Write the pair as ``fast.onnx``, ``exact.onnx`` and ``router.py``, for onnxruntime alone.

        ``router.answer(x)`` of the last gives mean, epistemic part and which rows went to the exact
        answers, from NumPy arrays, as :meth:`uncertainty` does. It is ten lines, to be read and
        changed. It has no budget: a warning says so where there is one here. Without exact answers
        it raises a ValueError at such rows.

        Args:
            folder: Made where there is none; files of these names are replaced, a ``router.py`` of
                somebody else's is not.
            example_x: Rows at which the files are checked; by default those of the first call.

        Raises:
            TypeError: several sites, or several numbers of a row.
            ValueError: what either cannot write (see their own ``export``).
            ImportError: without the extra "onnx".
        """
        path, outcome = check_path("folder", folder), self.fast.outcome
        if not outcome.single or outcome.one.shape:
            raise ArgumentTypeError(
                f"`export` needs one number of a row; the student has {outcome}. Export both with "
                "outputs of your choice, and write the router."
            )
        if self.budget is not None:
            warn_user(f"{NAMES[-1]} has no budget; this pair has {self.budget:g} of all rows.")
        check_router(path)
        path.mkdir(exist_ok=True)
        if self.exact is not None:
            self.exact.export(path / NAMES[1], example_x, outputs=["mean", "epistemic"])
        self.fast.export(path / NAMES[0], outputs=["mean", "epistemic", "novelty"])
        margin, threshold = self.margins.get(""), self._thresholds.get("", 0.0)
        beside = (outcome.num_classes, self.exact is not None)
        put_router(path, self.novelty, margin, threshold, *beside)

    def __repr__(self) -> str:
        return f"Guarded({self.fast.extra_repr()}, exact={self.exact!r}, {self.routed})"

    @torch.no_grad()
    def _one_pass(self, x: Any) -> tuple[Any, Tensor]:
        """The student's answer, and the novelty of the rows."""
        answer, novelty = self.fast._answer_and_novelty(x)
        return answer, novelty

    @full_precision()
    def _farness(self, answer: Any, novelty: Tensor) -> Tensor:
        """Above 0 where a row goes to the exact answers, the more so the sooner, ``(N,)``."""
        open_ = torch.zeros_like(novelty, dtype=torch.bool)
        outcome = self.fast.outcome
        for part, own in zip(outcome.parts, outcome.each(answer), strict=True):
            if (margin := self.margins.get(part.site)) is not None:
                mean = own.log_mean.double().softmax(-1)
                value = decisive(mean, mean.argmax(-1))
                open_ |= (value - self._thresholds[part.site]).abs() <= margin
        return torch.where(novelty > self.novelty, 1 + novelty, open_.to(novelty))

    def _routes(self, answer: Any, novelty: Tensor) -> Tensor:
        """Rows that go to the exact answers, in order; they are counted."""
        far = self._farness(answer, novelty)
        index = far.nonzero()[:, 0]
        wanted = len(index)
        with self._lock:
            before = self._counts
            rows = before.rows + len(far)
            if self.budget is not None and self.exact is not None:
                left = max(0, int(self.budget * rows) - before.exact)
                index = far.topk(min(wanted, left)).indices.sort().values
            over = before.over + wanted - len(index)
            self._counts = Routed(0, before.exact + len(index), over, rows)
            self._own.last = len(index)
        if over and not before.over:
            warn_user(
                f"{wanted - len(index)} of {wanted} rows without a certificate are answered by the "
                f"student, as the budget of {self.budget:g} of all rows is spent; .routed.over "
                "counts them."
            )
        if wanted and self.exact is None:
            raise ArgumentError(
                "`x` must hold rows that the student has a certificate for, as `exact` is None; "
                f"{int((far > 1).sum())} of {len(far)} are novel and {int((far == 1).sum())} near "
                f"a decision, the first is row {int(index[0])}. Pass x[~both.outside(x)]."
            )
        return index

    def _rows(self, x: Any, index: Tensor) -> Tensor:
        """These rows in one tensor, and the last again up to a power of two.

        What is recorded is compared with the model at every new number of rows.
        """
        packed = self.fast.form.pack(x)
        count = min(len(packed), 1 << (len(index) - 1).bit_length())
        return packed[torch.cat([index, index[-1:].expand(count - len(index))])]


def _put(found: Tensor, exact: Tensor, index: Tensor, axis: int) -> None:
    """Write exact values of these rows into the student's, in place."""
    exact = exact.narrow(axis, 0, len(index))
    if exact.shape[:axis] != found.shape[:axis]:
        raise ArgumentError(
            f"`exact` must give as many draws as the student, {len(found)}; got {len(exact)}. Pass "
            "num_samples to as_teacher before both are made."
        )
    found.index_copy_(axis, index, exact.to(found))
