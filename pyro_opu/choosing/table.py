"""What suits a student of several numbers of every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from pyro_opu.checks import ArgumentError
from pyro_opu.choosing.base import NETWORK, Choice, GuideName, LossName
from pyro_opu.guides import table_at
from pyro_opu.guides.beginning import SCRATCH, Start
from pyro_opu.guides.implicit import ImplicitTableGuide
from pyro_opu.guides.table import TableGuide
from pyro_opu.inputs import PLAIN, Form, Inputs
from pyro_opu.judging import TableJudge
from pyro_opu.objectives import Objective
from pyro_opu.objectives.implicit import energy_of_draws, of_draws
from pyro_opu.objectives.table import TableMoments
from pyro_opu.parts import ImplicitTable, by_part


class ChoiceOfTable(Choice):
    """What suits a student of several numbers of every row."""

    guides: ClassVar[Mapping[Any, Any]] = {"table": TableGuide, "implicit": ImplicitTableGuide}

    def guide(
        self,
        name: GuideName | None,
        x: Tensor,
        held_out: TableJudge,
        found: Mapping[str, object],
        start: Start = SCRATCH,
        form: Form = PLAIN,
    ) -> nn.Module:
        """One network for all sites, which begins at the mean answer of all rows."""
        if name not in (None, NETWORK, *self.guides):
            raise ArgumentError(
                f"`guide` must be one of {[NETWORK, *self.guides]}, or left out, as the teacher "
                f"observes several numbers of every row; got {name!r}."
            )
        rows = len(held_out.x)
        shaped = by_part(held_out.draws, self.outcome.parts)
        draws = [each.unflatten(1, (rows, -1)) for each in shaped]
        if start.beginning is not None and name is None:
            return table_at(start.beginning, x, draws)
        family = self.guides["table" if name in (None, NETWORK) else name]
        guide: nn.Module = family.for_inputs(Inputs(x, form), self.outcome.parts).start_at(draws)
        return guide

    def objectives(
        self, guide: nn.Module, x: Tensor, loss: LossName | Objective | None
    ) -> tuple[Objective, Objective]:
        """The closed-form losses, summed; of a guide from noise the energy of whole draws."""
        if isinstance(self.answer_of(guide, x), ImplicitTable):
            return energy_of_draws(), of_draws(loss, table=True)
        if loss not in (None, "moments") and not isinstance(loss, TableMoments):
            raise ArgumentError(
                '`loss` must be "moments", or left out, as the teacher observes several numbers of '
                f"every row; got {loss!r}. For another distil one site: "
                "as_teacher(source, site=...)."
            )
        return TableMoments(self.outcome.parts), TableMoments(self.outcome.parts)
