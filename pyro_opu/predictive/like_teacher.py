"""What a ``Teacher`` has: a student gives draws, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.guides.joint import JointGuide
from pyro_opu.inputs import InputLike
from pyro_opu.rng import full_precision, seeded


class LikeTeacher(nn.Module):
    """The interface of :class:`~pyro_opu.Teacher`."""

    guide: nn.Module
    num_samples: int
    outcome: Any

    @property
    def joint(self) -> bool:
        """Whether draws are joint over inputs, as are those of ``distill(guide="joint")``."""
        return isinstance(self.guide, JointGuide)

    @property
    def max_draws(self) -> int | None:
        """How many draws a joint student holds; ``None`` of any other, which draws afresh."""
        return self.guide.num_draws if isinstance(self.guide, JointGuide) else None

    def draws(self, x: InputLike, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        r"""What draws say of the inputs: class probabilities, or :math:`f_s, \log\sigma_s`.

        Draw s of a joint student is one function of x, in all calls: all draws in order, or with
        the same ``seed`` the same ones. The draws of any other are independent between inputs.

        Args:
            x: See :meth:`.OnePassPredictive.distribution`.
            num_draws: S; by default ``num_samples``. A joint student holds so many at most.
            seed: Fixes which draws; by default they are new at every call.

        Returns:
            ``(S, N, C)``, or ``(S, N, 2)`` of a real y: its mean and the noise's log deviation.
        """
        return self.outcome.plain(self._said(x, num_draws, seed))

    def log_probs(
        self, x: InputLike, num_draws: int | None = None, seed: int | None = None
    ) -> Tensor:
        """Logarithms of :meth:`probs`, which keep the digits of small ones."""
        self.outcome.check_classes("a student")
        return self._said(x, num_draws, seed)

    def probs(self, x: InputLike, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        """Draws of class probabilities ``(S, N, C)``: a student is a teacher. See :meth:`draws`."""
        return self.log_probs(x, num_draws, seed).exp()

    @torch.no_grad()
    @full_precision()
    def _said(self, x: InputLike, num_draws: int | None, seed: int | None) -> Tensor:
        """:meth:`draws`, of classes in logarithms."""
        x, count = self._checked(x), self.num_samples
        if num_draws is not None:
            count = positive_int("num_draws", num_draws)
        with seeded(seed):
            if isinstance(self.guide, JointGuide):
                return self.guide.draws(x, self.guide.chosen(count)).contiguous()
            return self.outcome.draws_of(self._answer(x), count)

    def _checked(self, x: InputLike) -> Tensor:
        """Inputs as the guide takes them."""
        raise NotImplementedError

    def _answer(self, x: Tensor) -> Any:
        """What the guide answers there."""
        raise NotImplementedError
