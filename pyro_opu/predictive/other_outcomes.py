"""Drop-ins whose observed sites are no class label: a real y, or several numbers of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions import PredictiveDirichlet, PredictiveNormal
from pyro_opu.distributions.several import Part, SeveralAnswer
from pyro_opu.export.capture import Captured
from pyro_opu.outcomes import Outcome, Several, SiteLayout
from pyro_opu.packing import Packing
from pyro_opu.predictive.one_pass import STUDENTS, InputPicker, OnePassPredictive

__all__ = ["OnePassRegression", "OnePassSeveral"]


class OnePassRegression(OnePassPredictive):
    """The :class:`OnePassPredictive` of a real y, made by :func:`~pyro_opu.distill` or ``load``.

    Its guide is ``x -> PredictiveNormal`` or a mixture of normals, batch shape ``(N,)``; the other
    arguments and errors are those of :class:`~pyro_opu.OnePassPredictive`.
    """

    def __init__(
        self,
        guide: nn.Module,
        input_shape: Sequence[int],
        sites: Sequence[SiteLayout] = (SiteLayout("obs", "value", "float32", (-1,)),),
        num_samples: int = 500,
        *,
        input_name: str | None = None,
        inputs: InputPicker | None = None,
        packing: Packing | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        named: dict[str, Any] = {"input_name": input_name, "inputs": inputs, "report": report}
        super().__init__(guide, input_shape, None, sites, num_samples, packing=packing, **named)


class OnePassSeveral(OnePassPredictive):
    """The :class:`OnePassPredictive` of several numbers of every row, made by ``distill``.

    Several labels, several real numbers, counts, or several observed sites. Draws are independent
    between the numbers of a row: the marginals of every number are the teacher's, what they have in
    common is not, unless the guide is "implicit".

    Args:
        guide: ``x -> SeveralAnswer``, batch shape ``(N,)``.
        input_shape: Shape of one input.
        parts: The observed sites, :class:`~pyro_opu.distributions.several.Part`.
        sites: Layouts of the sites that come back; each is ``of`` an observed one.
        num_samples: S.
        input_name, inputs, packing, report: As of :class:`~pyro_opu.OnePassPredictive`.

    Raises:
        TypeError: a part of a wrong type, such as a guide that is not a module.
        ValueError: ``num_samples`` or ``input_shape`` not positive integers; no ``parts``.
    """

    def __init__(
        self,
        guide: nn.Module,
        input_shape: Sequence[int],
        parts: Sequence[Part],
        sites: Sequence[SiteLayout],
        num_samples: int = 500,
        *,
        input_name: str | None = None,
        inputs: InputPicker | None = None,
        packing: Packing | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        named: dict[str, Any] = {"input_name": input_name, "inputs": inputs, "report": report}
        super().__init__(guide, input_shape, None, sites, num_samples, packing=packing, **named)
        self.parts = tuple(parts)
        if not self.parts:
            raise ValueError("`parts` must hold at least one observed site; got none.")

    @property
    def outcome(self) -> Outcome:
        """Several numbers of every row."""
        return Several(self.parts)

    def distribution(self, x: Tensor) -> Any:
        """The answer of the observed site at ``x``, batch shape ``(N, *shape)``; one forward pass.

        Labels have a :class:`pyro.distributions.Dirichlet`, a real y a
        :class:`~pyro_opu.regression.PredictiveNormal`, counts a
        :class:`~pyro_opu.distributions.PredictiveCount` or, of so many trials, a
        :class:`~pyro_opu.distributions.PredictiveTrials`. Where there are several sites, a dict of
        such answers. ``x`` and errors are those of :meth:`.OnePassPredictive.distribution`.
        """
        return self._shown(self.answer(x))

    def _shown(self, answer: SeveralAnswer) -> Any:
        by_site = answer.by_site()
        return by_site if len(by_site) > 1 else by_site[self.parts[0].site]

    def dirichlet(self, x: Tensor) -> Any:
        """:meth:`distribution` of labels; of several sites, a dict of those that are labels."""
        return self._of_kind(x, PredictiveDirichlet, "dirichlet", "labels")

    def normal(self, x: Tensor) -> Any:
        """:meth:`distribution` of real numbers; of several sites, a dict of those that are real."""
        return self._of_kind(x, PredictiveNormal, "normal", "real numbers")

    def _of_kind(self, x: Tensor, kind: type, method: str, words: str) -> Any:
        by_site = self.answer(x).by_site()
        matched = {name: each.matched() for name, each in by_site.items()}
        found = {name: each for name, each in matched.items() if isinstance(each, kind)}
        if not found:
            raise TypeError(
                f"`{method}` needs a site of {words}; the student has {sorted(by_site)}, which are "
                "not. Call .distribution(x)."
            )
        return found if len(by_site) > 1 else found[self.parts[0].site]

    def uncertainty(self, x: Tensor) -> Any:
        """Total = aleatoric + epistemic uncertainty and more, ``(N, *shape)`` each.

        Of labels in nats, see :func:`pyro_opu.uncertainty`; of a real y or a count its mean and
        variances. Where there are several sites, a dict of these. The novelty is ``(N,)``.
        """
        answer, novelty = self._answer_and_novelty(x)
        by_site = {k: self._uncertainty(each, novelty) for k, each in answer.by_site().items()}
        return by_site if len(by_site) > 1 else by_site[self.parts[0].site]

    def capture(self, example: Tensor, *, precision: torch.dtype | None = None) -> Captured:
        """:meth:`distribution` as a CUDA graph, or on the CPU compiled."""
        captured = super().capture(example, precision=precision)
        captured.then = self._shown
        return captured

    def extra_repr(self) -> str:
        answers = ", ".join(f"{part.site} {part.kind} {part.shape or ''}" for part in self.parts)
        return f"input {self.input_shape} -> {answers}, num_samples={self.num_samples}"


STUDENTS |= {"real": OnePassRegression, "several": OnePassSeveral}
