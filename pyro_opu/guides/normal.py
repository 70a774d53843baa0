r"""Guides of real y: :math:`x \mapsto` mean, aleatoric and epistemic variance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, positive_int
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.normal import (
    LOG_VARIANCES,
    Components,
    PredictiveNormal,
    PredictiveNormalMixture,
    RealAnswer,
)
from pyro_opu.guides.base import HeadGuide
from pyro_opu.guides.generator import HIDDEN, NOISE, Generator
from pyro_opu.inputs import Inputs
from pyro_opu.parts import RealPart

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "REGRESSION_GUIDES",
    "GaussianGuide",
    "ImplicitRealGuide",
    "NormalMixtureGuide",
    "RealGuide",
]

#: Normals of a guide from noise, and the logarithm of the variance of the mean of each.
NORMALS, NO_SPREAD = 32, -20.0
_ONE = RealPart()


class RealGuide(HeadGuide):
    """A trunk and a linear head whose outputs stand for a distribution of y.

    ``trunk`` is any module ``x (N, ...) -> features (N, F)``, ``num_features`` is F,
    ``num_outputs`` the head's width. The network works in standardised units, :math:`(y - shift) /
    scale`; its answers are in units of y.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, trunk: nn.Module, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(num_features, num_outputs)
        self.register_buffer("shift", torch.tensor(0.0))
        self.register_buffer("scale", torch.tensor(1.0))

    def components_of(self, outputs: Tensor) -> Components:
        """The normals that the head's outputs ``(N, num_outputs)`` stand for, standardised."""
        raise NotImplementedError

    def answer(self, components: Components) -> RealAnswer:
        """The distribution of y at N inputs."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> RealAnswer:
        """The distribution of y at ``x``, batch shape ``(N,)``, in units of y."""
        inside = self.components_of(self.head(self.trunk(x)))
        units = 2 * self.scale.log()
        return self.answer(
            Components(
                inside.log_weights,
                self.shift + self.scale * inside.mean,
                units + soft_clamp(inside.log_aleatoric, *LOG_VARIANCES),
                units + soft_clamp(inside.log_epistemic, *LOG_VARIANCES),
            )
        )

    @torch.no_grad()
    def fit_units(self, y: Tensor) -> None:
        """Standardise by the mean and deviation of ``y``, finite and of any shape."""
        y = y.detach().double()
        if not torch.isfinite(y).all():
            raise ArgumentError("`y` must be finite; got NaN or infinity. Leave those values out.")
        spread = y.std(correction=0)
        self.shift.copy_(y.mean())
        self.scale.copy_(spread if spread > 0 else torch.ones_like(spread))

    @classmethod
    def for_inputs(
        cls,
        x: Tensor | Inputs,
        y: Tensor | None = None,
        *,
        hidden: tuple[int, ...] | None = None,
        **options: object,
    ) -> Self:
        """Build a guide sized to the inputs, as ``TrunkGuide.for_inputs`` does.

        ``y`` holds values of the target, of any shape, observed or drawn by the teacher; their mean
        and deviation are the units inside, by default 0 and 1.
        """
        guide = cls._sized(x, hidden, {"options": options})
        if y is not None:
            guide.fit_units(y)
        return guide


class GaussianGuide(RealGuide):
    r"""A normal of y as a function of x, in one forward pass.

    .. math:: q(y \mid x) = N(\mu(x),\; e^{\alpha_a(x)} + e^{\alpha_e(x)})

    The variance of Bayesian Dark Knowledge is split into the aleatoric and the epistemic. Arguments
    as of :class:`RealGuide`.

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, section 2.2.
    """

    kind = "gaussian"
    form = "y ~ N(mean(x), aleatoric(x) + epistemic(x))"

    def __init__(self, trunk: nn.Module, num_features: int) -> None:
        super().__init__(trunk, num_features, _ONE.num_outputs)

    def forward(self, x: Tensor) -> PredictiveNormal:
        return _ONE.answer(self.head(self.trunk(x)), self.shift, self.scale)


class NormalMixtureGuide(RealGuide):
    r"""A mixture of K normals of y as a function of x, for teachers of any shape.

    .. math:: q(y \mid x) = \sum_k w_k(x) N(\mu_k(x),\; e^{\alpha_{ak}(x)} + e^{\alpha_{ek}(x)})

    ``num_components`` is K >= 1; other arguments as of :class:`RealGuide`.

    References:
        Bishop (1994), Mixture density networks. Its components have one variance, these have two.
    """

    kind = "mixture"
    form = "y ~ mixture of {0.num_components} normals"
    options = ("num_components",)

    def __init__(self, trunk: nn.Module, num_features: int, num_components: int = 4) -> None:
        num_components = positive_int(
            "num_components", num_components, advice="1 is a single normal."
        )
        super().__init__(trunk, num_features, 4 * num_components)
        self.num_components = num_components
        apart = torch.linspace(-1, 1, num_components)  # or all components would learn the same
        with torch.no_grad():
            self.head.bias[num_components : 2 * num_components] = apart

    def components_of(self, outputs: Tensor) -> Components:
        logits, *rest = outputs.split(self.num_components, -1)
        return Components(logits.log_softmax(-1), *rest)

    def answer(self, components: Components) -> PredictiveNormalMixture:
        return PredictiveNormalMixture(components, validate_args=False)


class ImplicitRealGuide(RealGuide):
    r"""Equally likely normals of y, which a network places by fixed points of noise.

    .. math:: q(y \mid x) = \tfrac1P \sum_p N(f(x, \epsilon_p),\; e^{a(x, \epsilon_p)})

    What lies between their means is epistemic. ``units`` and ``noise`` are those of
    :class:`.Generator`; other arguments as of :class:`RealGuide`.
    """

    kind = "implicit"
    form = "y ~ normals from {0.noise} numbers of noise, {0.units} units"
    options = ("units", "noise")

    def __init__(
        self, trunk: nn.Module, num_features: int, units: int = HIDDEN, noise: int = NOISE
    ) -> None:
        generator = Generator(2, units, noise, NORMALS)
        super().__init__(trunk, num_features, generator.num_inputs)
        self.units, self.noise, self.generator = units, noise, generator
        generator.begin(self.head.bias)

    def components_of(self, outputs: Tensor) -> Components:
        mean, log_aleatoric = self.generator(outputs, self.generator.points[:, None]).unbind(-1)
        flat = torch.zeros_like(mean.mT)
        return Components(flat - math.log(NORMALS), mean.mT, log_aleatoric.mT, flat + NO_SPREAD)

    def answer(self, components: Components) -> PredictiveNormalMixture:
        return PredictiveNormalMixture(components, validate_args=False)


RealGuideName = Literal["gaussian", "mixture", "implicit"]
#: Name -> family, as in ``distill(guide=name)`` and in saved files.
REGRESSION_GUIDES: dict[RealGuideName, type[RealGuide]] = {
    "gaussian": GaussianGuide,
    "mixture": NormalMixtureGuide,
    "implicit": ImplicitRealGuide,
}
