"""The loss of a student that answers several numbers of every row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pyro_opu.objectives.base import Objective
from pyro_opu.objectives.moments import MomentMatching
from pyro_opu.objectives.normal import NormalMoments
from pyro_opu.parts import Part, TableAnswer, by_part

__all__ = ["TableMoments"]


#: Weight of the concentrations of labels: by a tenth of it, as of a single label, the epistemic
#: parts of three are off by a quarter at single numbers, where by this they are within 3 %, and
#: intervals are nearer to their levels. Students of networks are then a fifth farther in KL.
LABELS_CONCENTRATION = 1.0


class TableMoments(Objective):
    """The closed-form loss of every part, summed: moments of classes, or of a real y or count.

    All its numbers count alike, as rows of their own. The teacher's draws are ``(S, N, K)``, the
    numbers of all parts side by side.
    """

    sufficient = True

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.of = tuple(parts)
        self.losses = [
            MomentMatching(concentration=LABELS_CONCENTRATION) if p.on_simplex else NormalMoments()
            for p in parts
        ]

    def parts(self, student: TableAnswer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        return self.parts_at(student, self.statistics(draws), x)

    def statistics(self, draws: Tensor) -> dict[str, Tensor]:
        """The moments of every part, ``(N, L, ...)``, by its site."""
        found = {}
        each = zip(self.of, self.losses, by_part(draws, self.of), strict=True)
        for part, loss, values in each:
            for name, value in loss.statistics(values).items():
                found[f"{part.site}/{name}"] = value.unflatten(0, (-1, part.columns))
        return found

    def parts_at(
        self, student: TableAnswer, statistics: dict[str, Tensor], x: Tensor
    ) -> dict[str, Tensor]:
        """Terms by site."""
        found: dict[str, Tensor] = {}
        for part, loss, answer in zip(self.of, self.losses, student.answers, strict=True):
            start = f"{part.site}/"
            own = {
                name.removeprefix(start): value.flatten(0, 1)
                for name, value in statistics.items()
                if name.startswith(start)
            }
            terms = loss.parts_at(answer, own, x)
            found |= {f"{part.site} {name}": value for name, value in terms.items()}
        return found
