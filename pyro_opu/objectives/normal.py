r"""Losses of a regression student, in closed form: nothing is drawn from the student.

The teacher's draws are ``(S, N, 2)``: means :math:`f_s(x)` and :math:`\log\sigma_s(x)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.checks import in_range
from pyro_opu.distributions.normal_mixture import RealAnswer
from pyro_opu.metrics.normals import FLOOR, crps_of_mean, crps_of_y
from pyro_opu.objectives import Objective

__all__ = [
    "NormalCRPS",
    "NormalMoments",
    "RegressionObjective",
    "as_regression_objective",
    "expected_nll",
]


def expected_nll(mean: Tensor, log_variance: Tensor, draws: Tensor) -> Tensor:
    r"""Expected negative log-likelihood of y under one normal, without its constant, in nats.

    .. math::
        L(x) = \tfrac12 \operatorname{mean}_s \left[\alpha +
            e^{-\alpha} \left\{(f_s - \mu)^2 + \sigma_s^2\right\}\right], \qquad
        \partial_\mu L = e^{-\alpha} (\mu - \bar f), \quad
        \partial_\alpha L = \tfrac12 \left[1 - e^{-\alpha} \operatorname{mean}_s
            \left\{(f_s - \mu)^2 + \sigma_s^2\right\}\right]

    Least where :math:`\mu` and :math:`e^\alpha` are the mean and the total variance of the
    teacher's y. Exact: the expectation over y given a draw is in closed form.

    Args:
        mean: :math:`\mu(x)`, ``(N,)``.
        log_variance: :math:`\alpha(x)`, ``(N,)``.
        draws: ``(S, N, 2)``, S of at least 1.

    Returns:
        The loss per input, ``(N,)``.

    Example:
        >>> import torch
        >>> draws = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])  # f = 1 and 3, variance 1
        >>> expected_nll(torch.tensor([2.0]), torch.tensor([2.0]).log(), draws)  # (log 2 + 1) / 2
        tensor([0.8466])

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, eq. 5 and 6 (the
        gradients) and the display before them.
    """
    f, noise = draws[..., 0], _noise(draws)
    squares = ((f - mean).square() + noise).mean(0)
    return (log_variance + (-log_variance).exp() * squares) / 2


class RegressionObjective(Objective):
    """A loss between a student's answers and a teacher's draws of real y; see its base class."""

    def parts(self, student: RealAnswer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Named terms of the loss, each a scalar; their sum is the loss.

        Args:
            student: At N inputs.
            draws: ``(S, N, 2)``.
            x: Inputs ``(N, ...)``.
        """
        raise NotImplementedError


class NormalMoments(RegressionObjective):
    r"""The loss that the teacher's mean, aleatoric and epistemic variance minimise, each apart.

    .. math::
        \tfrac12 e^{-\alpha} (f_s - \mu)^2
        + \tfrac12 \left[\alpha_a + e^{-\alpha_a} \sigma_s^2\right]
        + \tfrac12 \left[\alpha_e + e^{-\alpha_e} v\right], \qquad
        e^\alpha = e^{\alpha_a} + e^{\alpha_e} \text{ held}

    averaged over draws and inputs. The first term has the gradient of eq. 5; the variance of eq. 6
    is divided into its two parts. v is the draws' own variance, unbiased, so that an error of
    :math:`\mu` is not taken for epistemic uncertainty; from a single draw there is none, and v is
    :math:`(f_s - \mu)^2` with :math:`\mu` held.

    References:
        Korattikara et al. (2015), eq. 5 and 6; the division is this project's.
    """

    def parts(self, student: RealAnswer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"mean", "aleatoric", "epistemic"}``."""
        f = draws[..., 0]
        squares = (f - student.mean).square().mean(0)
        spread = f.var(0) if len(f) > 1 else squares.detach()
        weight = (-student.log_variance).exp().detach()
        return {
            "mean": (weight * squares).mean() / 2,
            "aleatoric": _half_nll(student.log_aleatoric, _noise(draws).mean(0)).mean(),
            "epistemic": _half_nll(student.log_epistemic, spread).mean(),
        }


class NormalCRPS(RegressionObjective):
    r"""Continuous ranked probability score of y, and of its mean f, against the teacher.

    .. math::
        \frac{1}{s_y}\left(\mathbb{E}|Y_q - Y_p| - \tfrac12 \mathbb{E}|Y_q - Y_q'|\right)
        + \frac{1}{s_f}\left(\mathbb{E}|f_q - f_p| - \tfrac12 \mathbb{E}|f_q - f_q'|\right)
        + \lambda L_{\text{moments}}

    The first two are half the energy distance up to a constant of the teacher, exact for mixtures
    of normals. That of f is needed, since y alone does not say which part of its variance is
    epistemic. :math:`s_y` is the student's own deviation of y, and :math:`s_f` that of f but at
    least a tenth of :math:`s_y`; both are held, so that inputs count alike. The third,
    :class:`NormalMoments` of the student's normal, keeps the variances where the score hardly feels
    them, in heavy tails. A mixture can make all three smallest at once; one normal compromises
    where the teacher's y is not normal.

    Args:
        moments: :math:`\lambda`.

    Raises:
        ValueError: a negative weight.

    References:
        Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and estimation,
        eq. 21 (the score by expectations).
    """

    learning_rate = 3e-4
    most_draws = 128  # the loss costs more than so many cheap draws do

    def __init__(self, moments: float = 0.1) -> None:
        super().__init__()
        self.moments = in_range("moments", moments, 0)

    def parts(self, student: RealAnswer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"crps_of_y", "crps_of_mean"}``, in deviations, and the weighted moments."""
        normal, parts = student.normal(), student.components()
        wide = normal.scale.detach()
        narrow = torch.maximum((normal.log_epistemic.detach() / 2).exp(), FLOOR * wide)
        moments = NormalMoments().parts(normal, draws, x)
        return {
            "crps_of_y": (crps_of_y(parts, draws) / wide).mean(),
            "crps_of_mean": (crps_of_mean(parts, draws) / narrow).mean(),
            "moments": self.moments * torch.stack(list(moments.values())).sum(),
        }


def _noise(draws: Tensor) -> Tensor:
    """The noise's variance, ``(S, N)``."""
    return (2 * draws[..., 1]).exp()


def _half_nll(log_variance: Tensor, squares: Tensor) -> Tensor:
    """Of a normal, without its constant; least where the variance is the mean of the squares."""
    return (log_variance + (-log_variance).exp() * squares) / 2


_BY_NAME: dict[str, type[RegressionObjective]] = {
    "moments": NormalMoments,
    "crps": NormalCRPS,
}


def as_regression_objective(loss: str | Objective) -> RegressionObjective:
    """The objective of that name, or the objective itself.

    Args:
        loss: "moments", "crps", or a :class:`RegressionObjective`.

    Raises:
        ValueError: an unknown name, such as that of a loss for classes.
        TypeError: neither a name nor an objective, or an objective for classes.
    """
    if isinstance(loss, RegressionObjective):
        return loss
    if isinstance(loss, str) and loss in _BY_NAME:
        return _BY_NAME[loss]()
    error = ValueError if isinstance(loss, str) else TypeError
    found = repr(loss) if isinstance(loss, str) else type(loss).__name__
    raise error(
        f"`loss` must be one of {sorted(_BY_NAME)} or a RegressionObjective, as the teacher's y is "
        f"real; got {found}. Leave it out to take the default."
    )
