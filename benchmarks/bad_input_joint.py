"""Bad questions about several inputs, and of students as teachers, for ``bad_input``."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from benchmarks.bad_input import Cases
from benchmarks.bad_input_distill import X, counts, draws, real, short
from benchmarks.bad_input_student import INPUTS, regressor, student
from pyro_opu import joint
from pyro_opu.predictive.folder import model_card

NAN = math.nan
CASES = Cases()
add = CASES.add
#: Functions of `pyro_opu.joint`, with what else they need.
QUESTIONS: dict[str, Any] = {
    "batch_bald": partial(joint.batch_bald, size=2),
    "joint_information": partial(joint.joint_information, batches=torch.tensor([[0, 1]])),
    "total": partial(joint.total, weights=torch.ones(4)),
    "covariance": partial(joint.covariance, weights=torch.ones(4)),
    "ranking": partial(joint.ranking, weights=torch.arange(4.0)),
    "thompson": partial(joint.thompson, size=2, weights=torch.arange(4.0)),
}
for _name, _ask in QUESTIONS.items():
    named = f"joint.{_name}"
    add(named, "a marginal student", lambda ask=_ask: ask(student(), X))
    add(named, "a guide", lambda ask=_ask: ask(student().guide, X))
    add(named, "draws that are independent", lambda ask=_ask: ask(independent, X))
    CASES.each(named, partial(_ask, draws, X), "seed", "0", 2.5)
    CASES += [
        (named, f"x {what}", partial(_ask, draws, x))
        for what, x in INPUTS.items()
        if what not in ("of another width", "of another rank", "1-d", "None", "of integers")
    ]
for _name in ("batch_bald", "joint_information", "total", "covariance", "ranking"):
    CASES.each(f"joint.{_name}", partial(QUESTIONS[_name], draws, X), "num_draws", 0, 9, "3")
for _name in ("batch_bald", "joint_information"):
    add(f"joint.{_name}", "a real y", lambda n=_name: QUESTIONS[n](real, X))
for _name in ("total", "covariance", "ranking"):
    add(f"joint.{_name}", "no weights of four classes", getattr(joint, _name), draws, X)
    CASES.each(f"joint.{_name}", partial(getattr(joint, _name), draws, X), "weights",
               torch.ones(3), torch.full((4,), NAN), "first", [1.0, 2.0])  # fmt: skip
CASES.each("joint.batch_bald", partial(joint.batch_bald, draws, X), "size", 0, 41, 2.5, "2")
CASES.each("joint.batch_bald", partial(joint.batch_bald, draws, X, 2), "num_labellings", 0, 2.5)
CASES.each("joint.thompson", partial(joint.thompson, draws, X), "size", 0, 2.5, "2",
           weights=torch.arange(4.0))  # fmt: skip
CASES.each("joint.joint_information", partial(joint.joint_information, draws, X), "batches",
           torch.tensor([[0, 40]]), torch.tensor([-1]), torch.tensor([0.5]), [[0, 1]],
           torch.empty(0, 2, dtype=torch.long))  # fmt: skip

#: Students as teachers.
for _what, _x in INPUTS.items():
    add("OnePassPredictive.probs", f"x {_what}", lambda x=_x: student().probs(x))
for _count in (0, -1, 2.5, "3", True):
    add("OnePassPredictive.probs", f"num_draws={_count!r}", lambda c=_count: student().probs(X, c))
for _seed in (2.5, "0"):
    add("OnePassPredictive.probs", f"seed={_seed!r}", lambda s=_seed: student().probs(X, seed=s))
add("OnePassPredictive.probs", "of a regressor", lambda: regressor().probs(X))
add("distill", "guide='joint' of draws made afresh", lambda: short(independent, guide="joint"))
add("distill", "guide='joint' of counts", lambda: short(of_counts(), guide="joint"))
add("OnePassPredictive.save", "a card for one file", lambda: student().save("s", card="text"))
add("OnePassPredictive.save", "a folder in a missing one", lambda: student().save("a/b/"))
add("model_card", "no student", model_card, 3)


def independent(x: torch.Tensor, num_draws: int) -> torch.Tensor:
    """Draws that no two rows share."""
    return torch.rand(num_draws, len(x), 4).softmax(-1)


def of_counts() -> Any:
    from pyro.infer import Predictive

    return Predictive(counts, {"w": torch.randn(8)})
