"""The start of a student that is more than one Dirichlet: likelihood, then energy distance."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.checks import in_range
from pyro_opu.distributions import Answer
from pyro_opu.objectives.energy import EnergyDistance
from pyro_opu.objectives.likelihood import DirichletLikelihood

__all__ = ["LikelihoodFirst"]


class LikelihoodFirst(EnergyDistance):
    """Likelihood of the draws for the first steps, and the energy distance from there.

    The two make up for each other. The energy distance sees the marginal of every class and not
    their dependence, so that from scratch it may pair the wrong classes in the components of a
    mixture; the likelihood sees the whole density, but is a poor judge where the teacher's draws
    are not of the student's family, above all on an edge of the simplex. A student that has found
    the groups of draws by likelihood keeps them while the energy distance puts the rest right.

    :class:`~pyro_opu.objectives.likelihood.DirichletLikelihood` is the first, with its smoothing.

    Args:
        until: Share of the steps that the likelihood takes, in [0, 1].
        num_samples: Student draws per input, for the energy distance.
        likelihood: Weight of the expected log-likelihood of labels beside the energy distance.

    Raises:
        ValueError: a share outside [0, 1], or what :class:`EnergyDistance` refuses.

    Example:
        >>> import torch
        >>> from pyro_opu import PredictiveDirichlet
        >>> student = PredictiveDirichlet(torch.full((5, 3), 1 / 3).log(), torch.full((5,), 2.0))
        >>> objective, draws = LikelihoodFirst(), student.sample((10,))
        >>> for done in (0.0, 0.5):
        ...     objective.anneal(done)
        ...     print(list(objective.parts(student, draws, torch.zeros(5, 1))))
        ['negative_log_likelihood']
        ['energy', 'log_likelihood']
    """

    def __init__(self, until: float = 0.3, num_samples: int = 64, likelihood: float = 1.0) -> None:
        super().__init__(num_samples, likelihood)
        self.until = in_range("until", until, 0, 1, advice="It is a fraction of the steps.")
        self.first = DirichletLikelihood()
        self._progress = 0.0

    def anneal(self, progress: float) -> None:
        """Note the share of the training that is done."""
        self._progress = progress

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Those of the likelihood or, from ``until`` on, of the energy distance."""
        if self._progress < self.until:
            return self.first.parts(student, draws, x)
        return super().parts(student, draws, x)
