"""The Wasserstein evidence bound, with a learned witness and a gradient penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pyro_opu.checks import check_bool, in_range, instance_of, one_of, positive_float, positive_int
from pyro_opu.distributions import SimplexDistribution, as_answer
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.objectives.base import Adversarial
from pyro_opu.objectives.critic import MetaCritic, dual_norm, witness
from pyro_opu.objectives.cross_entropy import cross_entropy
from pyro_opu.objectives.energy import energy_distance_loss, joint_energy_distance


class WassersteinELBO(Adversarial):
    r"""An evidence bound with a transport divergence where an ELBO has its KL.

    .. math::
        \mathbb{E}_x\,\mathbb{E}_{p(y|x,D)} \log h_y(x)
        \;-\; \beta\; \mathbb{E}_x\, W_1\big(p(\pi|x,D),\; \mathrm{Dir}(\alpha(x))\big)

    W1 at an input is the supremum over 1-Lipschitz witnesses (Cui et al. 2019, eq. 5); a
    :class:`MetaCritic` gives all witnesses at once (eq. 9), held to slope 1 by a penalty on the
    exact dual norm of its gradient on the simplex. ``likelihood=0``, ``residual=False``,
    ``two_sided=True`` is the paper's own objective, stepped as in its Algorithm 1.

    The penalty is soft: the term exceeds W1 by a factor of about :math:`1 + W_1 / 2\lambda`. A
    two-sided one drives every slope to 1, so that a witness cannot turn around. It reads no signs,
    so :math:`\psi` and :math:`-\psi` cost the same, and of the two the better one counts: the gain
    of an input is :math:`|\mathbb{E}_p\psi - \mathbb{E}_q\psi|`, and a witness that began on the
    wrong side is right at once. Where the two means agree it is still blind to the spread, which is
    all that g is about.

    With ``residual`` the critic learns what to add to the witness of the energy distance,
    :math:`\psi(\pi) = \tfrac12(\mathbb{E}_q\|\pi-\pi'\|_1 - \mathbb{E}_p\|\pi-\pi'\|_1)`, which is
    1-Lipschitz and right about the direction from the first step; the penalty then holds the sum.
    The student's gradient is that of :math:`-\mathbb{E}_q\psi` with the witness held.

    Args:
        beta: Weight of the transport term.
        likelihood: Weight of the expected log-likelihood; 0 for the paper's objective.
        energy: Weight of the joint energy distance of whole draws beside it, for guides from noise.
        penalty: :math:`\lambda`, weight of the gradient penalty.
        critic: A ``MetaCritic`` or any module ``(x, points (S, N, C)) -> (S, N)``; by default one
            sized to the inputs.
        two_sided: Penalise slopes below 1 too, as the paper does.
        residual: Whether the critic adds to the energy distance's witness.
        ground: Ground metric of the simplex, "l1" (the paper's) or "l2".
        num_samples: Student draws per input.
        critic_steps: :math:`T_{wit}`, critic steps per student step.
        critic_warmup: Critic steps before the student's first.
        critic_learning_rate: Adam's, for the critic.

    Raises:
        ValueError: a residual with "l2".

    References:
        Cui, Yao, Li, Chan and Xue (2019), eq. 5-9 and Algorithm 1. Differences: the likelihood
        term, the exact dual norm, the one-sided penalty (Petzka, Fischer and Lukovnikov 2018, On
        the regularization of Wasserstein GANs), and the meta-network's start.
    """

    learning_rate = 3e-5
    alternate = True

    def __init__(
        self,
        beta: float = 1.0,
        likelihood: float = 1.0,
        penalty: float = 1.0,
        critic: torch.nn.Module | None = None,
        *,
        energy: float = 0.0,
        two_sided: bool = False,
        residual: bool = True,
        ground: Literal["l1", "l2"] = "l1",
        num_samples: int = 32,
        critic_steps: int = 2,
        critic_warmup: int = 150,
        critic_learning_rate: float = 1e-3,
    ) -> None:
        super().__init__()
        one_of("ground", ground, ("l1", "l2"))
        check_bool("two_sided", two_sided)
        check_bool("residual", residual)
        kinds = (torch.nn.Module, type(None))
        instance_of("critic", critic, kinds, "a module or None", "Leave it out for a MetaCritic.")
        if residual and ground != "l1":
            raise ValueError('`residual` needs ground="l1"; pass residual=False for "l2".')
        self.beta = in_range("beta", beta, 0)
        self.likelihood = in_range("likelihood", likelihood, 0)
        self.energy = in_range("energy", energy, 0)
        self.penalty = in_range("penalty", penalty, 0)
        self.critic = critic
        self.two_sided, self.residual, self.ground = two_sided, residual, ground
        self.num_samples = positive_int("num_samples", num_samples, 2)
        self.critic_steps = positive_int("critic_steps", critic_steps)
        self.critic_warmup = positive_int("critic_warmup", critic_warmup)
        self.critic_learning_rate = positive_float("critic_learning_rate", critic_learning_rate)

    def prepare(self, x: Tensor, num_classes: int) -> None:
        """Make the default critic for inputs like ``x``, unless there is one."""
        if self.critic is None:
            self.critic = MetaCritic(x, num_classes).to(x.device)

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"log_likelihood" (negated), "wasserstein"}`` under the current witness."""
        samples, weights = as_answer(student).stratified_rsample(self.num_samples)
        self.prepare(x, draws.shape[-1])
        witness_of = self._witness_at(x)
        mine = witness_of(samples)
        if weights is not None:
            mine = weights * mine.unflatten(0, (len(weights), -1)).mean(1) * len(weights)
        gain = self._better(witness_of(draws).mean(0) - mine.mean(0)).mean()
        if self.residual:
            # The witness holds still while the student descends: of the energy distance, which
            # depends on the student through the witness too, half the gradient is the student's.
            half = energy_distance_loss(samples, draws, weights).mean() / 2
            gain = gain + (half + half.detach()) / 2
        parts = {"wasserstein": self.beta * gain}
        if self.energy:
            joint = joint_energy_distance(samples, draws, weights)
            parts["energy"] = self.energy * joint.mean()
        if self.likelihood:
            parts["log_likelihood"] = self.likelihood * cross_entropy(student, draws.mean(0))
        return parts

    def critic_loss(self, samples: Tensor, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"gain" (negated), "penalty"}``; the slope is taken at detached points."""
        self.prepare(x, draws.shape[-1])
        witness_of = self._witness_at(x)
        gain = self._better(witness_of(draws).mean(0) - witness_of(samples).mean(0)).mean()
        pairs = min(len(samples), len(draws))
        mix = torch.rand(pairs, len(x), 1, dtype=draws.dtype, device=draws.device)
        points = mix * draws[:pairs] + (1 - mix) * samples[:pairs]
        slope = dual_norm(self.slopes(points, samples, draws, witness_of), self.ground)
        excess = slope - 1 if self.two_sided else (slope - 1).relu()
        return {"gain": -gain, "penalty": self.penalty * excess.square().mean()}

    def slopes(
        self, points: Tensor, samples: Tensor, draws: Tensor, witness_of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Gradient ``(S, N, C)`` of the whole witness at points of the simplex."""
        points = points.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(witness_of(points).sum(), points, create_graph=True)
        if self.residual:
            gradient = gradient + Marginals(samples).cdf(points) - Marginals(draws).cdf(points)
        return gradient

    @torch.no_grad()
    def witness_values(self, points: Tensor, samples: Tensor, draws: Tensor, x: Tensor) -> Tensor:
        """The whole witness ``(P, N)`` at points ``(P, N, C)``, up to a constant per input.

        Only a residual reads the draws of student and teacher.
        """
        values = self._witness_at(x)(points)
        if self.residual:
            gap = Marginals(samples).distance(points) - Marginals(draws).distance(points)
            values = values + gap / 2
        return values

    def _better(self, gain: Tensor) -> Tensor:
        """Gains ``(N,)``, each by the better of a witness and its negative, if both may be asked.

        A residual has the energy distance's direction, and a one-sided penalty lets others turn.
        """
        return gain.abs() if self.two_sided and not self.residual else gain

    def _witness_at(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The witness of each input as a function of points, its weights generated once."""
        critic = self.critic
        assert critic is not None
        if isinstance(critic, MetaCritic):
            weights = critic.weights(x)
            return lambda points: witness(points, weights)
        return lambda points: critic(x, points)
