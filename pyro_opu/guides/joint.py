r"""A guide with joint draws beside its marginal answer: one last layer for each posterior draw."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.guides.networks import DefaultTrunk, Standardize
from pyro_opu.guides.normal import RealGuide

__all__ = ["DrawHeads", "JointGuide", "inputs_of_heads", "marginal_of", "outputs_of"]

#: Widest input that is read beside the features: those of a classifier have forgotten much of it.
MOST_PLAIN = 128
#: Width of the hidden layer between the guide's features and those that the draws read: a narrow
#: one where there are more than so many features.
HIDDEN, NARROW, MANY = 128, 64, 256
#: Features that the draws read.
FEATURES = 64
#: Waves of a draw in an output, and numbers of an input that they run along.
WAVES, ALONG = 2, 8


class RandomWaves(nn.Module):
    r"""S random functions, each a sum of a few waves along directions of its own.

    .. math:: w_s(x) = a(x) \sqrt{2 / M} \sum_{m=1}^M \cos\big(\omega_{sm}^\top \varphi(x)
        + \beta_{sm}\big), \qquad \omega_{sm} \sim N(0, I), \quad \beta_{sm} \sim U(0, 2\pi)

    The directions are drawn once. Two layers learn the place :math:`\varphi(x)`, and two the
    amplitude a(x). Over draws the mean is 0 and the covariance
    :math:`a(x)\, a(x') \exp(-\|\varphi(x) - \varphi(x')\|^2 / 2)`: functions of any roughness, for
    which features that all draws share would have to be very many.

    Args:
        size: Numbers u that are read, standardised.
        num_draws: S.
        num_outputs: Numbers that a draw says of an input; each has waves of its own.
        waves: M.

    References:
        Rahimi and Recht (2007), Random features for large-scale kernel machines. Osband et al.
        (2023), Epistemic neural networks, whose fixed random networks have the same purpose.
    """

    directions: Tensor
    phases: Tensor

    def __init__(self, size: int, num_draws: int, num_outputs: int, waves: int = WAVES) -> None:
        super().__init__()
        width = HIDDEN if size <= MANY else NARROW
        self.place = nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, ALONG))
        self.height = nn.Sequential(nn.Linear(size, NARROW), nn.SiLU())
        self.height.extend([nn.Linear(NARROW, num_outputs), nn.Softplus()])
        self.register_buffer("directions", torch.randn(num_draws, num_outputs * waves, ALONG))
        self.register_buffer("phases", torch.rand(num_draws, num_outputs * waves) * (2 * math.pi))
        self.waves = waves

    @torch.no_grad()
    def begin(self, amplitude: Tensor) -> None:
        """Start at this amplitude ``(num_outputs,)`` everywhere, waves of a few deviations of u."""
        amplitude = amplitude.clamp_min(1e-6)
        last: Any = self.height[-2]
        last.weight.mul_(0.1)
        last.bias.copy_(amplitude + (-torch.expm1(-amplitude)).log())
        of_place: Any = self.place[-1]
        of_place.weight.mul_(4)

    def forward(self, u: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        """:math:`w_s` ``(S, N, num_outputs)`` of the draws with these indices, by default all."""
        along = outputs_of(self.place(u), self.directions[index], self.phases[index])
        first, *more = along.movedim(-1, 0).cos().unflatten(0, (self.waves, -1))  # as in memory
        total = sum(more, first)
        height = self.height(u) * (2 / self.waves) ** 0.5
        return (total * height.mT[:, None]).movedim(0, -1)


class DrawHeads(nn.Module):
    r"""The last layers of S posterior draws on K features that they share.

    .. math:: z_s(x) = W_s\, \psi(x) + b_s, \qquad \psi = \text{the inputs } u \text{ standardised,
        or two layers on them}

    What no last layer can follow may be :class:`RandomWaves` :math:`w_s(x)` added to this.

    Args:
        size: Numbers u that are read.
        num_draws: S.
        num_outputs: Numbers that a draw says of an input.
        linear: Whether :math:`\psi = u`, standardised.
        waves: M of the random waves; by default there are none.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self, size: int, num_draws: int, num_outputs: int, linear: bool = False, waves: int = 0
    ) -> None:
        super().__init__()
        self._sizes = size, num_draws, num_outputs
        self.linear = linear
        self.standardize = Standardize((size,))
        width = HIDDEN if size <= MANY else NARROW
        layers = [nn.Linear(size, width), nn.SiLU(), nn.Linear(width, FEATURES)]
        self.layers = nn.Sequential(*([] if linear else layers))
        features = size if linear else FEATURES
        self.weight = nn.Parameter(torch.zeros(num_draws, num_outputs, features))
        self.bias = nn.Parameter(torch.zeros(num_draws, num_outputs))
        self.waves = RandomWaves(*self._sizes, waves) if waves else None

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make heads of this shape."""
        named = dict(zip(("size", "num_draws", "num_outputs"), self._sizes, strict=True))
        waves = {} if self.waves is None else {"waves": self.waves.waves}
        return {**named, "linear": self.linear, **waves}

    def with_waves(self) -> DrawHeads:
        """A copy with random waves."""
        heads = copy.deepcopy(self)
        heads.waves = RandomWaves(*self._sizes).to(self.weight.device)
        return heads

    def features(self, u: Tensor) -> Tensor:
        r""":math:`\psi` ``(N, K)``."""
        return self.layers(self.standardize(u))

    def forward(self, u: Tensor, index: Tensor | None = None) -> Tensor:
        """:math:`z_s` ``(S, N, num_outputs)``, of the draws with these indices or of all."""
        some = slice(None) if index is None else index
        found = outputs_of(self.features(u), self.weight[some], self.bias[some])
        return found if self.waves is None else found + self.waves(self.standardize(u), some)


def outputs_of(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Products ``(S, N, K)`` of features ``(N, F)`` with last layers, ``(S, K, F)`` and ``(S, K)``.

    The outputs come first in memory: a softmax over a few numbers side by side takes six times as
    long.
    """
    shared = features.mT.expand(bias.shape[1], -1, -1)
    return torch.baddbmm(bias.mT[..., None], weight.movedim(1, 0), shared).movedim(0, -1)


class JointGuide(nn.Module):
    r"""A guide whose draws are joint over inputs, as those of its teacher are.

    The answer at an input is that of the ``marginal`` guide. Its draws are S functions of x, one
    for each of S draws of the posterior: last layers on features that all share,

    .. math:: \pi_s(x) = \mathrm{softmax}\big(W_s\, \psi(x) + b_s\big)

    (of a real y mean and log deviation of the noise in place of logits), to which
    :class:`RandomWaves` are added where last layers cannot follow. So the covariance between inputs
    is the posterior's, and a draw is the same function in all calls.

    Args:
        marginal: A guide of this package; its trunk's features, and short inputs themselves, are
            what the heads read.
        heads: The last layers of the draws.

    References:
        Tran et al. (2020), Hydra: preserving ensemble diversity for model distillation, whose
        students have one head for each member of an ensemble.
    """

    kind = "joint"
    takes_one_tensor = True

    def __init__(self, marginal: nn.Module, heads: DrawHeads) -> None:
        super().__init__()
        self.marginal = marginal
        self.heads = heads

    @classmethod
    @torch.no_grad()
    def linear(cls, marginal: nn.Module, x: Tensor, said: Tensor, most: int) -> JointGuide | None:
        """Heads by least squares, on what the teacher's last layer reads.

        Args:
            marginal: The guide.
            x, said: Inputs, and what draws say there.
            most: Numbers read from which on there is no such guide.
        """
        u = inputs_of_heads(marginal, x, linear=True)
        if u.shape[1] > most:
            return None
        guide = cls(marginal, _heads(u, said, linear=True))
        heads = guide.heads
        read = heads.features(u).double()
        read = torch.cat([read, torch.ones_like(read[:, :1])], 1)
        targets = guide.outputs_for(said).movedim(0, 1).flatten(1).double()
        found = (torch.linalg.pinv(read) @ targets).mT.unflatten(0, heads.bias.shape)
        if not bool(found.isfinite().all()):
            return None
        heads.weight.copy_(found[..., :-1])
        heads.bias.copy_(found[..., -1])
        return guide

    @classmethod
    @torch.no_grad()
    def apart(cls, marginal: nn.Module, x: Tensor, said: Tensor, deviation: float) -> JointGuide:
        """Heads to train, whose weights begin apart by so much."""
        heads = _heads(inputs_of_heads(marginal, x, linear=False), said)
        heads.weight.normal_(std=deviation)
        return cls(marginal, heads)

    @torch.no_grad()
    def with_waves(self, u: Tensor, said: Tensor) -> JointGuide:
        """A copy whose waves are as high as what its heads, at ``u``, miss at the median input."""
        tried = JointGuide(self.marginal, self.heads.with_waves())
        waves = tried.heads.waves
        assert waves is not None
        missed = self.outputs_for(said) - self.outputs_for(self.said(self.heads(u)))
        waves.begin(missed.square().mean(0).sqrt().median(0).values)
        return tried

    @property
    def trunk(self) -> nn.Module:
        """The marginal guide's."""
        trunk: Any = self.marginal.trunk
        return trunk  # type: ignore[no-any-return]

    @property
    def concentration_trunk(self) -> nn.Module | None:
        """The marginal guide's, where it has one."""
        return getattr(self.marginal, "concentration_trunk", None)

    @property
    def num_draws(self) -> int:
        """S, the draws that it holds."""
        return len(self.heads.weight)

    @property
    def units(self) -> tuple[Tensor, Tensor] | None:
        """Shift and scale of a real y in the guide; ``None`` of classes."""
        found: Any = self.marginal
        return (found.shift, found.scale) if isinstance(found, RealGuide) else None

    @property
    def config(self) -> dict[str, Any] | None:
        """The marginal guide's, with the "family" that it is and the shape of the heads."""
        config = getattr(self.marginal, "config", None)
        if config is None:
            return None
        own = {"kind": self.kind, "family": config["kind"], "heads": self.heads.config}
        return {**config, **own}

    def forward(self, x: Tensor) -> Any:
        """The marginal answer at ``x``, batch shape ``(N,)``."""
        return self.marginal(x)

    def draws(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """What draws say of the inputs, as a teacher's: log probabilities, or mean and log scale.

        Args:
            x: Inputs ``(N, ...)``.
            index: Which draws ``(S,)``; by default all, in order.
        """
        return self.said(self.heads(inputs_of_heads(self.marginal, x, self.heads.linear), index))

    def said(self, outputs: Tensor) -> Tensor:
        """What the heads' outputs ``(S, N, K)`` say of the inputs."""
        if self.units is None:
            return outputs.movedim(-1, 0).log_softmax(0).movedim(0, -1)  # as they lie in memory
        (shift, scale), (mean, log_scale) = self.units, outputs.unbind(-1)
        return torch.stack([shift + scale * mean, scale.log() + log_scale], -1)

    def outputs_for(self, said: Tensor) -> Tensor:
        """The inverse of :meth:`said`; logits are centred."""
        if self.units is None:
            return said - said.mean(-1, keepdim=True)
        (shift, scale), (mean, log_scale) = self.units, said.unbind(-1)
        return torch.stack([(mean - shift) / scale, log_scale - scale.log()], -1)

    @torch.no_grad()
    def is_exact(self, x: Tensor, said: Tensor, within: float) -> bool:
        """Whether the heads give what draws say of inputs, but for rounding."""
        expected = self.outputs_for(said)
        mine = self.heads(inputs_of_heads(self.marginal, x, self.heads.linear))
        return bool((mine - expected).abs().max() <= within * (1 + expected.abs().max()))

    def distance(self, theirs: Tensor, mine: Tensor) -> Tensor:
        """KL from draws ``(S, N, C)``, or the squared error of f in deviations of y.

        The log scale is then compared too. Where noise is small beside the spread of f, a KL would
        count nothing but the last digits of f.
        """
        if self.units is None:
            return (theirs.exp() * (theirs - mine)).sum(-1).mean()
        variance = theirs[..., 0].var(0) + (2 * theirs[..., 1]).exp().mean(0)
        units = torch.stack([variance, torch.ones_like(variance)], -1)
        return ((theirs - mine).square() / units).sum(-1).mean()

    def spread(self, said: Tensor) -> float:
        """Variance of class probabilities, summed, or of f between draws, averaged over inputs."""
        values = said[..., :1] if self.units is not None else said.exp()
        return float(values.var(0).sum(-1).mean())

    def in_groups(self, size: int, said: Tensor) -> Tensor:
        """What draws say as points ``(S, N / size, size, K)``: probabilities, or units of y."""
        points = said.exp() if self.units is None else self.outputs_for(said)
        whole = max(1, points.shape[1] // size)
        return points[:, : whole * size].unflatten(1, (whole, -1))

    def chosen(self, count: int) -> Tensor | None:
        """Indices of ``count`` draws: ``None`` for all, or a random subset in order."""
        held = self.num_draws
        if count > held:
            raise ArgumentError(
                f"`num_draws` must be at most {held}, the draws that a joint student holds; got "
                f"{count}. Distil as_teacher(source, num_samples={count})."
            )
        if count == held:
            return None
        return torch.randperm(held)[:count].sort().values.to(self.heads.weight.device)

    def extra_repr(self) -> str:
        return f"{self.num_draws} draws that are joint over inputs"


def marginal_of(guide: nn.Module) -> nn.Module:
    """The guide of the marginal answers: of a joint one a part of it, else itself."""
    return guide.marginal if isinstance(guide, JointGuide) else guide


def _heads(u: Tensor, said: Tensor, linear: bool = False) -> DrawHeads:
    """A head for each draw, on these numbers, standardised."""
    heads = DrawHeads(u.shape[1], len(said), said.shape[-1], linear).to(u.device)
    heads.standardize.fit(u, (0,))
    return heads


def inputs_of_heads(marginal: nn.Module, x: Tensor, linear: bool) -> Tensor:
    """What the heads read ``(N, size)``.

    The features of the guide's trunk, and the inputs too where they are short; or, where logits are
    ``linear`` in it, what the teacher's own last layer reads.
    """
    trunk: Any = marginal.trunk
    if linear:
        return (trunk.shaped(x) if isinstance(trunk, DefaultTrunk) else x).flatten(1)
    told, plain = trunk(x), x.flatten(1)
    if plain.shape[1] > MOST_PLAIN:
        return told
    if plain.dtype == torch.float64 and told.dtype != torch.float64:
        told = told.double()  # so that what is large beside its spread keeps its digits
    return torch.cat([told, plain], -1)
