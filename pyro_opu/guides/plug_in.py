"""Trunks of a student: its teacher's network, moments of its logits, the functions of a process."""

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
from pyro_opu.guides.beginning import MOST_TOLD, Beginning, evenly
from pyro_opu.guides.networks import SET_UP, DefaultTrunk, Perceptron, Standardize, in_blocks
from pyro_opu.guides.operations import Operations
from pyro_opu.programs.cost import counted, metered

__all__ = [
    "TRUNKS",
    "MomentsTrunk",
    "NetworkTrunk",
    "ProcessTrunk",
    "TemperedTrunk",
]

#: Widths of the network on the features: the first that takes no more products than `SMALL`, or of
#: a network of more than `LARGE` products this share of them.
WIDTHS, SMALL, LARGE, SHARE = (128, 64, 32, 16), 40_000, 2**18, 0.04
#: Where the moments of logits take more than `MOST_TOLD` products, a student is given one variance,
#: by so many directions and a diagonal; or of a single logit those of the leading directions that
#: take this share of the network's products.
DIRECTIONS, SHARE_TOLD = 8, 0.5
#: Rows of a matrix are filled up to a multiple of so many: products of 48 rows take three quarters
#: of the time of 43.
ALIGNED = 16
#: Rows from which on it saves time to merge weights in the pass itself; for fewer, only before.
MANY = 64
#: Multiplications up to which a compiler for a GPU sums them in one kernel with what is around
#: them: a product by a library is another, and each in a graph takes more than a microsecond.
SUMMED = 2**20
#: Range of the logarithm of a temperature.
MOST_TEMPERATURE = 2.0
#: Inputs by which g begins.
TELLING = 128


class NetworkTrunk(DefaultTrunk):
    r"""A posterior's network up to its linear head, and a small network on its features.

    The mean of a posterior is no network of one draw, but nearly a smooth function of that
    network's last features :math:`\phi(x)`: the small network learns it. Both its features and
    :math:`\phi` are what the heads of the student read.

    Args:
        config: From :meth:`describe`: "network" with the steps to ``size`` features, ``None`` where
            they are the inputs; "hidden" widths.
    """

    #: Of a description.
    kind = "network"
    #: Where training begins, in a report, and why.
    begins = "network", "the operations of its teacher's network are known"
    #: Whether it has ``moments_at``, which gives what it reads, and ``from_moments``.
    reads_once = False
    #: Whether the student begins with what one normal logit averages to, which is exact.
    has_one_logit = False
    #: Whether it begins with all moments of what the posterior says, if that is normal.
    is_closed_form = False
    rows = 0  #: of every pass that a compiler for a GPU makes, where they are known
    read_by_first = "standardize"

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, hidden = int(config["size"]), tuple(config["hidden"])
        self.network = None if config["network"] is None else Operations(config["network"])
        self.centres = self.network is None
        self.keeps_digits = self.network is None or not self.network.computes
        self.standardize = Standardize((size,))
        self._build(config, size, hidden)

    def _build(self, config: dict[str, Any], size: int, hidden: tuple[int, ...]) -> None:
        """Make the small network."""
        self.layers = Perceptron((size,), hidden).layers
        self.num_features = hidden[-1] + size

    @staticmethod
    def describe(start: Beginning, x: Tensor) -> dict[str, Any]:
        """The config of the trunk that begins so, of its "kind", at inputs like x."""
        classes, size = start.head.shape
        outputs = 1 if classes == 2 else classes
        network, products = None, classes * size
        if start.trunk is not None:
            network = Operations.describe(start.trunk)
            with counted(), metered() as meter:
                start.trunk.run(x[:2])
            products += (meter.operations or 0) // 4
        kind, rank, beside = "network", 0, 0
        if start.draws is not None:
            rank = min(len(start.draws) - 1, size)
            most = max(1, max(MOST_TOLD, int(SHARE_TOLD * products)) // (outputs * size))
            few = start.has_few_moments()
            if start.independent and not (few and rank <= most):
                kind, rank = "independent", 0
            elif few:
                kind, rank = "process" if start.process else "moments", min(rank, most)
            else:
                kind, rank = "tempered", min(rank, DIRECTIONS)
            beside = 0 if kind == "tempered" else 3 * outputs
        budget = SHARE * products if products > LARGE else SMALL
        read = x[0].numel() if start.process else size
        cost = {w: (read + beside + w) * w + w * classes for w in WIDTHS}
        width = next((w for w in WIDTHS if cost[w] <= budget), WIDTHS[-1])
        plain = {"kind": kind, "input_shape": list(x.shape[1:]), "network": network}
        sizes = {"size": size - 1, "outputs": outputs, "rank": rank, "hidden": [width] * 2}
        return {**plain, **sizes, **({"projected": True} if start.projected else {})}

    @property
    def stays(self) -> bool:
        """Whether no weight that is trained changes what it reads, which is read once then."""
        trained = () if self.network is None else self.network.parameters()
        return self.reads_once and next(iter(trained), None) is None

    def merges(self, rows: int = MANY) -> bool:
        """Whether linear heads and the first layer had better read so many rows in one product."""
        first = self.layers[0]
        return (
            not torch.compiler.is_compiling()
            and rows >= MANY
            and not (self._forward_hooks or self._forward_pre_hooks)
            and self.read_by_first == "standardize"
            and type(first) is nn.Linear
            and first.weight.dtype in (torch.float32, torch.float64)
            and self.standardize.near
        )

    def merged(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`through` takes, for heads ``(K, H + F)`` on :meth:`forward`."""
        first: Any = self.layers[0]
        small, plain = weight.split([first.out_features, self.num_features - first.out_features], 1)
        own, own_bias = self.standardize.folded(first.weight, first.bias)
        rows = len(own) + len(plain)
        unread = plain.new_zeros(-rows % ALIGNED, plain.shape[1])
        return torch.cat([own, plain, unread]), torch.cat([own_bias, bias, unread[:, 0]]), small

    def through(self, x: Tensor, first: Tensor, first_bias: Tensor, last: Tensor) -> Tensor:
        """Outputs of heads ``(N, K)``, as on :meth:`forward` to rounding, in fewer operations.

        One product gives the small network's first layer and the heads' part on the features, so
        that no tensor as wide as the features is made.
        """
        small = last.shape[1]
        read = torch.nn.functional.linear(self.shaped(x), first, first_bias)
        features = read[:, :small]
        for layer in islice(self.layers, 1, None):
            if isinstance(layer, nn.Linear) and self._is_summed(layer.weight):
                features = _summed(layer.bias, features, layer.weight)
            else:
                features = layer(features)
        plain = read[:, small : small + len(last)]
        if self._is_summed(last):
            return _summed(plain, features, last)
        return torch.addmm(plain, features, last.mT)

    def _is_summed(self, weight: Tensor) -> bool:
        return 0 < self.rows * weight.numel() <= SUMMED and torch.compiler.is_compiling()

    @torch.no_grad()
    def start_at(self, start: Beginning, x: Tensor) -> Tensor:
        """Begin there; returns the heads, of the mean and last of g, ``(C + 1, H + F + 1)``.

        They are weights and, last, biases; those of g are 0 where it is not known.
        """
        if self.network is not None and start.trunk is not None:
            self.network.start_at(start.trunk.weights.values())
        dtype = self.standardize.shift.dtype
        x = x[evenly(len(x), SET_UP)].to(x.dtype if self.keeps_digits else dtype)
        self.standardize.fit(in_blocks(self.shaped, x), self.axes)
        weight, bias = self._heads_at(start, x)
        unread = torch.zeros(len(weight), self.num_features - weight.shape[1])
        head = torch.cat([each.to(x.device, dtype) for each in (unread, weight, bias)], 1)
        return torch.cat([head, self._concentration_at(head, x)])

    def _heads_at(self, start: Beginning, x: Tensor) -> tuple[Tensor, Tensor]:
        """Begin there; returns weights and biases on what the heads read last."""
        return start.head[:, :-1], start.head[:, -1:]

    def _concentration_at(self, head: Tensor, x: Tensor) -> Tensor:
        """The head of g, ``(1, H + F + 1)``."""
        return torch.zeros_like(head[:1])

    def update_moments(self, start: Beginning) -> None:
        """Take what is known of a posterior that has changed; here training learns it."""

    def _standardised(self, heads: Tensor) -> Tensor:
        """Heads ``(S, C, F + 1)`` for standardised features, in float64."""
        # w'x + b = (w / scale)'z + b + w'location.
        weight, bias = heads.double().split([heads.shape[-1] - 1, 1], -1)
        location = self.standardize.inverse(torch.zeros_like(weight[0, 0]))
        bias = bias + (weight * location).sum(-1, keepdim=True)
        return torch.cat([weight / self.standardize.scale.double(), bias], -1)

    def shaped(self, x: Tensor) -> Tensor:
        """The features that the head reads, ``(N, F)``."""
        return x.flatten(1) if self.network is None else self.network(x)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, H + F)``."""
        features = self.shaped(x)
        return torch.cat([self.layers(self.standardize(features)), features], -1)


class MomentsTrunk(NetworkTrunk):
    r"""A posterior over a linear head alone, by the mean and variance of its logits.

    .. math::
        m_k(x) = \bar w_k^\top \phi, \quad v_k(x) = \phi^\top \Sigma_k\, \phi, \quad
        \kappa_k = m_k \big/ \sqrt{1 + \pi v_k / 8}

    with a 1 last in :math:`\phi`, and mean and covariance of the draws of the head. The small
    network reads :math:`\operatorname{arsinh} \phi, \operatorname{arsinh} m, \log v` and
    :math:`\kappa`, the logits that a normal law averages to, which stands in the place of
    :math:`\phi`. Two classes have one logit, the second's less the first's; :math:`\kappa` is then
    exact, and :math:`\log \alpha_0` of the normal law stands beside it
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
        if self.has_one_logit:
            plain = torch.cat(averaged_logit(mean, variance), -1)
        else:
            plain = moderated(mean, variance)
        log_variance = variance.clamp_min(LEAST).log()
        return [self._beside_moments(z, x), mean.asinh(), log_variance, plain], plain

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
        nn.init.zeros_(self.temperature.weight)
        nn.init.zeros_(self.temperature.bias)
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
        heads = self._standardised(heads)
        heads = heads - heads.mean(1, keepdim=True)  # which all classes share
        centred = (heads - heads.mean(0)).flatten(0, 1)
        covariance = centred.mT @ centred / ((len(heads) - 1) * heads.shape[1])
        values, directions = torch.linalg.eigh(covariance)
        factor = (values.clamp_min(0).sqrt() * directions).mT.flip(0)[: len(self.factor)]
        self.factor.copy_(factor[:, None])
        self.rest.copy_((covariance.diagonal() - factor.square().sum(0)).clamp_min(0))

    def average(self, z: Tensor) -> Tensor:
        """Variance of a logit at standardised features ``(N, F)``, averaged over C, ``(N, 1)``."""
        directions = self.factor.squeeze(1)
        along = torch.addmm(directions[:, -1], z, directions[:, :-1].mT).square()
        rest = torch.addmv(self.rest[-1:], z.square(), self.rest[:-1])
        return along.sum(-1, keepdim=True) + rest[:, None]

    def _read(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What the small network reads, and the features."""
        features = self.shaped(x)
        z = self.standardize(features)
        return [z, self.average(z).clamp_min(LEAST).log()], features.to(z.dtype)

    def moments_at(self, x: Tensor) -> Tensor:
        """What the small network reads, log v, and the features ``(N, 2 F + 2)``."""
        read, plain = self._read(x)
        return torch.cat([self.scale(torch.cat(read, -1)), read[1], plain], -1)

    def from_moments(self, moments: Tensor) -> Tensor:
        """Features ``(N, H + F + 3)``, from what :meth:`moments_at` gives."""
        size = moments.shape[1] // 2
        read, spread, plain = moments.split([size, 1, size - 1], 1)
        small = self.layers(read)
        t = (MOST_TEMPERATURE * self.temperature(small).tanh()).exp()
        return torch.cat([small, spread, spread.square(), t * plain, t], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, H + F + 3)``."""
        return self.from_moments(self.moments_at(x))


#: Trunks by the "kind" of their descriptions.
TRUNKS = {
    each.kind: each
    for each in (NetworkTrunk, MomentsTrunk, IndependentTrunk, ProcessTrunk, TemperedTrunk)
}


def _summed(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return bias + (x[:, None] * weight).sum(-1)
