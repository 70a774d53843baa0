"""Guides of one trunk and one linear head, and how any guide is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, instance_of, one_of, positive_int
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import known_form
from pyro_opu.guides.networks import default_trunk_config, fit_scales, keeps_digits
from pyro_opu.guides.trunks import build_trunk
from pyro_opu.inputs import Inputs, inputs_of

if TYPE_CHECKING:
    from typing import Self

Name = TypeVar("Name", bound=str)
Guide = TypeVar("Guide", bound=nn.Module)


def first_weight(module: nn.Module) -> Tensor | None:
    """The first of ``module.parameters()``, which counts all parts first; ``None`` without one."""
    for weight in module._parameters.values():
        if weight is not None:
            return weight
    for part in module._modules.values():
        if part is not None and (found := first_weight(part)) is not None:
            return found
    return None


def in_dtype_of(guide: nn.Module, x: Tensor) -> Tensor:
    """Cast inputs to the dtype of the guide's weights.

    float64 stays for a float32 guide that centres its inputs before it rounds them.
    """
    weight = first_weight(guide)
    if (
        weight is None
        or x.dtype == weight.dtype
        or (x.dtype == torch.float64 and weight.dtype == torch.float32 and keeps_digits(guide))
    ):
        return x
    return x.to(weight.dtype)


def family(name: str, families: Mapping[Name, type[Guide]], answer: str) -> type[Guide]:
    """The family of guides of this name; others are refused, with what a module may answer."""
    return families[one_of("guide", name, families, f"Or pass a module x -> {answer}.")]


def student_at(guide: nn.Module, x: Tensor) -> Any:
    """Call the guide at ``x``; any Dirichlet comes back as a ``PredictiveDirichlet``."""
    return known_form(guide(in_dtype_of(guide, x)))


def trunks_of(guide: nn.Module) -> dict[str, nn.Module]:
    """The trunks of a guide by name, to be run in another ``precision``."""
    found = {name: getattr(guide, name, None) for name in ("trunk", "concentration_trunk")}
    if not isinstance(found["trunk"], nn.Module):
        raise ArgumentError(
            "`precision` needs a guide with a module `trunk` to run in it; "
            f"{type(guide).__name__} has none. Leave it out, or use torch.autocast in its forward."
        )
    return {name: trunk for name, trunk in found.items() if trunk is not None}


def check_head(trunk: object, num_features: object, num_classes: object) -> None:
    """Check a trunk, the width F of its output, and the number of classes of a head on it."""
    advice = "For a linear head on x itself pass nn.Flatten()."
    instance_of("trunk", trunk, nn.Module, "an nn.Module x -> features (N, F)", advice)
    num_features = positive_int("num_features", num_features)
    num_classes = positive_int("num_classes", num_classes, 2, "Two classes are [1 - p, p].")


class HeadGuide(nn.Module):
    """A trunk and a linear head; each family says what the head's outputs mean."""

    #: Name in a saved file, and for ``distill(guide=...)``.
    kind: ClassVar[str]
    #: Further arguments of the constructor, in a config by themselves and under "options".
    sizes: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    #: What it answers with, as it is printed; a format of the guide itself.
    form: ClassVar[str] = ""
    config: dict[str, Any] | None = None
    trunk: nn.Module
    head: nn.Linear

    def extra_repr(self) -> str:
        return self.form.format(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the guide that ``guide.config`` describes, with fresh weights."""
        trunk, features = build_trunk(config["trunk"])
        sizes = {name: config[name] for name in cls.sizes}
        guide = cls(trunk, features, **sizes, **config.get("options", {}))
        options = {name: getattr(guide, name) for name in cls.options}
        guide.config = {**config, "kind": cls.kind, "options": options}
        return guide

    @classmethod
    def _sized(
        cls, x: Tensor | Inputs, hidden: tuple[int, ...] | None, config: Mapping[str, object]
    ) -> Self:
        """Build a guide whose trunk suits and standardises ``x``, on the device of ``x``."""
        inputs = inputs_of(x)
        guide = cls.from_config({"trunk": default_trunk_config(inputs, hidden), **config})
        fit_scales(guide, inputs.tensor)
        return guide.to(inputs.tensor.device)


class TrunkGuide(HeadGuide):
    """A trunk and a linear head whose outputs stand for a distribution on the simplex.

    ``trunk`` is any module ``x (N, ...) -> features (N, F)``, ``num_features`` is F,
    ``num_classes`` C >= 2.
    """

    sizes = ("num_classes",)

    def __init__(self, trunk: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        check_head(trunk, num_features, num_classes)
        self.trunk = trunk
        self.num_classes = num_classes
        self.head = nn.Linear(num_features, self.num_outputs(num_classes))

    def num_outputs(self, num_classes: int) -> int:
        """Number of outputs of the head; by default C."""
        return num_classes

    def answer(self, outputs: Tensor) -> SimplexDistribution:
        """The distribution that the head's outputs ``(N, num_outputs)`` stand for."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> SimplexDistribution:
        """The distribution at ``x``: batch shape ``(N,)``, event shape ``(C,)``."""
        return self.answer(self.head(self.trunk(x)))

    @classmethod
    def for_inputs(
        cls,
        x: Tensor | Inputs,
        num_classes: int,
        *,
        hidden: tuple[int, ...] | None = None,
        **options: object,
    ) -> Self:
        """Build a guide sized to the inputs, as :meth:`~pyro_opu.PredictiveGuide.for_inputs`.

        ``options`` are further arguments of the constructor.
        """
        return cls._sized(x, hidden, {"num_classes": num_classes, "options": options})
