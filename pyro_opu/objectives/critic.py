"""The meta-network of Cui et al., from x to the weights of a witness on the simplex."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from pyro_opu.checks import check_inputs, one_of, positive_int
from pyro_opu.checks import sizes as check_sizes
from pyro_opu.guides.networks import Perceptron

SLOPE = 0.2  # of the leaky ReLU
Weights = list[tuple[Tensor, Tensor]]


class MetaCritic(nn.Module):
    r"""An amortized witness :math:`\psi(\pi; \Omega(x; v))` (Cui et al. 2019, eq. 9).

    The meta-network :math:`\Omega` maps x to the weights of a small network on the simplex. A large
    witness (``generate="modulate"``) has weights shared by all x, and x scales and shifts every
    hidden unit: generated in full from 1024 units a 10-400-128-1 witness would need 57 million
    weights. The head starts at one ordinary network, the same for all x.

    Args:
        x: Transfer inputs ``(N, ...)``; they fix the meta-network's input size and scale.
        num_classes: C.
        widths: Hidden widths of the witness; by default (4 C, 16), about the paper's.
        hidden: Hidden widths of the meta-network.
        generate: "all" or "modulate"; by default "all" up to 20,000 witness weights.

    Example:
        >>> import torch
        >>> from pyro_opu import MetaCritic
        >>> critic = MetaCritic(torch.randn(20, 4), num_classes=3)
        >>> critic(torch.randn(5, 4), torch.full((7, 5, 3), 1 / 3)).shape
        torch.Size([7, 5])

    References:
        Cui et al. (2019), section 3.3.
    """

    def __init__(
        self,
        x: Tensor,
        num_classes: int,
        *,
        widths: tuple[int, ...] | None = None,
        hidden: tuple[int, ...] = (128, 128),
        generate: Literal["all", "modulate"] | None = None,
    ) -> None:
        super().__init__()
        check_inputs(x)
        num_classes = positive_int("num_classes", num_classes, 2)
        check_sizes("hidden", hidden)
        widths = check_sizes("widths", widths or (4 * num_classes, 16))
        self.sizes = list(pairwise((num_classes, *widths, 1)))
        total = sum(before * after + after for before, after in self.sizes)
        if generate is not None:
            one_of("generate", generate, ("all", "modulate"))
        self.generate = generate or ("all" if total <= 20_000 else "modulate")
        self.trunk = Perceptron(tuple(x.shape[1:]), hidden)
        self.trunk.fit_scale(x)
        ordinary = self._ordinary_weights()
        if self.generate == "all":
            self.head = nn.Linear(hidden[-1], total)
            start = ordinary
        else:
            self.shared = nn.Parameter(ordinary)
            self.head = nn.Linear(hidden[-1], 2 * sum(widths))
            start = torch.cat([torch.ones(sum(widths)), torch.zeros(sum(widths))])
        with torch.no_grad():
            self.head.bias.copy_(start)
            self.head.weight.mul_(0.05)

    def _ordinary_weights(self) -> Tensor:
        """One flat draw of a usual initialisation of the witness."""
        parts = []
        for before, after in self.sizes:
            parts += [torch.randn(after * before) * math.sqrt(2 / before), torch.zeros(after)]
        return torch.cat(parts)

    def weights(self, x: Tensor) -> Weights:
        """Witness weights at ``x``: per layer ``(matrix (N, out, in), bias (N, out))``."""
        generated = self.head(self.trunk(x))
        flat = generated if self.generate == "all" else self.shared.expand(len(x), -1)
        parts = flat.split([n for before, after in self.sizes for n in (before * after, after)], -1)
        each = zip(self.sizes, parts[::2], parts[1::2], strict=True)
        layers = [(matrix.reshape(-1, *size[::-1]), bias) for size, matrix, bias in each]
        return layers if self.generate == "all" else self._modulated(layers, generated)

    def _modulated(self, layers: Weights, generated: Tensor) -> Weights:
        """Scale and shift each hidden unit; scaling a unit's row scales its pre-activation."""
        widths = [after for _, after in self.sizes[:-1]]
        scales, shifts = (part.split(widths, -1) for part in generated.chunk(2, -1))
        modulated = [
            (matrix * scale[..., None], bias * scale + shift)
            for (matrix, bias), scale, shift in zip(layers[:-1], scales, shifts, strict=True)
        ]
        return [*modulated, layers[-1]]

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        """Witness values ``(S, N)`` at points ``(S, N, C)`` of the simplex."""
        return witness(points, self.weights(x))


class Witness(Protocol):
    """The witness of each of N inputs, at points ``(N, P, C)``."""

    def __call__(self, points: Tensor) -> Tensor:
        """Values ``(N, P)``."""

    def with_gradient(self, points: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        """Values, and the gradient ``(N, Q, C)`` at some of the points.

        The latter is differentiable in the witness's weights.
        """


@dataclass(frozen=True)
class Generated:
    r"""Witnesses of generated weights, in the units of the draws at each input.

    .. math:: \psi_x(\pi) = s_x\, \psi\big((\pi - c_x) / s_x;\, \Omega(x)\big)

    Any witness is one of these, with the same slopes: centre and scale put the kinks of a new one
    where the draws are, however narrow these lie.

    Attributes:
        weights: See :meth:`MetaCritic.weights`.
        centre: ``(N, 1, C)``.
        scale: ``(N, 1, 1)``.
    """

    weights: Weights
    centre: Tensor
    scale: Tensor

    def _in_units(self, points: Tensor) -> Tensor:
        return (points - self.centre) / self.scale

    def __call__(self, points: Tensor) -> Tensor:
        return self.scale[..., 0] * values_at(self._in_units(points), self.weights)

    def with_gradient(self, points: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        values, gradient = values_and_gradient(self._in_units(points), self.weights, some)
        return self.scale[..., 0] * values, gradient


@dataclass(frozen=True)
class Called:
    """Witnesses of any module ``(x, points (S, N, C)) -> (S, N)``."""

    critic: nn.Module
    x: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        values: Tensor = self.critic(self.x, points.transpose(0, 1))
        return values.T

    def with_gradient(self, points: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            where = points[:, some].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self(where).sum(), where, create_graph=True)
        return self(points), gradient


def dual_norm(gradient: Tensor, ground: Literal["l1", "l2"] = "l1") -> Tensor:
    r"""Slope of a function on the simplex ``(...)`` from its gradient v ``(..., C)``.

    Moves inside the simplex sum to zero, so only the tangent part counts:
    :math:`(\max v - \min v)/2` for the l1 ground metric, :math:`\|v - \bar v\|_2` for l2.
    """
    if ground == "l1":
        return (gradient.amax(-1) - gradient.amin(-1)) / 2
    return torch.linalg.vector_norm(gradient - gradient.mean(-1, keepdim=True), dim=-1)


def witness(points: Tensor, weights: Weights) -> Tensor:
    r"""Evaluate one multilayer perceptron per input, :math:`\psi(\pi; w_x)`, ``(S, N)``.

    ``points`` are ``(S, N, C)``; ``weights`` as of :meth:`MetaCritic.weights`.
    """
    return values_at(points.transpose(0, 1), weights).T


def values_at(points: Tensor, weights: Weights) -> Tensor:
    """Values ``(N, P)`` of the witnesses at points ``(N, P, C)``."""
    *inner, last = weights
    hidden = points.to(last[0].dtype)
    for layer in inner:
        hidden = leaky_relu(_affine(hidden, layer), SLOPE)
    return _read(hidden, last)


def values_and_gradient(points: Tensor, weights: Weights, some: slice) -> tuple[Tensor, Tensor]:
    r"""Values ``(N, P)`` at points ``(N, P, C)``, and the gradient ``(N, Q, C)`` at some of them.

    .. math:: \nabla\psi = W_1^\top M_1 \cdots W_L^\top M_L\, w, \qquad
              M_l = \mathrm{diag}(1 \text{ or } 0.2)

    A witness is linear between its kinks, where the masks M do not depend on the weights: to
    differentiate this product is exact, and needs no graph of a gradient.
    """
    *inner, last = weights
    hidden, masks = points.to(last[0].dtype), []
    for layer in inner:
        before = _affine(hidden, layer)
        masks.append((before.detach()[:, some] > 0).to(before.dtype).mul_(1 - SLOPE).add_(SLOPE))
        hidden = leaky_relu(before, SLOPE)
    gradient = last[0]
    for (matrix, _), mask in zip(reversed(inner), reversed(masks), strict=True):
        gradient = torch.bmm(gradient * mask, matrix)
    return _read(hidden, last), gradient


def _affine(hidden: Tensor, layer: tuple[Tensor, Tensor]) -> Tensor:
    matrix, bias = layer
    return torch.baddbmm(bias[:, None], hidden, matrix.transpose(1, 2))


def _read(hidden: Tensor, last: tuple[Tensor, Tensor]) -> Tensor:
    # The last matrix has one row, and its gradient as a batch of products would be slow.
    row, offset = last
    return (hidden * row).sum(-1) + offset
