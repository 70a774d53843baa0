"""What else a ``Predictive`` has: the same of a student, or what to do in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from pyro_opu.checks import ArgumentTypeError
from pyro_opu.inputs import Form
from pyro_opu.parts import SiteLayout
from pyro_opu.programs.signature import ANY

#: Picks the input from the arguments of a call.
InputPicker = Callable[..., Tensor]

#: Attributes that a student cannot have, and why.
_LACKING = {
    "posterior_samples": "a student holds no posterior samples; read those of the Predictive that "
    "it was distilled from",
    "model": "a student answers without the model; keep the Predictive that it was distilled from",
    "parallel": "a student answers all draws in one pass, so there is nothing to run in parallel; "
    "leave it out",
    "get_vectorized_trace": "a student runs no model that could be traced; call it, or ask the "
    "Predictive that it was distilled from",
}


class LikePredictive(nn.Module):
    """The interface of ``pyro.infer.Predictive`` beside its call."""

    sites: Sequence[SiteLayout]
    arguments: tuple[str, ...]
    inputs: InputPicker | None
    form: Form

    @property
    def return_sites(self) -> tuple[str, ...]:
        """Names of the sites that come back; others are chosen when it is distilled."""
        return tuple(site.name for site in self.sites)

    def call(self, *args: object, **kwargs: object) -> tuple[Tensor, ...]:
        """The values of ``forward`` as a tuple sorted by site, as in ``Predictive.call``."""
        return tuple(value for _, value in sorted(self(*args, **kwargs).items()))

    def get_samples(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draws as a call gives them; ``Predictive``'s deprecated name for it."""
        draws: dict[str, Tensor] = self(*args, **kwargs)
        return draws

    def _input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The input of a call."""
        if self.inputs is not None:
            return self.inputs(*args, **kwargs)
        given = self.form.of_call(args, kwargs, next(iter(self.arguments), None))
        known = {*self.arguments, *(part.name for part in self.form.parts)}
        unknown = [name for name in kwargs if name not in known]
        if unknown and ANY not in self.arguments:
            raise ArgumentTypeError(
                f"keywords must be arguments of the model, {list(self.arguments) or 'none'}; got "
                f"{unknown}. Leave them out: how many draws come back is fast.num_samples, and "
                "which sites is said before, as_teacher(source, return_sites=[...])."
            )
        return given

    def __getattr__(self, name: str) -> Any:
        if name in _LACKING:
            raise AttributeError(f"{name}: {_LACKING[name]}.")
        return super().__getattr__(name)
