"""The interface of everything that a student answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyro_opu.distributions.measures import Measures
from pyro_opu.utils.printing import Printed

__all__ = ["Answer", "soft_clamp"]


class Answer(Printed):
    """One distribution per input, of class probabilities or of a real y; a mixin.

    Attributes:
        batch_shape: ``(N,)``.
        event_shape: ``(C,)``, or ``()`` of a real y.
        untraceable: Measures that a traced program cannot hold.
        closed_form: Whether measures are closed forms of few numbers of a row.
    """

    batch_shape: torch.Size
    event_shape: torch.Size
    untraceable: ClassVar[tuple[str, ...]] = ()
    closed_form: ClassVar[bool] = False

    @property
    def num_classes(self) -> int | None:
        """C of class probabilities; ``None`` of anything else."""
        return None

    def measures(self) -> Measures:
        """All measures of uncertainty; the family says which are exact."""
        raise NotImplementedError

    def _printed(self) -> str:
        """The distribution, and its measures averaged over the inputs."""
        found = self.measures().rounded()
        averages = {k: v.double().mean() for k, v in found.items() if v.shape == self.batch_shape}
        return "\n".join([repr(self), *(f"{name}  {mean:.4g}" for name, mean in averages.items())])

    def matched(self) -> Answer:
        """The Dirichlet, or the normal, with the same moments."""
        raise NotImplementedError

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor | None]:
        """Draws ``(S, N)`` of what is observed, and the parameters that each was drawn with.

        The parameters are class probabilities ``(S, N, C)`` or means of y ``(S, N)``, or ``None``
        where they are not asked for.
        """
        raise NotImplementedError

    def stratified_rsample(self, count: int) -> tuple[Tensor, Tensor | None]:
        """About ``count`` draws ``(S, N, ...)`` in K strata, and the strata's weights ``(K, N)``.

        Each stratum holds S / K draws, one stratum after the other. Weights carry the gradient of
        the choice between the parts of a mixture, which draws cannot. ``None`` is one stratum.
        """
        return self.rsample((count,)), None  # type: ignore[attr-defined]

    def comparable(self, draws: Tensor) -> Tensor:
        """A teacher's draws ``(S, N, K)`` in the form and the units of this answer's own."""
        return draws

    def as_tensors(self) -> dict[str, Tensor]:
        """The parameters, under the constructor's names: what a compiled pass can return."""
        raise NotImplementedError

    def unflatten(self, shape: Sequence[int]) -> Answer:
        """The same answers with the batch shape ``shape``."""
        tensors = {name: value.unflatten(0, shape) for name, value in self.as_tensors().items()}
        return self.from_tensors(tensors)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Answer:
        """Build the answer from :meth:`as_tensors`, without a check of values."""
        return cls(**tensors)


def soft_clamp(g: Tensor, low: float, high: float) -> Tensor:
    r"""Bend ``g``, of any shape, into [low, high] with a gradient that never vanishes inside.

    .. math:: low + \mathrm{softplus}(g - low) - \mathrm{softplus}(g - high)

    It differs from g by less than :math:`e^{-d}` at a distance d inside either end.
    """
    # There the slope is below e^-50; beyond, the difference of two large numbers has no digits.
    g = g.clamp(low - 50.0, high + 50.0)
    return low + softplus(g - low) - softplus(g - high)
