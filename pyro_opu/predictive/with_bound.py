"""How far a student's answer at a new input may be from its teacher's, beside the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError, in_range, one_of
from pyro_opu.judging.certificate import conformal, differing, margin
from pyro_opu.parts import Outcome
from pyro_opu.predictive.distillation_report import DistillationReport

#: What a bound may be of.
Of = Literal["mean", "epistemic", "decision", "margin"]
OF: tuple[Of, ...] = ("mean", "epistemic", "decision", "margin")
#: Levels in the metadata of an exported program.
WRITTEN = (0.9, 0.95, 0.99)


class WithBound(nn.Module):
    """A student that says how far from its teacher it may be."""

    outcome: Outcome
    report: DistillationReport

    def bound(
        self,
        level: float = 0.95,
        *,
        of: Of = "mean",
        threshold: float | None = None,
        beyond: float = 0.0,
    ) -> Any:
        r"""How far the answer at a new input may be from the teacher's, with this probability.

        A tenth of ``distill``'s ``x``, at most 512 rows, has neither taught nor selected nor
        calibrated the student. By split conformal (``pyro_opu/judging/certificate.py``) what
        happened there bounds what happens at a new input like those, with a probability of at least
        ``level`` over both. About inputs that are unlike them, as :meth:`novelty` tells, it says
        nothing.

        The teacher is its mean over all draws where a posterior holds no more than ``num_samples``;
        of any other over so many new draws, so that its own Monte Carlo error is in the bound.

        Args:
            level: Between 0 and 1.
            of: "mean" is the total variation between the class probabilities; of a real y or a
                count the distance of the means in predictive deviations, of several numbers of a
                site the largest. "epistemic" is the factor by which the epistemic part is off
                (mutual information, below 1e-5 nats counted as that). "decision" is how often the
                class is another than the teacher's, at most, with confidence ``level`` (Clopper and
                Pearson). "margin" is how far a probability must lie from the threshold to settle
                the decision: a new row is further *and* decided otherwise with a probability of at
                most ``1 - level``. :func:`~pyro_opu.guarded` asks this of every row.
            threshold: The probability of the second of two classes above which it is decided for,
                by default .5. Left out otherwise: the likeliest class is decided for, and its lead
                over the next is what the margin is about.
            beyond: A "decision" counts rows alone whose probability, or lead, is at least so far
                from the threshold: decisions by how certain they are.

        Returns:
            A number, ``None`` where too few rows were kept for it (``fast.report["bound"]`` says
            how many, or why none); of several sites a dict.

        Raises:
            TypeError: "decision" or "margin" of what is no class label.
            ValueError: ``level`` or ``threshold`` not between 0 and 1; a threshold of more than two
                classes, or without a decision.

        Example:
            >>> import torch, pyro_opu
            >>> w = torch.randn(20, 2, 3)
            >>> teacher = lambda x: torch.softmax(x @ w, -1)
            >>> x = torch.randn(500, 2)
            >>> fast = pyro_opu.distill(teacher, x, num_steps=100, seed=0, progress=False)
            >>> 0 < fast.bound(0.9) <= fast.bound(0.95) < 1, fast.bound(0.99)
            (True, None)
        """
        in_range("level", level, 0.0, 1.0, "()", "Pass 0.95.")
        one_of("of", of, OF)
        in_range("beyond", beyond, 0.0, 1.0)
        about = of in ("decision", "margin")
        if about and not any(part.on_simplex for part in self.outcome.parts):
            raise ArgumentTypeError(
                f'`of="{of}"` needs class labels; the student has {self.outcome}. Pass of="mean".'
            )
        self._check_threshold(threshold, about)
        found: dict[str, Any]
        if of == "decision":
            found = {
                site: differing(pairs, level, at, beyond)
                for site, pairs, at in self._decisions(threshold)
            }
        elif of == "margin":
            found = {
                site: margin(pairs, level, at) for site, pairs, at in self._decisions(threshold)
            }
        else:
            found = {site: conformal(row[of], level) for site, row in self._certified().items()}
        return self.outcome.shown(found) if found else None

    def margins(
        self, level: float, threshold: float | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Margins of decisions by observed site of labels, and what is decided at."""
        self._check_threshold(threshold, True)
        found, decided = {}, {}
        for site, pairs, at in self._decisions(threshold):
            by = margin(pairs, level, at)
            found[site], decided[site] = math.inf if by is None else by, at
        return found, decided

    def bounds_by_level(self) -> dict[str, dict[str, Any]]:
        """Bounds of the mean, and margins of decisions, as a program's metadata has them."""
        kinds: list[Of] = ["mean"]
        kinds += ["margin"] if any(part.on_simplex for part in self.outcome.parts) else []
        names = {"mean": "bound", "margin": "margin"}
        return {names[of]: {f"{at:g}": self.bound(at, of=of) for at in WRITTEN} for of in kinds}

    def _certified(self) -> dict[str, dict[str, Any]]:
        """Scores by site, as :func:`.certified` gives them; none where no rows were kept."""
        found: dict[str, dict[str, Any]] = self.report.get("bound", {}).get("sites", {})
        return found

    def _decisions(self, threshold: float | None) -> Iterator[tuple[str, Any, float]]:
        """Sites of labels, the pairs of numbers that are decided by, and what they are held to."""
        for site, row in self._certified().items():
            if "decisions" in row:
                yield site, row["decisions"], row["threshold"] if threshold is None else threshold

    def _check_threshold(self, threshold: float | None, about: bool) -> None:
        if threshold is None:
            return
        if not about or self.outcome.num_classes != 2:
            raise ArgumentError(
                '`threshold` needs a decision between two classes, of="decision" or "margin"; '
                f"got {threshold!r} for {self.outcome}. Leave it out: the likeliest class decides."
            )
        in_range("threshold", threshold, 0.0, 1.0, "()")
