"""Class labels, and successes of trials: draws are class probabilities, in logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from pyro_opu.checks import ArgumentError, positive_int, simplex_tolerance
from pyro_opu.distributions import (
    Implicit,
    PredictiveDirichlet,
    PredictiveTrials,
    SimplexDistribution,
)
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE
from pyro_opu.distributions.implicit import FromNoise
from pyro_opu.parts.base import Part, Words
from pyro_opu.programs.sites import site_kind, trials_of, unwrap, wrapped_log_probs
from pyro_opu.rng import drawing

__all__ = ["ClassPart", "SimplexPart", "TrialsPart", "check_one_trial", "unlike_trials"]

#: Draws, and rows of each, that every call checks to sum to one, as what is read off logits does.
SUMMED = (2**4, 2**6)


class SimplexPart(Part):
    """Numbers whose draws are points of a simplex."""

    on_simplex = True
    answers = SimplexDistribution
    family = PredictiveDirichlet
    words = Words(
        "class probabilities", "a Dirichlet", "class probabilities", "the class probabilities"
    )
    noun = "class label"
    extra = "probs"
    held_within = 1e-5

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.width,)

    @staticmethod
    def said(fn: Distribution) -> Tensor:
        return wrapped_log_probs(fn)

    def checked(self, draws: Tensor, sums: bool) -> Tensor:
        if math.isnan(draws.sum()):
            raise ArgumentError(
                f"`source`'s class probabilities{self.at_site} must be numbers; got NaN. Check the "
                "posterior draws (torch.isfinite) and the model at these inputs."
            )
        if sums:
            self._check_sums(draws)
        return draws.clamp_min(torch.finfo(draws.dtype).min / 4)

    def _check_sums(self, log_probs: Tensor) -> None:
        """Refuse rows that do not sum to one; a few are looked at."""
        draws, rows = (log_probs.shape[axis] // SUMMED[axis] for axis in (0, 1))
        some = log_probs[:: 1 + draws, :: 1 + rows]
        off = float(some.logsumexp(-1).expm1().abs().max())
        if off > simplex_tolerance(some.dtype):
            raise ArgumentError(
                f"`source` must give probabilities{self.at_site}, rows that sum to 1; got a sum "
                f"off by {off:.3g}. Does its model pass numbers outside [0, 1] as probs? Pass "
                "logits, or a softmax."
            )

    def plain(self, draws: Tensor) -> Tensor:
        """See its base; those of half precision in single, as they hardly sum to one."""
        if draws.dtype in (torch.float16, torch.bfloat16):
            draws = draws.float().log_softmax(-1)
        return draws.exp()

    def mixed(self, log_weights: Tensor, draws: Tensor) -> Tensor:
        return torch.logsumexp(log_weights[..., None] + draws, 0)

    def apart(self, one: Tensor, two: Tensor) -> float:
        """See its base; of class probabilities."""
        return float((one.exp() - two.exp()).abs().max())

    def shown(self, draws: Tensor) -> dict[str, Tensor]:
        probs = draws.exp()
        return {"probs": probs, **({"prob1": probs[..., 1]} if self.width == 2 else {})}

    def draws_of(self, answer: Any, count: int) -> Tensor:
        log_probs: Tensor = answer.log_rsample((count,))
        return log_probs

    def marginal(self, draws: Tensor, source: FromNoise) -> Implicit:
        found = Implicit(source, *draws.shape[1:])
        found.log_points = draws
        return found

    @property
    def num_outputs(self) -> int:
        return self.width + 1  # logits, and a log concentration

    def start(self, draws: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
        within = (draws * (1 - draws)).sum(-1).mean((0, 1))
        between = draws.var(0).sum(-1).mean(0).clamp_min(1e-12)
        concentration = (within / between).clamp(1e-3, 1e6)
        means = draws.mean((0, 1)).clamp_min(1e-6)
        return torch.cat([means, concentration[:, None]], -1).log()

    def answer(self, outputs: Tensor, *units: Tensor) -> PredictiveDirichlet:
        log_concentration = soft_clamp(outputs[:, -1], *LOG_CONCENTRATION_RANGE)
        log_mean = outputs[:, :-1].log_softmax(-1)
        return PredictiveDirichlet(log_mean, log_concentration, validate_args=False)

    def made(self, outputs: Tensor, *units: Tensor) -> Tensor:
        return outputs.log_softmax(-1)


@dataclass(frozen=True)
class ClassPart(SimplexPart):
    """One of C classes at every input, or several labels.

    Attributes:
        num_classes: C.
    """

    kind = "classes"
    site_kinds = ("label", "onehot", "probs", "prob1")
    dtype = "int64"

    num_classes: int = 2

    def __post_init__(self) -> None:
        positive_int("num_classes", self.num_classes, 2)

    def __str__(self) -> str:
        return f"{self.num_classes} classes"

    @classmethod
    def takes(cls, fn: Distribution) -> bool:
        return site_kind(fn) is not None and trials_of(fn) == 1

    @property
    def width(self) -> int:
        return self.num_classes

    def read(self, fn: Distribution) -> Tensor:
        check_one_trial(fn, self.site)  # at all rows, as the first may have one each
        return self.said(fn)

    def kind_at(self, fn: Distribution) -> str:
        return "onehot" if site_kind(fn) in ("onehot", "multinomial") else "label"

    def values(self, kind: str, drawn: Tensor, parameters: Tensor) -> Tensor:
        if kind == "onehot":
            return one_hot(drawn, self.num_classes)
        if kind == "label":
            return drawn
        return parameters if kind == "probs" else parameters[..., 1]

    def observed(self, draws: Tensor, trials: Tensor | None) -> tuple[Tensor, Tensor]:
        probs = draws.exp()
        with drawing(probs.device) as generator:
            labels = torch.multinomial(probs.flatten(0, 1), 1, generator=generator)
        return labels.reshape(len(probs), -1), probs


@dataclass(frozen=True)
class TrialsPart(SimplexPart):
    """Successes of so many trials.

    Attributes:
        trials: How many.
        trials_column: The column of the inputs ``(N, D)`` that says how many, instead.
    """

    kind = "trials"
    site_kinds = ("value", "probs", "prob1")

    trials: int = 1
    trials_column: int | None = None

    def __post_init__(self) -> None:
        positive_int("trials", self.trials)

    @classmethod
    def takes(cls, fn: Distribution) -> bool:
        return site_kind(fn) == "binomial" and trials_of(fn) != 1

    @property
    def width(self) -> int:
        return 2

    def read(self, fn: Distribution) -> Tensor:
        """Numbers of trials that differ at rows that were not looked at before are refused."""
        count = torch.as_tensor(unwrap(fn).total_count)
        if self.trials_column is None and bool((count != self.trials).any()):
            raise unlike_trials(self.site)
        return self.said(fn)

    def values(self, kind: str, drawn: Tensor, parameters: Tensor) -> Tensor:
        if kind == "probs":
            return torch.stack([1 - parameters, parameters], -1)
        return drawn if kind == "value" else parameters

    def trials_at(self, x: Tensor) -> Tensor:
        if self.trials_column is None:
            return x.new_full((x.shape[0] * self.columns,), self.trials)
        return x[:, self.trials_column].repeat_interleave(self.columns)

    def whole(self, answer: Any, trials: Tensor | None) -> PredictiveTrials:
        assert trials is not None
        return PredictiveTrials(answer.matched(), trials)

    def observed(self, draws: Tensor, trials: Tensor | None) -> tuple[Tensor, Tensor]:
        assert trials is not None
        p = draws[..., 1].exp()
        with drawing(p.device) as generator:
            return torch.binomial(trials.expand_as(p).contiguous(), p, generator), p


def check_one_trial(fn: Distribution, site: str) -> None:
    """Refuse counts: class probabilities describe one trial."""
    trials = trials_of(fn)
    if trials != 1:
        raise ArgumentError(
            f"`source`'s site '{site}' must be a one-trial {type(unwrap(fn)).__name__}; got "
            f"total_count={trials}. Use Categorical or Bernoulli, with one row per trial."
        )


def unlike_trials(site: str) -> ValueError:
    return ArgumentError(
        f"`source`'s site '{site}' must have the same total_count in all rows, or one that is an "
        "input: a student answers without the model. Pass it as one of the inputs, "
        "x=(..., total_count), float."
    )
