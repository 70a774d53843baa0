"""Cross-entropy: the mean of the student only."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.distributions import Answer
from pyro_opu.objectives.base import Objective, cross_entropy


class CrossEntropy(Objective):
    r"""Cross-entropy of the student's mean to the teacher's mean, in nats.

    .. math:: -\mathbb{E}_x \sum_k \bar\pi_k(x) \log h_k(x)

    It teaches h alone (Bayesian Dark Knowledge's objective). With two networks g keeps what the
    warm start gave; with a shared trunk it moves along with the features.

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, eq. 4.
    """

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"cross_entropy"}``."""
        return {"cross_entropy": cross_entropy(student, draws)}
