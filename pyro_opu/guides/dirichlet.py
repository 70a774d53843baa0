r"""Default guide: :math:`x \mapsto \mathrm{Dir}(\alpha(x))`, :math:`\alpha = h(x)\, e^{g(x)}`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pyro_opu.checks import in_range, one_of
from pyro_opu.distributions import NormalSticks
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet
from pyro_opu.guides.base import check_head
from pyro_opu.guides.networks import default_trunk_config, fit_scales
from pyro_opu.guides.plug_in import MANY, NetworkTrunk
from pyro_opu.guides.trunks import build_trunk
from pyro_opu.inputs import Inputs, inputs_of
from pyro_opu.programs.watched import Kept

#: What a mean and a concentration are read as: a Dirichlet, or :class:`.NormalSticks`.
Law = Literal["dirichlet", "sticks"]
LAWS: tuple[Law, ...] = get_args(Law)
#: Classes up to which a CPU normalises down the columns of 100 rows and more sooner than along the
#: rows: of ten classes in an eighth of the time, of 30 not any more.
FEW_CLASSES = 16


def answer_of(law: Law, log_mean: Tensor, g: Tensor) -> PredictiveDirichlet | NormalSticks:
    """The answer of a guide, unchecked: ``(N, C)`` and ``(N,)``."""
    if law == "sticks":
        return NormalSticks(log_mean, g)
    return PredictiveDirichlet(log_mean, g, validate_args=False)


def normalised(logits: Tensor) -> Tensor:
    """Log probabilities ``(..., C)``."""
    if not logits.is_cpu or logits.shape[-1] > FEW_CLASSES:
        return logits.log_softmax(-1)
    return logits.mT.log_softmax(-2).mT.contiguous()


def merged(
    trunk: NetworkTrunk, mean_head: nn.Linear, concentration_head: nn.Linear, shift: Tensor
) -> tuple[Tensor, ...]:
    """What :func:`merged_answer` takes for two heads on a trunk; ``shift`` is added to g."""
    low, high = LOG_CONCENTRATION_RANGE
    weight = torch.cat([mean_head.weight, concentration_head.weight])
    bias = torch.cat([mean_head.bias, concentration_head.bias + (shift - high)])
    return (*trunk.merged(weight, bias), bias.new_full((), math.exp(low)))


def merged_answer(
    law: Law, trunk: NetworkTrunk, x: Tensor, parts: Sequence[Tensor]
) -> PredictiveDirichlet | NormalSticks:
    r"""The answer of both heads to rounding, in few operations.

    The soft clamp of g between log l and log h is :math:`\log (l + (h - l)\, \sigma(g - \log h))`.
    """
    *weights, least = parts
    low, high = map(math.exp, LOG_CONCENTRATION_RANGE)
    outputs = trunk.through(x, *weights)
    g = torch.add(least, outputs[:, -1].sigmoid(), alpha=high - low).log()
    return answer_of(law, normalised(outputs[:, :-1]), g)


class PredictiveGuide(nn.Module):
    r"""A Dirichlet over class probabilities as a function of x, in one forward pass.

    .. math::
        q(\pi \mid x; \phi) = \mathrm{Dir}(\pi \mid \alpha(x)), \quad
        \alpha(x) = h(x; \phi_1)\, e^{g(x; \phi_2)}, \quad \alpha_0(x) = e^{g(x)}

    The *prediction model* h is the mean; the *concentration model* g says how sure the posterior
    is. With one ``trunk`` both are heads on its features; with a ``concentration_trunk`` they are
    the paper's two networks. Draws are independent between inputs: the marginal of every input is
    the teacher's, the covariance between inputs is not.

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.
        concentration_trunk: A second module ``x -> (N, F2)`` for g; ``None`` shares the first.
        num_concentration_features: F2; by default F.

    Raises:
        TypeError: a trunk is not a module.
        ValueError: fewer than two classes, or no features.

    Example:
        >>> import torch
        >>> from pyro_opu import PredictiveGuide
        >>> trunk = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU())
        >>> dirichlet = PredictiveGuide(trunk, num_features=16, num_classes=3)(torch.zeros(5, 4))
        >>> dirichlet.batch_shape, dirichlet.event_shape
        (torch.Size([5]), torch.Size([3]))

    References:
        Cui, Yao, Li, Chan and Xue (2019), Accelerating Monte Carlo Bayesian Inference via
        Approximating Predictive Uncertainty over Simplex, eq. 3-4.
    """

    config: dict[str, Any] | None = None
    #: Law of the answers, "dirichlet" or "sticks".
    law: Law = "dirichlet"
    shift: Tensor

    def __init__(
        self,
        trunk: nn.Module,
        num_features: int,
        num_classes: int,
        concentration_trunk: nn.Module | None = None,
        num_concentration_features: int | None = None,
    ) -> None:
        super().__init__()
        check_head(trunk, num_features, num_classes)
        others = num_features if num_concentration_features is None else num_concentration_features
        if concentration_trunk is not None:
            check_head(concentration_trunk, others, num_classes)
        self.trunk = trunk
        self.concentration_trunk = concentration_trunk
        self.mean_head = nn.Linear(num_features, num_classes)
        self.concentration_head = nn.Linear(num_concentration_features or num_features, 1)
        # g -> g + shift, set by recalibration after training.
        self.register_buffer("shift", torch.zeros(()))
        self._shifted = False
        self._kept = Kept()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PredictiveGuide:
        """Build the guide that ``guide.config`` describes, with fresh weights.

        The config is ``{"trunk": ..., "num_classes": C, "shared": bool}``, "concentration_trunk"
        where g has a network of another size, and "law" where that is not the Dirichlet.
        """
        trunk, features = build_trunk(config["trunk"])
        other, others = None, features
        if not config["shared"]:
            other, others = build_trunk(config.get("concentration_trunk", config["trunk"]))
        guide = cls(trunk, features, config["num_classes"], other, others)
        guide.config = {"kind": "dirichlet", **config}
        guide.read_as(config.get("law", cls.law))
        return guide

    @classmethod
    def for_inputs(
        cls,
        x: Tensor | Inputs,
        num_classes: int,
        *,
        shared: bool = True,
        hidden: tuple[int, ...] | None = None,
        concentration_hidden: tuple[int, ...] | None = None,
    ) -> PredictiveGuide:
        """Build a guide sized to the inputs: a perceptron, or convolutions for images.

        Args:
            x: Inputs ``(N, *input_shape)``; their mean and scale standardise what the guide sees.
            num_classes: C.
            shared: One trunk with two heads, or (False) the paper's two separate networks.
            hidden: Widths of the hidden layers (for images: channels of two convolutions and the
                width after them); by default chosen by the input's size.
            concentration_hidden: Widths of a network for g alone, which makes ``shared`` False. A
                small one is a coarse copy of the posterior's concentration; to tell inputs that the
                student was not taught at, call :meth:`.OnePassPredictive.novelty`.
        """
        inputs = inputs_of(x)
        trunk = default_trunk_config(inputs, hidden)
        config = {"trunk": trunk, "num_classes": num_classes}
        if concentration_hidden is None:
            guide = cls.from_config({**config, "shared": shared})
        else:
            other = default_trunk_config(inputs, concentration_hidden)
            guide = cls.from_config({**config, "shared": False, "concentration_trunk": other})
        fit_scales(guide, inputs.tensor)
        return guide.to(inputs.tensor.device)

    @property
    def shared(self) -> bool:
        """Whether h and g are two heads of one trunk."""
        return self.concentration_trunk is None

    def _bounded(self, raw: Tensor) -> Tensor:
        if self._shifted:
            raw = raw + self.shift
        return soft_clamp(raw.squeeze(-1), *LOG_CONCENTRATION_RANGE)

    def forward(self, x: Tensor) -> PredictiveDirichlet | NormalSticks:
        """The answer at ``x``, of :attr:`law`: batch shape ``(N,)``, event shape ``(C,)``."""
        trunk = self.trunk
        if isinstance(trunk, NetworkTrunk):
            parts = self._kept.get() or self._merged(trunk, len(x))
            if parts is not None:
                return merged_answer(self.law, trunk, x, parts)
        features = trunk(x)
        other = features if self.concentration_trunk is None else self.concentration_trunk(x)
        log_mean = normalised(self.mean_head(features))
        return answer_of(self.law, log_mean, self._bounded(self.concentration_head(other)))

    def has_linear_heads(self) -> bool:
        """Whether both heads are on one trunk, and nobody has put anything else in their place."""
        return self.shared and type(self.mean_head) is type(self.concentration_head) is nn.Linear

    def _merged(self, trunk: NetworkTrunk, rows: int) -> tuple[Tensor, ...] | None:
        """What ``trunk.through`` takes; ``None`` where that is slower, or not the same.

        Where nobody trains a weight it is kept, and pays at any number of rows.
        """
        if not (self.has_linear_heads() and trunk.merges()):
            return None
        heads = self.mean_head, self.concentration_head
        merge = partial(merged, trunk, *heads, self.shift)
        if not heads[0].weight.requires_grad:
            network = () if trunk.network is None else trunk.network.modules()
            others = set(self.modules()) - set(network)
            modules = [trunk, *(others - {trunk})]
            kept: tuple[Tensor, ...] | None = self._kept.made(modules, merge)
            if kept is not None:
                return kept
        return merge() if rows >= MANY else None

    def mean(self, x: Tensor) -> Tensor:
        """The prediction model h(x), class probabilities ``(N, C)``."""
        return self.mean_head(self.trunk(x)).softmax(-1)

    def log_concentration(self, x: Tensor) -> Tensor:
        """The concentration model g(x) = log alpha_0, ``(N,)``."""
        trunk = self.trunk if self.concentration_trunk is None else self.concentration_trunk
        return self._bounded(self.concentration_head(trunk(x)))

    @torch.no_grad()
    def start_at(self, log_concentration: float) -> None:
        """Let g begin near ``log_concentration`` for every x, rather than near zero."""
        self.concentration_head.bias.fill_(in_range("log_concentration", log_concentration))

    def recalibrate(self, shift: float) -> None:
        """Replace g by ``g + shift`` before its soft clamp, after any earlier change."""
        self.shift.add_(in_range("shift", shift))
        self._shifted = True

    def read_as(self, law: Law) -> None:
        """Answer with another distribution of these moments: "dirichlet" or "sticks".

        Raises:
            ValueError: another name.
        """
        self.law = one_of("law", law, LAWS, "Both have one mean and one concentration.")
        if self.config is not None:
            own = {name: value for name, value in self.config.items() if name != "law"}
            self.config = own if law == "dirichlet" else {**own, "law": law}

    @torch.no_grad()
    def fold_calibration(self) -> None:
        """Recalibrate g's head itself, so that no pass has to."""
        self.concentration_head.bias.add_(self.shift)
        self.shift.zero_()
        self._shifted = False

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:  # noqa: ANN401
        super()._load_from_state_dict(*args, **kwargs)
        self._shifted = bool(self.shift)

    def extra_repr(self) -> str:
        form = "one trunk, two heads" if self.shared else "two networks"
        return f"alpha(x) = h(x) exp(g(x)), {form}"
