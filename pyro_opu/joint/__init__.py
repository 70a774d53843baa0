"""Questions about several inputs at once: they need draws that are joint over inputs.

The joint information of a batch and its greedy choice, sums and differences, rankings, Thompson
sampling. Every function takes ``(source, x, ...)``. The source is a posterior as
:func:`~pyro_opu.as_teacher` takes it, a regressor, or a student of ``distill(..., guide="joint")``;
a marginal student is refused.
"""

from pyro_opu.joint.draws import PoolDraws, joint_draws
from pyro_opu.joint.information import Batch, JointInformation, batch_bald, joint_information
from pyro_opu.joint.rankings import Ranking, ranking, thompson
from pyro_opu.joint.totals import Total, covariance, total

__all__ = [
    "batch_bald",
    "covariance",
    "joint_draws",
    "joint_information",
    "ranking",
    "thompson",
    "total",
]


def __dir__() -> list[str]:
    return sorted(__all__)
