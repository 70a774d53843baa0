"""The Wasserstein evidence bound, with a learned witness and a gradient penalty."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    check_bool,
    in_range,
    instance_of,
    one_of,
    positive_float,
    positive_int,
)
from pyro_opu.distributions import Answer, as_answer
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.objectives.base import Adversarial, Meeting, Scratch
from pyro_opu.objectives.critic import (
    Called,
    Generated,
    MetaCritic,
    Witness,
    dual_norm,
)
from pyro_opu.objectives.cross_entropy import cross_entropy
from pyro_opu.objectives.encounter import Encounter
from pyro_opu.objectives.energy import joint_energy_distance
from pyro_opu.objectives.examination import MOST_DRAWS, MOST_INPUTS, examined

#: Power of the share of a phase that is done, by which a two-sided penalty holds slopes from below.
#: Of MC dropout on digits a fifth of its weight already costs the student: by the fourth power it
#: ends at 1.5 times the least energy distance that it had on the way.
LATE = 12
#: Weight of a two-sided penalty. By 1, half of the slopes are too steep, and students of MC dropout
#: on digits end after 1,500 steps from cold as near as 47 draws, at 1.35 times the energy distance
#: of those by 10, as near as 67 draws.
TWO_SIDED_PENALTY = 10.0


class WassersteinELBO(Adversarial):
    r"""An evidence bound with a transport divergence where an ELBO has its KL.

    .. math::
        \mathbb{E}_x\,\mathbb{E}_{p(y|x,D)} \log h_y(x)
        \;-\; \beta\; \mathbb{E}_x\, W_1\big(p(\pi|x,D),\; \mathrm{Dir}(\alpha(x))\big)

    W1 at an input is the supremum over 1-Lipschitz witnesses (Cui et al. 2019, eq. 5); a
    :class:`MetaCritic` gives all witnesses at once (eq. 9), held to slope 1 by a penalty on the
    exact dual norm of its gradient on the simplex. ``likelihood=0``, ``residual=False``,
    ``two_sided=True`` is the paper's own objective. Without a warm start, ``distill(...,
    warm_start=False)``, both take rates, batches and steps of their own (``scratch``).

    Critic and student are stepped on the same draws (:meth:`meet`). A witness lives in the units of
    the draws at its input (``critic.Generated``), and so does the penalty if there is no
    residual, so that narrow draws are looked at as closely as wide ones. It is soft: the term
    exceeds W1 by a factor of up to about :math:`1 + 1/\lambda`. :meth:`examined` says what the
    witnesses prove.

    A two-sided penalty drives every slope to 1 and reads no signs: a witness on the wrong side, or
    of the wrong shape, could never turn. So it holds slopes from below more and more
    (:meth:`anneal`), and when it does, of :math:`\psi` and :math:`-\psi` the better one counts.

    With ``residual`` the critic learns what to add to the witness of the energy distance,
    :math:`\psi(\pi) = \tfrac12(\mathbb{E}_q\|\pi-\pi'\|_1 - \mathbb{E}_p\|\pi-\pi'\|_1)`, which is
    1-Lipschitz and right about the direction from the first step; the penalty then holds the sum.
    The student's gradient is that of :math:`-\mathbb{E}_q\psi` with the witness held.

    Args:
        beta: Weight of the transport term.
        likelihood: Weight of the expected log-likelihood; 0 for the paper's objective.
        energy: Weight of the joint energy distance of whole draws beside it, for guides from noise.
        penalty: :math:`\lambda`, weight of the gradient penalty; by default 1, and of a two-sided
            one 10, as of Gulrajani et al. (2017), from whom the paper has it.
        critic: A ``MetaCritic`` or any module ``(x, points (S, N, C)) -> (S, N)``; by default one
            sized to the inputs.
        two_sided: Penalise slopes below 1 too, as the paper does.
        residual: Whether the critic adds to the energy distance's witness.
        ground: Ground metric of the simplex, "l1" (the paper's) or "l2".
        num_samples: Student draws per input.
        critic_steps: :math:`T_{wit}`, critic steps per student step; by default 1 with a residual,
            whose direction is known, and 2 without.
        critic_warmup: Critic steps before the student's first.
        critic_learning_rate: Adam's, for the critic.

    Raises:
        ValueError: a residual with "l2".

    References:
        Cui, Yao, Li, Chan and Xue (2019), eq. 5-9 and Algorithm 1. Differences: the likelihood
        term, the exact dual norm, the one-sided penalty (Petzka, Fischer and Lukovnikov 2018, On
        the regularization of Wasserstein GANs), h and g in one step, and the meta-network's start.
    """

    learning_rate = 3e-5

    def __init__(
        self,
        beta: float = 1.0,
        likelihood: float = 1.0,
        penalty: float | None = None,
        critic: torch.nn.Module | None = None,
        *,
        energy: float = 0.0,
        two_sided: bool = False,
        residual: bool = True,
        ground: Literal["l1", "l2"] = "l1",
        num_samples: int = 32,
        critic_steps: int | None = None,
        critic_warmup: int = 150,
        critic_learning_rate: float = 4e-3,
    ) -> None:
        super().__init__()
        one_of("ground", ground, ("l1", "l2"))
        check_bool("two_sided", two_sided)
        check_bool("residual", residual)
        kinds = (torch.nn.Module, type(None))
        instance_of("critic", critic, kinds, "a module or None", "Leave it out for a MetaCritic.")
        if residual and ground != "l1":
            raise ArgumentError('`residual` needs ground="l1"; pass residual=False for "l2".')
        self._turned: Tensor  # read by recorded steps
        self.register_buffer("_turned", torch.ones(()), persistent=False)
        # Without a direction that is known the critic must learn faster than the student.
        self.scratch = Scratch(1.0 if residual else 0.5, 2 / 3 if residual else 1.0, 0.5)
        self.beta = in_range("beta", beta, 0)
        self.likelihood = in_range("likelihood", likelihood, 0)
        self.energy = in_range("energy", energy, 0)
        default = TWO_SIDED_PENALTY if two_sided else 1.0
        self.penalty = default if penalty is None else in_range("penalty", penalty, 0)
        self.critic = critic
        self.two_sided, self.residual, self.ground = two_sided, residual, ground
        self.num_samples = positive_int("num_samples", num_samples, 2)
        rounds = (1 if residual else 2) if critic_steps is None else critic_steps
        self.critic_steps = positive_int("critic_steps", rounds)
        self.critic_warmup = positive_int("critic_warmup", critic_warmup)
        self.critic_learning_rate = positive_float("critic_learning_rate", critic_learning_rate)

    def anneal(self, progress: float) -> None:
        """Let a two-sided penalty hold slopes from below more and more, wholly at the end.

        A witness whose slopes are all held at 1 cannot turn, and misses the spread.
        """
        self._turned.fill_(progress**LATE)

    def prepare(self, x: Tensor, num_classes: int) -> None:
        """Make the default critic for inputs like ``x``, unless there is one."""
        if self.critic is None:
            self.critic = MetaCritic(x, num_classes).to(x.device)

    def meet(self, student: Answer, draws: Tensor, x: Tensor) -> Encounter:
        samples, weights = as_answer(student).stratified_rsample(self.num_samples)
        return Encounter(x, draws, student, samples, weights)

    def parts_of(self, meeting: Meeting) -> dict[str, Tensor]:
        """``{"log_likelihood" (negated), "wasserstein"}`` under the current witness."""
        at = Encounter.of(meeting)
        gain = self._gain(self._witness_at(at)(at.both), at).mean()
        if self.residual:
            gain = gain + at.known_gain.mean()
        parts = {"wasserstein": self.beta * gain}
        if self.energy:
            joint = joint_energy_distance(at.samples, at.draws, at.weights)
            parts["energy"] = self.energy * joint.mean()
        if self.likelihood:
            mean = cross_entropy(at.student, at.draws.mean(0))
            parts["log_likelihood"] = self.likelihood * mean
        return parts

    def critic_loss(self, meeting: Meeting) -> dict[str, Tensor]:
        """``{"gain" (negated), "penalty"}``; the slope is taken at detached points."""
        at = Encounter.of(meeting).held()
        values, gradient = self._witness_at(at).with_gradient(at.points, at.where)
        if self.residual:
            gradient = gradient + at.known[:, at.where]
        slope = dual_norm(gradient, self.ground)
        excess, lack = (slope - 1).relu(), (1 - slope).relu()
        penalty = excess.square().mean()
        if self.two_sided:
            penalty = penalty + self._turned * lack.square().mean()
        penalty = self.penalty * penalty
        gain = self._gain(at.without_mixes(values), at)
        if not self.residual:  # which is as good everywhere without a critic
            gain = gain / at.units[1][:, 0, 0]  # or narrow draws would not be looked at
        return {"gain": -gain.mean(), "penalty": penalty}

    @torch.no_grad()
    def witness_values(self, points: Tensor, samples: Tensor, draws: Tensor, x: Tensor) -> Tensor:
        """The whole witness ``(P, N)`` at points ``(P, N, C)``, up to a constant per input.

        Only a residual reads the draws of student and teacher.
        """
        at = Encounter(x, draws, None, samples)
        values = self._witness_at(at)(points.transpose(0, 1)).T
        if self.residual:
            gap = Marginals(samples).distance(points) - Marginals(draws).distance(points)
            values = values + gap / 2
        return values

    @torch.no_grad()
    def examined(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, float]:
        """What the witnesses know of a student, at draws ``(S, N, C)`` not seen before.

        See ``examination.examined``.
        """
        draws, x = draws[:MOST_DRAWS, :MOST_INPUTS], x[:MOST_INPUTS]
        samples = as_answer(student).sample((len(draws),))[:, : len(x)]
        at = Encounter(x, draws, None, samples)
        _, gradient = self._witness_at(at).with_gradient(at.points, at.where)
        if self.residual:
            gradient = gradient + at.known[:, at.where]
        values = self.witness_values(torch.cat([draws, samples]), samples, draws, x).T
        slope, order = dual_norm(gradient, self.ground), 1 if self.ground == "l1" else 2
        return examined(values, self._gain(values, at), slope, draws, samples, order)

    def _gain(self, values: Tensor, at: Encounter) -> Tensor:
        r"""Gains ``(N,)`` of the witness with these values ``(N, T + S)`` at the draws of both.

        The better of a witness and its negative counts, if both may be asked. Which one that
        is, one half of the draws says for the other half: chosen by the same draws it would make a
        gain of their noise, and teach a student to have none. A residual has the energy distance's
        direction, and a one-sided penalty lets others turn.
        """
        theirs, mine = values.split([len(at.draws), values.shape[1] - len(at.draws)], 1)
        if at.weights is not None:
            strata = mine.unflatten(1, (len(at.weights), -1))
            mine = (strata * at.weights.T[..., None]).sum(1)
        gain = theirs.mean(1) - mine.mean(1)
        if self.residual or not self.two_sided or min(theirs.shape[1], mine.shape[1]) < 2:
            return gain
        one, two = (theirs[:, n::2].mean(1) - mine[:, n::2].mean(1) for n in (0, 1))
        return (one.detach().sign() * two + two.detach().sign() * one) / 2

    def _witness_at(self, at: Encounter) -> Witness:
        """The witness of each input as a function of points, its weights generated once."""
        self.prepare(at.x, at.draws.shape[-1])
        critic = self.critic
        assert critic is not None
        if isinstance(critic, MetaCritic):
            return Generated(critic.weights(at.x), *at.units)
        return Called(critic, at.x)
