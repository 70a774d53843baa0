"""Cross-entropy of the student's mean; the spread is not taught."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.distributions import SimplexDistribution, as_answer
from pyro_opu.objectives.base import Objective


class CrossEntropy(Objective):
    r"""Cross-entropy of the student's mean to the teacher's mean, in nats.

    .. math:: -\mathbb{E}_x \sum_k \bar\pi_k(x) \log h_k(x)

    It teaches h alone. With two networks g keeps what the warm start gave; with a shared trunk it
    moves along with the features.

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, eq. 4.
    """

    sufficient = True

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"cross_entropy"}``."""
        return self.parts_at(student, self.statistics(draws), x)

    def statistics(self, draws: Tensor) -> dict[str, Tensor]:
        """``{"mean"}``."""
        return {"mean": draws.mean(0)}

    def parts_at(
        self, student: SimplexDistribution, statistics: dict[str, Tensor], x: Tensor
    ) -> dict[str, Tensor]:
        """``{"cross_entropy"}``."""
        return {"cross_entropy": cross_entropy(student, statistics["mean"])}


def cross_entropy(student: SimplexDistribution, mean: Tensor) -> Tensor:
    """Expected negative log-likelihood of labels drawn from the teacher's predictive, in nats.

    At least the entropy of the teacher's ``mean`` ``(N, C)``.
    """
    return -(mean * as_answer(student).log_mean).sum(-1).mean()
