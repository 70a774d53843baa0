"""What ``distill`` says of its student: a plain dict that prints in a few lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from pyro_opu.judging.advice import graded, last_gain
from pyro_opu.judging.certificate import said_of
from pyro_opu.judging.yardstick import MOST_DRAWS, in_draws
from pyro_opu.utils.printing import Printed
from pyro_opu.utils.warnings import warn_user

__all__ = [
    "DistillationReport",
    "FidelityWarning",
    "warn_of_worthless",
    "work",
]

#: Epistemic part of a student that is taught against a critic, as a multiple of the teacher's,
#: below or above whose inverse it has collapsed.
COLLAPSED = 0.5

#: KL, in multiples of the attainable, below which no student is called worthless.
WORTHLESS = 2.0
#: Width of its lines, and where a student began, in words.
COLUMNS = 80
_STARTS = {
    "network": "at the teacher's network",
    "moments": "with the moments of the logits",
    "closed form": "in closed form",
    "student": "at an earlier student",
    "scratch": "from scratch",
}


class FidelityWarning(UserWarning):
    """The held-out KL of a student is nearer to the trivial student's than to the attainable."""


class DistillationReport(Printed, dict[str, Any]):
    """The dict ``fast.report``: it prints in a few lines, and is saved as any other dict.

    On "num_held_out" inputs: "draws", the number of posterior draws whose mean errs as much as the
    student's; "kl" of the means, by all draws that judge; "kl_ratio", "kl_attainable" and
    "kl_trivial" (of one answer for all inputs), by one half of them at a time as in
    :func:`~pyro_opu.fidelity`; "energy_distance", which decided what was kept, and once the
    student was finished "energy_to_posterior", beside it "energy_of_draws", and "energy_share", the
    former as a share of the draws' spread; the student's and the teacher's "mutual_information" in
    nats (of a real y "epistemic_share", that of the variance), and "epistemic_factor", by which it
    is typically off at single inputs. The last lines are the grade by these numbers, and a next
    step (``pyro_opu/judging/advice.py``).
    "start" says where it began: at the teacher's "network", with the "moments" of its logits, in
    "closed form", at an earlier "student", or from "scratch"; "start_reason" says why. "earlier"
    is of students that begin at another, and has the KL of that one
    (``pyro_opu/training/choose.py``); "family_by_default" is whether such a one may choose the
    family of its answers anew.
    "inputs" says what the transfer policy made, by share; nothing of students that took no step.
    "critic" is of an adversarial loss, at held-out inputs: the share with a "negative_gain", the
    mean "slope" of the witnesses and the "steep" share of points where it is above 1, the "value",
    a lower bound on W1 that they prove, and for two classes the "exact" W1 of the same draws.
    "bound" is what ``fast.bound`` rests on (``pyro_opu/judging/certificate.py``), or the "reason"
    that there is none; "watch", what ``fast.watch`` compares with (``pyro_opu/judging/drift.py``).
    "joint" is of students with joint draws: the held-out KL of a draw (of a real y, squared error
    in deviations) from the teacher's, and of the teacher's draws from one another. "spent" is the
    steps and seconds of this run, the teacher's among them, and its "queries", inputs times draws
    that it was asked for; "latents" says what becomes of each latent behind the answer that the
    posterior lacks; "history" has one record per evaluation. Two reports are equal if all but
    "spent" is.

    Example:
        >>> report = DistillationReport(draws=310.2, kl_ratio=3.2, kl_attainable=0.001)
        >>> str(report).splitlines()[1]
        'mean      errs as that of 310 draws, held out: KL 0.0032 nats (trivial: 0)'
    """

    def __str__(self) -> str:
        return "\n".join(f"{name:<10}{text}" for name, text in self._lines().items()) or repr(self)

    def _printed(self) -> str:
        return "\n".join(f"{name}  {text}" for name, text in self._lines().items()) or repr(self)

    def _lines(self) -> dict[str, str]:
        """What is printed, by its name; nothing of a rival, or of an earlier version."""
        if "draws" not in self:
            return {}
        lines = {
            "student": self._student(),
            **({"start": self._start()} if "start" in self else {}),
            "mean": self._mean(),
            "energy": self._energy(),
            "epistemic": self._epistemic(),
            "spent": self._spent(),
            "kept": self._kept(),
        }
        if "inputs" in self:
            lines["inputs"] = shorten(self["inputs"], COLUMNS - 10, placeholder=" ...")
        if "bound" in self:
            lines["bound"] = said_of(self["bound"])
        if "latents" in self:
            lines["latents"] = "; ".join(f"{k} {v}" for k, v in self["latents"].items())
        if "joint" in self:
            lines["joint"] = self._joint()
        if self.get("critic"):
            lines["critic"] = self._critic()
        if {"epistemic_factor", "energy_share"} <= set(self):
            lines["grade"], lines["next"] = graded(self)
        return lines

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        one, two = ({k: v for k, v in d.items() if k != "spent"} for d in (self, other))
        return one == two

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _student(self) -> str:
        family = str(self.get("family", "answer")).removeprefix("Predictive")
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", family)
        return f"{self.get('guide', '?')}, {words} per input, by {self.get('loss', '?')}"

    def _mean(self) -> str:
        kl, trivial = self["kl_ratio"] * self.get("kl_attainable", 0.0), self.get("kl_trivial", 0.0)
        return (
            f"errs as that of {in_draws(self['draws'])} draws, held out: KL {kl:.2g} "
            f"nats (trivial: {trivial:.2g})"
        )

    def _start(self) -> str:
        if "earlier" not in self:
            text = f"{_STARTS[self['start']]}: {self['start_reason']}"
            return shorten(text, COLUMNS - 10, placeholder=" ...")
        found = self["earlier"]
        own = found.get("draws_before")
        before = "" if own is None else f", of its own as that of {in_draws(own)}"
        return f"a student whose mean errs as that of {in_draws(found['draws'])} draws{before}"

    def _energy(self) -> str:
        mine, theirs = (self.get(f"energy_{name}", 0.0) for name in ("to_posterior", "of_draws"))
        return f"{mine:.2g} held out; {self.get('num_judging', 0):,} draws have {theirs:.2g}"

    def _epistemic(self) -> str:
        if "sites" in self and not {"mutual_information", "epistemic_share"} & set(self):
            return self._epistemic_by_site()
        name = "mutual_information" if "mutual_information" in self else "epistemic_share"
        mine, theirs = self.get(name, 0.0), self.get(f"{name}_teacher", 0.0)
        share = f"{mine / theirs:.3g} x the teacher's" if theirs else f"{mine:.2g}, the teacher's"
        if name == "mutual_information":
            return f"mutual information {share} {theirs:.2g} nats"
        return f"share of the variance of y {share} {theirs:.2g}"

    def _epistemic_by_site(self) -> str:
        """The numbers of labels beside real numbers."""
        found = []
        for site, row in self["sites"].items():
            name = "mutual_information" if "mutual_information" in row else "epistemic_share"
            mine, theirs = row[name], row[f"{name}_teacher"]
            found.append(f"{site} {mine / theirs:.3g} x" if theirs else f"{site} {mine:.2g}")
        return f"{', '.join(found)} the teacher's"

    def _joint(self) -> str:
        """The numbers of a student whose draws are joint over inputs."""
        found = self["joint"]
        near = (
            "functions of the teacher's joint distribution, not its own one for one"
            if found.get("waves")
            else f"{found['kl']:.2g} from the teacher's, which are {found['kl_between']:.2g} apart"
        )
        return f"{found['num_draws']} draws, {near}; {found['spread']:.3g} x their spread"

    def _critic(self) -> str:
        """What an adversarial loss has to say for itself."""
        found = self["critic"]
        exact = f" of exactly {found['exact']:.2g}" if "exact" in found else ""
        what = (
            f"proves W1 {found['value']:.2g}{exact}; on the wrong side at "
            f"{100 * found['negative_gain']:.0f} % of inputs, mean slope {found['slope']:.2g}"
        )
        return f"collapsed run; {what}" if collapsed(self) else what

    def _spent(self) -> str:
        spent = self.get("spent", {})
        seconds = spent.get("seconds", 0.0)
        share = spent.get("teacher_seconds", 0.0) / seconds if seconds else 0.0
        steps = f"{spent.get('steps', 0):,} steps in {seconds:.3g} s"
        asked = f"; {spent['queries']:,} queries" if "queries" in spent else ""
        return f"{steps}, {100 * share:.0f} % of it the teacher's{asked}"

    def _kept(self) -> str:
        what = str(self.get("kept", "?")).partition(":")[0].partition(",")[0]
        return f"{what}; {self._more()}"

    def _more(self) -> str:
        """What more steps would bring."""
        spent = self.get("spent", {})
        steps, most = spent.get("steps", 0), spent.get("num_steps", 0)
        if self["draws"] >= MOST_DRAWS:
            return "its mean cannot be distinguished from a perfect student's"
        if spent and not most:
            return "no step was needed"
        if steps < most:
            return f"at rest after {steps:,} of {most:,} steps: more would bring little"
        return f"the last quarter of the steps took {100 * last_gain(self):.0f} % off its KL"


def work(history: list[dict[str, Any]], num_steps: int | None, **more: float) -> dict[str, Any]:
    """The entry "spent": steps taken in all phases, those asked for, seconds and queries.

    Where seconds were asked for, as many steps were as there was time for.
    """
    taken: dict[str, int] = {}
    for record in history:
        taken[record["phase"]] = record["step"]
    steps = sum(taken.values())
    return {"steps": steps, "num_steps": steps if num_steps is None else num_steps, **more}


def warn_of_worthless(report: Mapping[str, Any]) -> None:
    """Warn where a student is nearer to one answer for all inputs than to a perfect student.

    Where one answer is all that there is to learn a good student is not warned of. A run against a
    critic that has collapsed is warned of, too.
    """
    _warn_of_collapse(report)
    least, alike = report["kl_attainable"], report["kl_trivial"]
    kl = report["kl_ratio"] * least
    if kl > WORTHLESS * least and kl > (least + alike) / 2:
        warn_user(
            f"The student has learned little: its held-out KL of {kl:.2g} nats is nearer to the "
            f"{alike:.2g} of one answer for all inputs than to the {least:.2g} of a perfect one; "
            "take more steps (`num_steps`), another `learning_rate` or another `guide`.",
            FidelityWarning,
        )


def collapsed(report: Mapping[str, Any]) -> bool:
    """Whether a student that was taught against a critic has lost the teacher's uncertainty."""
    mine, theirs = (report.get(f"mutual_information{end}") for end in ("", "_teacher"))
    if "critic" not in report or not theirs or mine is None:
        return False
    return not COLLAPSED <= mine / theirs <= 1 / COLLAPSED


def _warn_of_collapse(report: Mapping[str, Any]) -> None:
    """Warn where an adversarial run has collapsed."""
    if collapsed(report):
        share = report["mutual_information"] / report["mutual_information_teacher"]
        warn_user(
            f"The run against a critic has collapsed: the student's mutual information is "
            f"{share:.2g} times the teacher's. Take more steps (`num_steps`), a lower "
            "`learning_rate`, more `critic_steps`, or leave `warm_start` True.",
            FidelityWarning,
        )
