"""The trunk of a student that begins at its teacher's network."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.guides.beginning import MOST_TOLD, Beginning, evenly
from pyro_opu.guides.networks import SET_UP, DefaultTrunk, Perceptron, Standardize, in_blocks
from pyro_opu.guides.operations import Operations
from pyro_opu.programs.cost import counted, metered

__all__ = ["NetworkTrunk"]

#: Widths of the network on the features: the first that takes no more than `FREE` products, or this
#: share of those of the teacher's network; or the last. MC dropout in 64-256-256-10 has students as
#: near as 280 draws by 64 units, 250 by 32 and 190 by 16, a small CNN 470 by 128 and 230 by 16.
WIDTHS, FREE, SHARE = (128, 64, 32, 16), 2**14, 0.05
#: Products where it stands beside no network: of a linear model, or of a Gaussian process, whose
#: kernel takes exponentials. Ten-class regression of digits has 700 draws by 128 units, 430 by 64.
#: The same beside one of several networks, which answer in a pass each: 20 of 64-32-10 have
#: students as near as 35 draws by 128 units, 24 by 64.
ALONE = 40_000
#: Where the moments of logits take more than `MOST_TOLD` products, a student is given one variance,
#: by so many directions and a diagonal; or of a single logit those of the leading directions that
#: take this share of the network's products.
DIRECTIONS, SHARE_TOLD = 8, 0.5
#: Rows of a matrix are filled up to a multiple of so many: products of 48 rows take three quarters
#: of the time of 43.
ALIGNED = 16
#: Rows from which on it saves time to merge weights in the pass itself; for fewer, only before.
MANY = 2**9
#: Outputs of the heads, a class each or something beside, up to which columns are quicker.
FEW_OUTPUTS = 20
#: Multiplications up to which a compiler for a GPU sums them in one kernel with what is around
#: them: a product by a library is another, and each in a graph takes more than a microsecond.
SUMMED = 2**20


class NetworkTrunk(DefaultTrunk):
    r"""A posterior's network up to its linear head, and a small network on its features.

    The mean of a posterior is no network of one draw, but nearly a smooth function of that
    network's last features :math:`\phi(x)`: the small network learns it. Its features and
    :math:`t(x)\, \phi` are what the heads of the student read; the temperature 1 / t, by which
    the average of many networks is less sure than one, is learnt too.

    Args:
        config: From :meth:`describe`: "network" with the steps to ``size`` features, ``None`` where
            they are the inputs; "hidden" widths; "tempered", without which t is 1; "untrained",
            where the network is to be moved as fast as everything else.
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
        self.temperature: Any = None
        self.untrained = bool(config.get("untrained"))
        self._build(config, size, hidden)

    def _build(self, config: dict[str, Any], size: int, hidden: tuple[int, ...]) -> None:
        """Make the small network."""
        self.layers = Perceptron((size,), hidden).layers
        self.num_features = hidden[-1] + size
        if config.get("tempered"):
            self.temperature = nn.Linear(hidden[-1], 1)

    @staticmethod
    def describe(start: Beginning, x: Tensor) -> dict[str, Any]:
        """The config of the trunk that begins so, of its "kind", at inputs like x."""
        classes, size = start.head.shape
        outputs = 1 if classes == 2 else classes
        network, passed = None, 0
        if start.trunk is not None:
            network = Operations.describe(start.trunk)
            with counted(), metered() as meter:
                start.trunk.run(x[:2])
            passed = (meter.operations or 0) // 4
        products = passed + classes * size
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
        no_network = not passed or start.process or start.untrained
        free = ALONE if no_network or start.several else FREE
        budget = free if no_network else max(free, SHARE * products)
        read = x[0].numel() if start.process else size
        cost = {w: (read + beside + w) * w + w * classes for w in WIDTHS}
        width = next((w for w in WIDTHS if cost[w] <= budget), WIDTHS[-1])
        plain = {"kind": kind, "input_shape": list(x.shape[1:]), "network": network}
        sizes = {"size": size - 1, "outputs": outputs, "rank": rank, "hidden": [width] * 2}
        if kind == "network":
            return {**plain, **sizes, "untrained" if start.untrained else "tempered": True}
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
            and type(first) is nn.Linear
            and first.weight.dtype in (torch.float32, torch.float64)
            and bool(getattr(self, self.read_by_first).near)
        )

    def merged(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """What :meth:`through` takes, for heads ``(K, H + F)`` on :meth:`forward`."""
        first: Any = self.layers[0]
        small, plain = weight.split([first.out_features, self.num_features - first.out_features], 1)
        own, own_bias, _ = self.standardize.folded(first.weight, first.bias)
        rows = len(own) + len(plain)
        unread = plain.new_zeros(-rows % ALIGNED, plain.shape[1])
        if self.temperature is not None:
            small = torch.cat([small, self.temperature.weight])
            bias = torch.cat([bias, self.temperature.bias])
        none = bias.new_zeros(len(plain) + len(unread))
        return torch.cat([own, plain, unread]), torch.cat([own_bias, none]), small, bias

    def through(self, x: Tensor, *merged: Tensor) -> Tensor:
        """Outputs of heads ``(N, K)``, as on :meth:`forward` to rounding, in fewer operations.

        One product gives the small network's first layer and the heads' part on the features, so
        that no tensor as wide as the features is made.
        """
        first, first_bias, last, bias = merged
        small, outputs = last.shape[1], len(last) - (self.temperature is not None)
        read = torch.nn.functional.linear(self.shaped(x).to(first.dtype), first, first_bias)
        features, plain = read.narrow(1, 0, small), read.narrow(1, small, outputs)
        for layer in islice(self.layers, 1, None):
            if isinstance(layer, nn.Linear) and self._is_summed(layer.weight):
                features = _summed(layer.bias, features, layer.weight)
            else:
                features = layer(features)
        found = (_summed if self._is_summed(last) else linear)(bias, features, last)
        if self.temperature is None:
            return plain + found
        log_t = found.narrow(1, outputs, 1)
        return torch.addcmul(found.narrow(1, 0, outputs), tempering(log_t), plain)

    def _is_summed(self, weight: Tensor) -> bool:
        return 0 < self.rows * weight.numel() <= SUMMED and torch.compiler.is_compiling()

    @torch.no_grad()
    def start_at(self, start: Beginning, x: Tensor) -> Tensor:
        """Begin there; returns the heads, of the mean and last of g, ``(C + 1, H + F + 1)``.

        They are weights and, last, biases; those of g are 0 where it is not known.
        """
        if self.network is not None and start.trunk is not None:
            self.network.start_at(start.trunk.weights.values())
        if self.temperature is not None:
            nn.init.zeros_(self.temperature.weight)
            nn.init.zeros_(self.temperature.bias)
        dtype = self.standardize.shift.dtype
        x = x if len(x) <= SET_UP else x[evenly(len(x), SET_UP)]
        x = x if self.keeps_digits else x.to(dtype)
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
        small = self.layers(self.standardize(features))
        if self.temperature is not None:
            features = tempering(self.temperature(small)) * features
        return torch.cat([small, features], -1)


def tempering(raw: Tensor) -> Tensor:
    """The factor t = exp(2 tanh(raw)) of logits, from a linear layer's answer."""
    root = raw.tanh().exp()
    return root * root


def linear(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer; of few outputs by columns, along which a CPU is quicker from here on."""
    if len(weight) <= FEW_OUTPUTS and x.is_cpu:
        return torch.addmm(bias[:, None], weight, x.mT).mT
    return torch.addmm(bias, x, weight.mT)


def _summed(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return bias + (x[:, None] * weight).sum(-1)
