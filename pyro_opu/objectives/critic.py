"""The meta-network of Cui et al., from x to the weights of a witness on the simplex."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

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
    *inner, (row, offset) = weights
    hidden = points.transpose(0, 1).to(row.dtype)  # (N, S, C)
    for matrix, bias in inner:
        hidden = leaky_relu(torch.baddbmm(bias[:, None], hidden, matrix.transpose(1, 2)), SLOPE)
    # The last matrix has one row, and its gradient as a batch of products would be slow.
    return ((hidden * row).sum(-1) + offset).transpose(0, 1)
