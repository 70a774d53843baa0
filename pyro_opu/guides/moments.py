"""Trunks of a student that begin with moments of logits: of a linear head, and of a process."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions.normal_logits import (
    LEAST,
    averaged_logit,
    informed_concentration,
    moderated,
)
from pyro_opu.guides.beginning import Beginning, evenly
from pyro_opu.guides.networks import Perceptron, Standardize, in_blocks
from pyro_opu.guides.plug_in import MANY, NetworkTrunk, linear, tempering

__all__ = ["TRUNKS", "MomentsTrunk", "ProcessTrunk", "TemperedTrunk"]

#: Draws of heads in float64 at once.
AT_ONCE = 64
#: Inputs by which g begins.
TELLING = 128


class MomentsTrunk(NetworkTrunk):
    r"""A posterior over a linear head alone, by the mean and variance of its logits.

    .. math::
        m_k(x) = \bar w_k^\top \phi, \quad v_k(x) = \phi^\top \Sigma_k\, \phi, \quad
        \kappa_k = m_k \big/ \sqrt{1 + \pi v_k / 8}

    with a 1 last in :math:`\phi`, and mean and covariance of the draws of the head. The small
    network reads :math:`\operatorname{arsinh} \phi, \operatorname{arsinh} m, \log v` and
    :math:`\kappa`, the logits that a normal distribution averages to, which stands in the place of
    :math:`\phi`. Two classes have one logit, the second's less the first's; :math:`\kappa` is then
    exact, and :math:`\log \alpha_0` of the normal distribution stands beside it
    (:func:`~pyro_opu.distributions.normal_logits.averaged_logit`).

    Args:
        config: Also "outputs", the number of logits, and the "rank" of their covariances.

    References:
        MacKay (1992), The evidence framework applied to classification networks, eq. 10.
    """

    kind = "moments"
    begins = "moments", "the posterior is a Gaussian process, or over a linear head"
    reads_once, read_by_first = True, "scale"
    mean: Tensor
    factor: Tensor

    def _build(self, config: dict[str, Any], size: int, hidden: tuple[int, ...]) -> None:
        self.outputs = outputs = int(config["outputs"])
        self.has_one_logit = outputs == 1
        self.is_closed_form = self.has_one_logit and not config.get("projected")
        self.beside = 2 if outputs == 1 else outputs  # one logit has a concentration beside it
        self.num_features = hidden[-1] + self.beside
        self.register_buffer("mean", torch.zeros(outputs, size + 1))
        self.register_buffer("factor", torch.zeros(int(config["rank"]), outputs, size + 1))
        width = self._width(config, size)
        small = Perceptron((width + 2 * outputs + self.beside,), hidden)
        self.scale, self.layers = small.standardize, small.layers
        self.scale.last = 2 * outputs + self.beside

    def _width(self, config: dict[str, Any], size: int) -> int:
        """How many numbers the small network reads beside the moments."""
        return size

    def _heads_at(self, start: Beginning, x: Tensor) -> tuple[Tensor, Tensor]:
        assert start.draws is not None
        self._take_moments(start.draws)
        self.scale.fit(in_blocks(lambda rows: torch.cat(self._read(rows)[0], -1), x), (0,))
        classes = len(start.head)
        weight = torch.tensor([[-0.5, 0.0], [0.5, 0.0]]) if classes == 2 else torch.eye(classes)
        return weight, torch.zeros(classes, 1)

    def _concentration_at(self, head: Tensor, x: Tensor) -> Tensor:
        last = torch.zeros_like(head[:1])
        last[0, -2] = float(self.has_one_logit)
        return last

    def update_moments(self, start: Beginning) -> None:
        """Take the moments of the logits of a posterior that has changed."""
        if isinstance(start, Beginning) and start.draws is not None:
            self._take_moments(start.draws)

    @torch.no_grad()
    def _take_moments(self, heads: Tensor) -> None:
        """Mean and covariance of draws ``(S, C, F + 1)``, for standardised features."""
        heads = self._standardised(heads[:, 1:] - heads[:, :1] if self.outputs == 1 else heads)
        self.mean.copy_(heads.mean(0))
        centred = (heads - heads.mean(0)).movedim(0, 1) / math.sqrt(len(heads) - 1)
        _, values, directions = torch.linalg.svd(centred, full_matrices=False)
        factor = (values[..., None] * directions).movedim(0, 1)[: len(self.factor)]
        self.factor.zero_()[: len(factor)] = factor

    def moments_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standardised features ``(N, F)``, mean and variance of the logits ``(N, O)``."""
        z = self.standardize(self.shaped(x))
        weights = torch.cat([self.mean[None], self.factor]).flatten(0, 1)
        found = torch.addmm(weights[:, -1], z, weights[:, :-1].mT).unflatten(-1, (-1, self.outputs))
        return z, found[:, 0], found[:, 1:].square().sum(1)

    def _read(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What the small network reads, and what the heads read beside its features."""
        z, mean, variance = self.moments_of(x)
        told = self._told(mean, variance)
        return [self._beside_moments(z, x), *told], told[-1]

    def _told(self, mean: Tensor, variance: Tensor) -> list[Tensor]:
        """What the small network reads of the moments; last what the heads read too."""
        if self.has_one_logit:
            plain = torch.cat(averaged_logit(mean, variance), -1)
        else:
            plain = moderated(mean, variance)
        return [mean.asinh(), variance.clamp_min(LEAST).log(), plain]

    def _beside_moments(self, z: Tensor, x: Tensor) -> Tensor:
        """What the small network reads beside the moments, bent for heavy tails."""
        return z.asinh()

    def moments_at(self, x: Tensor) -> Tensor:
        """What the small network reads and what the heads read beside its features ``(N, R)``."""
        read, plain = self._read(x)
        return torch.cat([self.scale(torch.cat(read, -1)), plain], -1)

    def from_moments(self, moments: Tensor) -> Tensor:
        """Features ``(N, H + O)`` or H + 2, from what :meth:`moments_at` gives."""
        read, plain = moments.tensor_split([moments.shape[1] - self.beside], 1)
        return torch.cat([self.layers(read), plain], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, H + O)``, or H + 2."""
        return self.from_moments(self.moments_at(x))

    def merged(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """What :meth:`through` takes, for heads ``(K, H + O)`` on :meth:`forward`."""
        first: Any = self.layers[0]
        own, own_bias, centre = self.scale.folded(first.weight, first.bias)
        wide, narrow = own.tensor_split([own.shape[1] - len(centre)], 1)
        small, plain = weight.tensor_split([weight.shape[1] - self.beside], 1)
        return wide, own_bias, centre, narrow, small, plain, bias

    def through(self, x: Tensor, *merged: Tensor) -> Tensor:
        """Outputs of heads ``(N, K)``, as on :meth:`forward` to rounding, from parts as they are.

        Nothing is laid beside the features, nor scaled where these are.
        """
        wide, first_bias, *rest = merged
        (features, *told), _ = self._read(x)
        return self._outputs(torch.addmm(first_bias, features, wide.mT), told, *rest)

    def _outputs(
        self,
        hidden: Tensor,
        told: list[Tensor],
        centre: Tensor,
        narrow: Tensor,
        small: Tensor,
        plain: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Outputs of heads, from the first layer of the small network without the moments."""
        hidden = torch.addmm(hidden, torch.cat(told, -1) - centre, narrow.mT)
        for layer in islice(self.layers, 1, None):
            hidden = layer(hidden)
        return linear(bias, hidden, small) + torch.mm(plain, told[-1].mT).mT


class IndependentTrunk(MomentsTrunk):
    r"""A posterior over a linear head whose coefficients are independent, as under dropout.

    .. math:: v_k(x) = \sum_f \operatorname{Var}(w_{kf})\, \phi_f(x)^2
    """

    kind = "independent"
    begins = "moments", "coefficients of a linear head vary independently, as under dropout"
    variances: Tensor

    def _build(self, config: dict[str, Any], size: int, hidden: tuple[int, ...]) -> None:
        super()._build(config, size, hidden)
        self.register_buffer("variances", torch.zeros_like(self.mean))

    @torch.no_grad()
    def _take_moments(self, heads: Tensor) -> None:
        """Mean and variances of draws ``(S, C, F + 1)``."""
        heads = heads[:, 1:] - heads[:, :1] if self.outputs == 1 else heads
        self.mean.copy_(self._standardised(heads.mean(0, keepdim=True))[0])
        self.variances.copy_(heads.var(0))

    def moments_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standardised features ``(N, F)``, mean and variance of the logits ``(N, O)``."""
        features = self.shaped(x)
        z, squares = self.standardize(features), features.to(self.mean.dtype).square()
        mean = torch.addmm(self.mean[:, -1], z, self.mean[:, :-1].mT)
        return z, mean, torch.addmm(self.variances[:, -1], squares, self.variances[:, :-1].mT)

    def _beside_moments(self, z: Tensor, x: Tensor) -> Tensor:
        return z

    def merges(self, rows: int = MANY) -> bool:
        return super().merges(rows) and self.standardize.near

    def merged(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """What :meth:`through` takes: the first layer and the mean logits are one product."""
        wide, first_bias, *rest = super().merged(weight, bias)
        wide = torch.cat([wide, self.mean[:, :-1]])
        wide, bias, _ = self.standardize.folded(wide, torch.cat([first_bias, self.mean[:, -1]]))
        return wide, bias, self.variances[:, :-1], self.variances[:, -1], *rest

    def through(self, x: Tensor, *merged: Tensor) -> Tensor:
        """Outputs of heads ``(N, K)``, as on :meth:`forward` to rounding, without z."""
        wide, wide_bias, by_square, constant, *rest = merged
        features = self.shaped(x).to(wide.dtype)
        read = torch.addmm(wide_bias, features, wide.mT)
        variance = torch.addmm(constant, features.square(), by_square.mT)
        first = len(wide) - self.outputs
        told = self._told(read.narrow(1, first, self.outputs), variance)
        return self._outputs(read.narrow(1, 0, first), told, *rest)


class ProcessTrunk(MomentsTrunk):
    """The functions that a Gaussian process's kernel spans, and the moments of its logits.

    They are many, dependent, and stay as they are: the small network reads the inputs in their
    place. Where the kernel varies between draws, a student of them is taught even if it is
    excellent as it begins: at rows 2.5 times as far out as Pima's its mean then errs as that of 80
    draws, and of 290 once it is taught, its mutual information by 12 and .9 %.

    Args:
        config: Also "projected", where the kernel varies.
    """

    kind = "process"

    def _width(self, config: dict[str, Any], size: int) -> int:
        width = math.prod(config["input_shape"])
        self.read = Standardize((width,))
        return width

    def _heads_at(self, start: Beginning, x: Tensor) -> tuple[Tensor, Tensor]:
        self.read.fit(x.flatten(1), (0,))
        return super()._heads_at(start, x)

    def _beside_moments(self, z: Tensor, x: Tensor) -> Tensor:
        return self.read(x.flatten(1)).asinh()

    def update_moments(self, start: Beginning) -> None:
        """Take the moments of a posterior that has changed.

        Other functions, as of more inducing inputs, are not taken: training learns them.
        """
        if self.network is not None and isinstance(start, Beginning) and start.trunk is not None:
            if not self.network.fits(start.trunk):
                return
            self.network.start_at(start.trunk.weights.values())
        super().update_moments(start)


class TemperedTrunk(NetworkTrunk):
    r"""A posterior over a linear head alone, whose logits have too many moments.

    With 1,000 classes: the small network reads the logarithm of the variance v of a logit
    averaged over the classes instead, and the heads read :math:`t(x)\, (\phi, 1)`: it learns the
    temperature that the spread calls for. They read :math:`\log v` and its square too, and g begins
    as what is nearest in these to what the logits say
    (:func:`~pyro_opu.distributions.normal_logits.informed_concentration`).

    Args:
        config: Also the "rank" of the averaged covariance.
    """

    kind = "tempered"
    begins = MomentsTrunk.begins
    reads_once, read_by_first = True, "scale"
    factor: Tensor
    rest: Tensor

    def _build(self, config: dict[str, Any], size: int, hidden: tuple[int, ...]) -> None:
        self.temperature = nn.Linear(hidden[-1], 1)
        self.num_features = hidden[-1] + size + 3
        self.register_buffer("factor", torch.zeros(int(config["rank"]), 1, size + 1))
        self.register_buffer("rest", torch.zeros(size + 1))
        small = Perceptron((size + 1,), hidden)
        self.scale, self.layers = small.standardize, small.layers

    def _heads_at(self, start: Beginning, x: Tensor) -> tuple[Tensor, Tensor]:
        assert start.draws is not None
        self._take_average(start.draws)
        self.scale.fit(in_blocks(lambda rows: torch.cat(self._read(rows)[0], -1), x), (0,))
        return start.head, torch.zeros(len(start.head), 1)

    def _concentration_at(self, head: Tensor, x: Tensor) -> Tensor:
        """Factors of log v and of its square, which stand before the features, and a constant."""
        x = x[evenly(len(x), TELLING)]
        log_mean = torch.nn.functional.linear(self(x), head[:, :-1], head[:, -1]).log_softmax(-1)
        spread = self._read(x)[0][1]
        known = informed_concentration(log_mean, spread.exp()).double().cpu()
        powers = torch.cat([spread, spread.square(), torch.ones_like(spread)], 1).double().cpu()
        last, size = torch.zeros_like(head[:1]), len(self.rest)
        # On a processor, whose routine allows for a spread that does not vary.
        found = torch.linalg.lstsq(powers, known).solution.squeeze(1)
        last[0, [-3 - size, -2 - size, -1]] = found.to(head)
        return last

    def _take_average(self, heads: Tensor) -> None:
        """The covariance of draws ``(S, C, F + 1)`` averaged over C: directions, and a diagonal."""

        def apart(heads: Tensor) -> Tensor:
            found = self._standardised(heads)
            return found - found.mean(1, keepdim=True)  # which all classes share

        mean = apart(heads.mean(0, keepdim=True, dtype=torch.float64))
        centred = ((apart(some) - mean).flatten(0, 1) for some in heads.split(AT_ONCE))
        covariance = sum((each.mT @ each for each in centred), torch.zeros(()))
        covariance = covariance / ((len(heads) - 1) * heads.shape[1])
        values, directions = torch.linalg.eigh(covariance)
        factor = (values.clamp_min(0).sqrt() * directions).mT.flip(0)[: len(self.factor)]
        self.factor.copy_(factor[:, None])
        self.rest.copy_((covariance.diagonal() - factor.square().sum(0)).clamp_min(0))

    def average(self, z: Tensor) -> Tensor:
        """Variance of a logit at standardised features ``(N, F)``, averaged over C, ``(N, 1)``."""
        directions = self.factor.squeeze(1)
        along = torch.addmm(directions[:, -1], z, directions[:, :-1].mT).square()
        rest = torch.addmm(self.rest[-1:], z.square(), self.rest[:-1, None])
        return along.sum(-1, keepdim=True) + rest

    def _read(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What the small network reads, and the features."""
        features = self.shaped(x)
        z = self.standardize(features)
        return [z, self.average(z).clamp_min(LEAST).log()], features.to(z.dtype)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the small network reads ``(N, F + 1)``, log v ``(N, 1)``, and the features."""
        read, plain = self._read(x)
        return self.scale(torch.cat(read, -1)), read[1], plain

    def _small(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """The small network's features, and the temperature ``(N, 1)``."""
        small = self.layers(read)
        return small, tempering(self.temperature(small))

    def moments_at(self, x: Tensor) -> Tensor:
        """What the small network reads, log v, and the features ``(N, 2 F + 2)``."""
        return torch.cat(self._parts(x), -1)

    def from_moments(self, moments: Tensor) -> Tensor:
        """Features ``(N, H + F + 3)``, from what :meth:`moments_at` gives."""
        size = moments.shape[1] // 2
        return self._features(*moments.split([size, 1, size - 1], 1))

    def _features(self, read: Tensor, spread: Tensor, plain: Tensor) -> Tensor:
        small, t = self._small(read)
        return torch.cat([small, spread, spread.square(), t * plain, t], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, H + F + 3)``."""
        return self._features(*self._parts(x))

    def merges(self, rows: int = MANY) -> bool:
        """Whether linear heads had better read the parts of so many rows one by one."""
        hooked = self._forward_hooks or self._forward_pre_hooks
        return rows >= MANY and not hooked and not torch.compiler.is_compiling()

    def merged(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """What :meth:`through` takes, for heads ``(K, H + F + 3)`` on :meth:`forward`."""
        last, first = weight.tensor_split([-len(self.rest)], 1)
        return first[:, :-1], first[:, -1], last, bias

    def through(self, x: Tensor, *merged: Tensor) -> Tensor:
        """Outputs of heads ``(N, K)``, as on :meth:`forward` to rounding, on narrower tensors.

        What they say of the features is multiplied by the temperature, not the features.
        """
        first, first_bias, last, bias = merged
        read, spread, plain = self._parts(x)
        small, t = self._small(read)
        said = torch.addmm(first_bias, plain, first.mT)
        outputs = torch.addmm(bias, small, last[:, :-2].mT)
        powers = torch.cat([spread, spread.square()], -1)
        return torch.addmm(outputs, powers, last[:, -2:].mT) + t * said


#: Trunks by the "kind" of their descriptions.
TRUNKS = {
    each.kind: each
    for each in (NetworkTrunk, MomentsTrunk, IndependentTrunk, ProcessTrunk, TemperedTrunk)
}
