"""The trunk of a student that begins as its teacher's network, or with moments of its logits."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions.normal_logits import LEAST, averaged_logit, informed_concentration
from pyro_opu.guides.beginning import MOST_TOLD, Beginning, evenly
from pyro_opu.guides.networks import SET_UP, DefaultTrunk, Perceptron, Standardize, in_blocks
from pyro_opu.guides.operations import Operations
from pyro_opu.programs.cost import counted, metered

__all__ = ["AfterTold", "PlugInTrunk"]

#: Widths of the network on the features: the first that takes no more products than `SMALL`, or of
#: a network of more than `LARGE` products this share of them.
WIDTHS, SMALL, LARGE, SHARE = (128, 64, 32, 16), 40_000, 2**18, 0.04
#: Where the moments of logits take more than `MOST_TOLD` products, a student is told one variance,
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
#: Inputs by which log alpha_0 is told.
TELLING = 128


class PlugInTrunk(DefaultTrunk):
    r"""A posterior's network up to its linear head, and a small network on its features.

    The mean of a posterior is no network of one draw, but nearly a smooth function of that
    network's last features :math:`\phi(x)`: the small network learns it. Both its features and
    :math:`\phi` are what the heads of the student read.

    Where the posterior is over the head alone, mean and variance of the logits are known,

    .. math::
        m_k(x) = \bar w_k^\top \phi, \quad v_k(x) = \phi^\top \Sigma_k\, \phi, \quad
        \kappa_k = m_k \big/ \sqrt{1 + \pi v_k / 8}

    with a 1 last in :math:`\phi`, and mean and covariance of the draws of the head. The small
    network reads :math:`\operatorname{arsinh} \phi, \operatorname{arsinh} m, \log v` and
    :math:`\kappa`, the logits that a normal law averages to, which stands in the place of
    :math:`\phi`. Two classes have one logit, the second's less the first's; :math:`\kappa` is then
    exact, and :math:`\log \alpha_0` of the normal law stands beside it
    (:func:`~pyro_opu.distributions.normal_logits.averaged_logit`).

    Where these moments are too many to be told, as those of 1,000 classes, the small network reads
    the logarithm of the variance v of a logit averaged over the classes instead, and the heads read
    :math:`t(x)\, (\phi, 1)`: it learns the temperature that the spread calls for. They read
    :math:`\log v` and its square too, and g begins as what is nearest in these to what the logits
    say (:func:`~pyro_opu.distributions.normal_logits.informed_concentration`).

    The features of a process, such as the functions that the kernel of a Gaussian process spans,
    are many, dependent, and stay as they are: the small network reads the inputs in their place.

    Args:
        config: From :meth:`describe`: "network" with the steps to ``size`` features, ``None`` where
            they are the inputs; "outputs", the number of logits whose moments are told, and "rank"
            of their covariances, or of the averaged one where it is "tempered", with the "spread"
            among the features; "hidden" widths; whether it is a "process".

    References:
        MacKay (1992), The evidence framework applied to classification networks, eq. 10.
    """

    mean: Tensor
    factor: Tensor
    rest: Tensor
    read: Standardize | None
    rows = 0  #: of every pass that a compiler for a GPU makes, where they are known

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, outputs, rank = (int(config[name]) for name in ("size", "outputs", "rank"))
        hidden = tuple(config["hidden"])
        self.network = None if config["network"] is None else Operations(config["network"])
        self.centres = self.network is None
        self.keeps_digits = self.network is None or not self.network.computes
        self.outputs = outputs
        # One logit has a concentration beside it.
        self.told = 2 if outputs == 1 else outputs
        tempered = int(config.get("tempered", False))
        self.read_by_first = "scale" if outputs or tempered else "standardize"
        self.temperature = nn.Linear(hidden[-1], 1) if tempered else None
        self.spread = bool(tempered and config.get("spread", False))
        self.num_features = hidden[-1] + (self.told or size + tempered + 2 * self.spread)
        self.standardize = Standardize((size,))
        self.register_buffer("mean", torch.zeros(outputs, size + 1))
        self.register_buffer("factor", torch.zeros(rank, outputs or tempered, size + 1))
        if tempered:
            self.register_buffer("rest", torch.zeros(size + 1))
        self.process = bool(config.get("process", False))
        width = math.prod(config["input_shape"]) if self.process else size
        self.read = Standardize((width,)) if self.process else None
        small = Perceptron((width + 2 * outputs + self.told + tempered,), hidden)
        self.scale, self.layers = small.standardize, small.layers

    @classmethod
    def describe(cls, start: Beginning, x: Tensor) -> dict[str, Any]:
        """The config of a trunk that begins so, at inputs like x."""
        classes, size = start.head.shape
        outputs = 1 if classes == 2 else classes
        network, products = None, classes * size
        if start.trunk is not None:
            network = Operations.describe(start.trunk)
            with counted(), metered() as meter:
                start.trunk.run(x[:2])
            products += (meter.operations or 0) // 4
        alone = start.draws is not None
        rank = 0 if start.draws is None else min(len(start.draws) - 1, size)
        told = alone and start.has_few_moments()
        tempered = alone and not told
        most = max(MOST_TOLD, int(SHARE_TOLD * products)) // (outputs * size)
        rank = min(rank, DIRECTIONS if tempered else max(1, most))
        budget = SHARE * products if products > LARGE else SMALL
        read = x[0].numel() if start.process else size
        cost = {w: (read + 3 * outputs * told + w) * w + w * classes for w in WIDTHS}
        width = next((w for w in WIDTHS if cost[w] <= budget), WIDTHS[-1])
        sizes = {"size": size - 1, "outputs": outputs * told, "rank": rank}
        plain = {"kind": "plug_in", "input_shape": list(x.shape[1:]), "network": network}
        found = {**plain, **sizes, "hidden": [width, width], "tempered": tempered}
        forms = {"process": start.process, "spread": tempered}
        return {**found, **{name: True for name, so in forms.items() if so}}

    def merges(self, rows: int = MANY) -> bool:
        """Whether linear heads and the first layer had better read so many rows in one product."""
        first = self.layers[0]
        return (
            not torch.compiler.is_compiling()
            and rows >= MANY
            and "forward" not in vars(self)  # which runs in another precision
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
        x = x[evenly(len(x), SET_UP)].to(x.dtype if self.keeps_digits else self.mean.dtype)
        self.standardize.fit(in_blocks(self.shaped, x), self.axes)
        if self.read is not None:
            self.read.fit(x.flatten(1), (0,))
        classes = len(start.head)
        weight, bias = start.head[:, :-1], start.head[:, -1:]
        if self.outputs:
            assert start.draws is not None
            self._take_moments(start.draws)
            weight = torch.tensor([[-0.5, 0.0], [0.5, 0.0]]) if classes == 2 else torch.eye(classes)
            bias = torch.zeros(classes, 1)
        if self.temperature is not None:
            nn.init.zeros_(self.temperature.weight)
            nn.init.zeros_(self.temperature.bias)
            assert start.draws is not None
            self._take_average(start.draws)
            weight, bias = start.head, torch.zeros(classes, 1)
        self.scale.fit(in_blocks(lambda rows: torch.cat(self._read(rows)[0], -1), x), (0,))
        unread = torch.zeros(classes, self.num_features - weight.shape[1])
        head = torch.cat([each.to(x.device, self.mean.dtype) for each in (unread, weight, bias)], 1)
        last = torch.zeros_like(head[:1])
        last[0, -2] = float(self.outputs == 1)
        if self.spread:  # which stands before the features
            last[0, [-3 - weight.shape[1], -2 - weight.shape[1], -1]] = self._spoken(head, x)
        return torch.cat([head, last])

    def _spoken(self, head: Tensor, x: Tensor) -> Tensor:
        """What g begins as: factors of log v and of its square, and a constant."""
        x = x[evenly(len(x), TELLING)]
        log_mean = torch.nn.functional.linear(self(x), head[:, :-1], head[:, -1]).log_softmax(-1)
        spread = self._read(x)[0][1]
        told = informed_concentration(log_mean, spread.exp()).double().cpu()
        powers = torch.cat([spread, spread.square(), torch.ones_like(spread)], 1).double().cpu()
        # On a processor, whose routine allows for a spread that does not vary.
        return torch.linalg.lstsq(powers, told).solution.squeeze(1).to(head)

    def tell_again(self, start: Beginning) -> None:
        """Take the moments of the logits of a posterior that has changed, where they are told.

        A process of other functions, as of more inducing inputs, is not told: training learns it.
        """
        if not self.outputs or start.draws is None:
            return
        if self.process and self.network is not None and start.trunk is not None:
            if not self.network.fits(start.trunk):
                return
            self.network.start_at(start.trunk.weights.values())
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

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the logits ``(N, O)`` at standardised features ``(N, F)``."""
        weights = torch.cat([self.mean[None], self.factor]).flatten(0, 1)
        found = torch.addmm(weights[:, -1], z, weights[:, :-1].mT).unflatten(-1, (-1, self.outputs))
        return found[:, 0], found[:, 1:].square().sum(1)

    def average(self, z: Tensor) -> Tensor:
        """Variance of a logit at standardised features ``(N, F)``, averaged over C, ``(N, 1)``."""
        directions = self.factor.squeeze(1)
        along = torch.addmm(directions[:, -1], z, directions[:, :-1].mT).square()
        rest = torch.addmv(self.rest[-1:], z.square(), self.rest[:-1])
        return along.sum(-1, keepdim=True) + rest[:, None]

    def _read(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What the small network reads, and what the heads read beside its features."""
        features = self.shaped(x)
        z = self.standardize(features)
        if self.temperature is not None:
            return [z, self.average(z).clamp_min(LEAST).log()], features.to(z.dtype)
        if not self.outputs:
            return [z], features
        mean, variance = self.moments(z)
        if self.outputs == 1:
            moderated = torch.cat(averaged_logit(mean, variance), -1)
        else:
            moderated = mean * (1.0 + math.pi / 8.0 * variance).rsqrt()
        bent = (z if self.read is None else self.read(x.flatten(1))).asinh()  # for heavy tails
        return [bent, mean.asinh(), variance.clamp_min(LEAST).log(), moderated], moderated

    @property
    def stays(self) -> bool:
        """Whether no weight that is trained changes what the small network reads."""
        trained = () if self.network is None else self.network.parameters()
        return self.outputs > 0 and next(iter(trained), None) is None

    def told_at(self, x: Tensor) -> Tensor:
        """What the small network reads and what the heads read beside its features ``(N, R)``."""
        told, plain = self._read(x)
        return torch.cat([self.scale(torch.cat(told, -1)), plain], -1)

    def after(self, told: Tensor) -> Tensor:
        """Features ``(N, H + O)`` or H + 2, from what :meth:`told_at` gives."""
        read, plain = told.tensor_split([told.shape[1] - self.told], 1)
        return torch.cat([self.layers(read), plain], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, H + F)``; where moments of logits are told ``(N, H + O)``, or H + 2."""
        if self.outputs:
            return self.after(self.told_at(x))
        told, plain = self._read(x)
        read = told[0] if len(told) == 1 else self.scale(torch.cat(told, -1))
        small = self.layers(read)
        if self.temperature is None:
            return torch.cat([small, plain], -1)
        t = (MOST_TEMPERATURE * self.temperature(small).tanh()).exp()
        spread = [told[1], told[1].square()] if self.spread else []
        return torch.cat([small, *spread, t * plain, t], -1)


def _summed(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return bias + (x[:, None] * weight).sum(-1)


class AfterTold(nn.Module):
    """What a :class:`PlugInTrunk` does with :meth:`~PlugInTrunk.told_at`, which stays."""

    def __init__(self, trunk: PlugInTrunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, told: Tensor) -> Tensor:
        """Features ``(N, H + O)``, or H + 2."""
        return self.trunk.after(told)
