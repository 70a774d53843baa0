"""Several posteriors, each given the same weight, as one teacher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Form
from pyro_opu.parts import Outcome
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.teachers.base import BaseTeacher


class MixtureTeacher(BaseTeacher[Tensor]):
    r"""An ensemble of posteriors: S / K draws of each of K teachers, in random order.

    .. math::
        p(\pi \mid x, D) = \frac1K \sum_{k=1}^K p_k(\pi \mid x, D)

    Members may be of different kinds: variational fits from several starts, chains, dropout
    networks. Where K does not divide S, members chosen at random give one draw more. Weights are
    equal, so the mixture holds K times the draws of its smallest member, and no more.

    Args:
        members: The teachers.

    Example:
        >>> from pyro_opu import as_teacher
        >>> nets = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout()) for _ in "ab"]
        >>> MixtureTeacher([as_teacher(net) for net in nets]).probs(torch.zeros(5, 2), 7).shape
        torch.Size([7, 5, 3])

    References:
        Li (2022), lecture notes on Bayesian neural networks, eq. 34. The mean of the members'
        evidence bounds is one of the mixture (eq. 38), so the members are fitted one by one.
    """

    def __init__(self, members: Sequence[BaseTeacher]) -> None:
        self.members = list(members)
        if not self.members:
            raise ArgumentError(
                "`members` must hold at least one teacher; got an empty sequence. Pass "
                "[as_teacher(source) for source in sources]."
            )

    @property
    def max_draws(self) -> int | None:  # type: ignore[override]
        """K times the draws of the smallest member; ``None`` where all draw afresh."""
        held = [m.max_draws for m in self.members if m.max_draws is not None]
        return len(self.members) * min(held) if held else None

    @property
    def in_steps(self) -> bool:  # type: ignore[override]
        """Whether all members are."""
        return all(member.in_steps for member in self.members)

    @property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.members for name in each.argument_names))

    def warn_of_laws(self) -> None:
        """Say what a student will not keep of the distributions that members observe."""
        for member in self.members:
            member.warn_of_laws()

    def _unpack_by(self, form: Form) -> None:
        for member in self.members:
            member.unpack_by(form)

    def _source_text(self) -> str:
        kinds = Counter(type(member).__name__ for member in self.members)
        return " + ".join(f"{count} {kind}" for kind, count in kinds.items())

    @property
    def latents(self) -> dict[str, str]:  # type: ignore[override]
        """The sum over all members."""
        return {name: said for m in self.members for name, said in m.latents.items()}

    @property
    def queries(self) -> int:  # type: ignore[override]
        """The sum over all members."""
        return sum(member.queries for member in self.members)

    def operations(self, x: Tensor) -> int | None:
        """Operations of the most costly member, or ``None`` where one does not know."""
        costs = [member.operations(x) for member in self.members]
        return None if None in costs else max(cost for cost in costs if cost is not None)

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The plug-ins of all members, but for noise, which is that of one alone."""
        found = [plug_in for member in self.members for plug_in in member.plug_ins(x)]
        return [plug_in for plug_in in found if not plug_in.of_noise]

    def _blocks(self, x: Tensor, num_draws: int | None) -> Iterator[Tensor]:
        for member in self.members:
            if member.uncounted:
                member.draws(x[:1])
        draws = self._checked(num_draws)
        order = torch.randperm(draws)
        streams = [
            member.stream(x, count)
            for member, count in zip(self.members, self._counts(draws), strict=True)
            if count
        ]
        for parts in in_step(streams):
            said = joined(parts)
            self._outcome = self._outcome or self._common()
            yield self._check_output(said[order.to(said.device)], said.shape[1])

    def _common(self) -> Outcome | None:
        """The outcome of the members that have been asked."""
        known = {m.outcome for m in self.members if m.is_known}
        for outcome in known:
            outcome.check_single()
        if len(known) > 1:
            raise ArgumentError(
                "`source`'s members must observe the same; got "
                f"{sorted(map(str, known))}. Were they fitted to the same data?"
            )
        return known.pop() if known else None

    def _counts(self, draws: int) -> list[int]:
        """Draws of each member."""
        each, more = divmod(draws, len(self.members))
        counts = torch.full((len(self.members),), each)
        counts[torch.randperm(len(self.members))[:more]] += 1
        return counts.tolist()


def in_step(streams: list[Iterator[Tensor]]) -> Iterator[list[Tensor]]:
    """The streams' blocks, cut to the same rows."""
    blocks = [next(stream, None) for stream in streams]
    while all(block is not None for block in blocks):
        held = [block for block in blocks if block is not None]
        rows = min(block.shape[1] for block in held)
        yield [block[:, :rows] for block in held]
        rest = zip([block[:, rows:] for block in held], streams, strict=True)
        blocks = [block if block.shape[1] else next(stream, None) for block, stream in rest]


def joined(parts: list[Tensor]) -> Tensor:
    """The members' draws, one member after another."""
    classes = {part.shape[-1] for part in parts}
    if len(classes) > 1:
        raise ArgumentError(
            "`source`'s members must agree on the classes; got "
            f"{sorted(classes)} classes. Were they fitted to the same labels?"
        )
    return torch.cat(parts)
