"""Bad questions about several inputs, and joint students that cannot be."""

from functools import partial
from typing import Any

import torch
from pyro.infer import Predictive

from bad_calls.distilling import INPUTS, NAN, SCALAR, X, counts, draws, real, short
from bad_calls.students import student
from bad_calls.table import arguments, calls, values, without
from pyro_opu import joint
from pyro_opu.joint import joint_draws
from pyro_opu.predictive.folder import model_card


def independent(x: torch.Tensor, num_draws: int) -> torch.Tensor:
    """Draws that no two rows share."""
    return torch.rand(num_draws, len(x), 4).softmax(-1)


#: Functions of `pyro_opu.joint`, with what else they need.
QUESTIONS: dict[str, Any] = {
    "batch_bald": partial(joint.batch_bald, size=2),
    "joint_information": partial(joint.joint_information, batches=torch.tensor([[0, 1]])),
    "total": partial(joint.total, weights=torch.ones(4)),
    "covariance": partial(joint.covariance, weights=torch.ones(4)),
    "ranking": partial(joint.ranking, weights=torch.arange(4.0)),
    "thompson": partial(joint.thompson, size=2, weights=torch.arange(4.0)),
}
WEIGHTS = {
    "of 3": torch.ones(3),
    "of NaN": torch.full((4,), NAN),
    "a name": "first",
    "a list": [1.0],
}
# fmt: off
for name, ask in QUESTIONS.items():
    calls(f"joint.{name}", {
        "a marginal student": lambda ask=ask: ask(student(), X),
        "a guide": lambda ask=ask: ask(student().guide, X),
        "draws that are independent": lambda ask=ask: ask(independent, X)})
    values(f"joint.{name}", partial(ask, draws, X), seed=["0", 2.5])
    values(f"joint.{name}", partial(ask, joint_draws(draws, X)), x={"beside draws": X})
    values(f"joint.{name}", partial(ask, draws),
        x=without(INPUTS, "of another width", "of another rank", "1-d", "None", "of integers"))
    if name != "thompson":
        values(f"joint.{name}", partial(ask, draws, X), num_draws=[0, 1, 9, "3"])
    if name in ("batch_bald", "joint_information"):
        arguments(f"joint.{name}", ask, {"a real y": (real, X)})
    if name in ("total", "covariance", "ranking"):
        bare = getattr(joint, name)
        arguments(f"joint.{name}", bare, {"no weights of four classes": (draws, X)})
        values(f"joint.{name}", partial(bare, draws, X), weights=WEIGHTS)
BALD = partial(joint.batch_bald, draws, X)
values("joint.batch_bald", BALD, size=[0, 41, 2.5, "2"])
values("joint.batch_bald", partial(BALD, 2), num_labellings=[0, 2.5])
THOMPSON = partial(joint.thompson, draws, X, weights=torch.arange(4.0))
values("joint.thompson", THOMPSON, size=[0, 2.5, "2"])
values(joint.joint_information, draws, X,
    batches={"beyond the rows": torch.tensor([[0, 40]]), "below zero": torch.tensor([-1]),
        "of floats": torch.tensor([0.5]), "a list": [[0, 1]],
        "without one": torch.empty(0, 2, dtype=torch.long)})
calls("distill, joint", {
    "of draws made afresh": lambda: short(independent, guide="joint"),
    "of counts": lambda: short(Predictive(counts, SCALAR), guide="joint")})
arguments(model_card, {"no student": (3,)})
