"""Teach a guide draws that are joint over inputs, once its marginal answer is learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.guides.joint import DrawHeads, JointGuide, inputs_of_heads, outputs_of
from pyro_opu.objectives.joint import JointWitness, joint_energy
from pyro_opu.rng import RandomStream
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.held import HeldTeacher
from pyro_opu.training import tuned
from pyro_opu.training.batches import Sampler
from pyro_opu.training.console import tracked
from pyro_opu.training.descent import Descent, Losses, cosine
from pyro_opu.training.fit import KeepLast, Phase, fit
from pyro_opu.training.run import Run

__all__ = ["joint_guide"]


def joint_guide(
    marginal: nn.Module,
    teacher: HeldTeacher,
    policy: Sampler,
    held_out: Tensor,
    steps: int,
    run: Run,
    learned: bool = False,
) -> tuple[JointGuide, dict[str, Any]]:
    r"""A guide that answers as the ``marginal`` one and draws as the teacher does.

    Every draw of the teacher is taught to a head of its own: the heads descend

    .. math:: \mathbb{E}_x \operatorname{mean}_s \mathrm{KL}\big(\pi_s(x) \,\|\, \hat\pi_s(x)\big),

    which is zero where all draws, and so jointly, are the teacher's. The marginal guide is
    left as it is. Where what the draws say is linear in what the teacher's last layer reads, least
    squares finds the heads.

    Functions that differ in more than last layers have parts that no head can follow, so that the
    draws vary less than the teacher's. Random waves then take the place of these parts, and heads
    and waves descend the energy distance between joint distributions of groups of k inputs,

    .. math:: \mathbb{E}_{x_1, \dots, x_k}\, D\big((\pi(x_1), \dots, \pi(x_k)),\,
        (\hat\pi(x_1), \dots, \hat\pi(x_k))\big),

    which does not ask which draw is which; or for D the gain of a learned witness
    (:class:`~.objectives.joint.JointWitness`). They are kept where held-out groups are nearer, and
    not tried where these are as near as other draws of the posterior would be.

    Args:
        marginal: The guide, trained, with a ``trunk``.
        teacher: Draws that are held.
        policy: Gives the inputs to teach at.
        held_out: Inputs ``(N, ...)`` to judge by, on the guide's device.
        steps: Gradient steps.
        run: Its first rank teaches; the others take its guide.
        learned: Whether the joint distributions learn a witness, as the marginal guide did.

    Returns:
        The guide, frozen, and what its report says: "num_draws", "linear", "waves" (whether it has
        any, so that draws are like the teacher's, not these one for one), held-out "kl" of a
        draw from the teacher's, "kl_between" two of the teacher's draws, "spread" of the draws as a
        share of the teacher's.
    """
    ranks = run.ranks
    if ranks.first:
        guide, report = _taught(
            marginal, teacher, policy, held_out, steps, run.random, run.progress, learned
        )
        heads = {name: value.cpu() for name, value in guide.heads.state_dict().items()}
        ranks.broadcast((guide.heads.config, heads, report))
        return guide, report
    nothing: tuple[dict[str, Any], ...] = ({}, {}, {})
    config, heads, report = ranks.broadcast(nothing)
    guide = JointGuide(marginal, DrawHeads(**config).to(held_out.device))
    guide.heads.load_state_dict(heads)
    return guide, report


def _taught(
    marginal: nn.Module,
    teacher: HeldTeacher,
    policy: Sampler,
    held_out: Tensor,
    steps: int,
    random: RandomStream,
    progress: bool,
    learned: bool,
) -> tuple[JointGuide, dict[str, Any]]:
    device = held_out.device
    with random.borrowed():
        judged = _ask(teacher, held_out, device)
        x = policy.sample(_count(teacher, held_out))
        said = _ask(teacher, x, device, progress)
    x = x.to(device)
    guide = JointGuide.linear(marginal, x, said, min(tuned.MOST_LINEAR, len(x) // 4))
    if guide is None or not guide.is_exact(held_out, judged, tuned.LINEAR):
        with random.borrowed():
            guide = JointGuide.apart(marginal, x[:4096], said, tuned.APART)
        _fit(guide, x, said, steps, random, progress)
        guide = _by_law(guide, x, said, held_out, judged, steps, random, progress, learned)
    guide.requires_grad_(False).eval()
    with torch.no_grad():
        mine = guide.draws(held_out)
    return guide, {
        "num_draws": len(judged),
        "linear": guide.heads.linear,
        "waves": guide.heads.waves is not None,
        "kl": float(guide.distance(judged, mine)),
        "kl_between": float(guide.distance(judged, judged.roll(1, 0))),
        "spread": guide.spread(mine) / max(guide.spread(judged), 1e-30),
    }


def _count(teacher: HeldTeacher, x: Tensor) -> int:
    """Inputs to teach at, by memory and cost."""
    count, cost = teacher.size, teacher.operations(x)
    by_cost = tuned.HEADS_MOST if cost is None else tuned.HEADS_OPERATIONS // max(1, cost * count)
    return max(
        tuned.HEADS_FEWEST,
        min(tuned.HEADS_MOST, tuned.HEADS_NUMBERS // (count * teacher.num_outputs), by_cost),
    )


@torch.no_grad()
def _ask(teacher: BaseTeacher, x: Tensor, device: torch.device, progress: bool = False) -> Tensor:
    blocks = tracked(((len(b), b) for b in x.split(1024)), "joint labels", len(x), progress)
    said = [teacher.streamed(block) for block in blocks]
    return torch.cat(said, 1).to(device, torch.float32)


def _fit(
    guide: JointGuide, x: Tensor, said: Tensor, steps: int, random: RandomStream, progress: bool
) -> None:
    """Descend the distance; all draws share a part of their weights while they learn."""
    heads, u = guide.heads, _read(guide, x)
    with random.borrowed():
        shared = nn.Parameter(torch.randn_like(heads.weight[0]) * 2 * tuned.APART)
    at = said.movedim(1, 0).contiguous()  # inputs first: a batch is one block of memory each
    count = len(said)

    def losses() -> tuple[dict[str, Tensor], Any]:
        rows = torch.randint(len(u), (min(tuned.BATCH, len(u)),), device=u.device)
        index = torch.randperm(count, device=u.device)[: tuned.HEADS_DRAWS]
        psi = heads.features(u[rows])
        outputs = outputs_of(psi, heads.weight[index] + shared, heads.bias[index])
        theirs = at[rows][:, index].movedim(0, 1)
        return {"joint": guide.distance(theirs, guide.said(outputs))}, None

    _descend(
        "joint draws",
        losses,
        [*heads.parameters(), shared],
        tuned.HEADS_RATE,
        steps,
        random,
        progress,
    )
    with torch.no_grad():
        heads.weight.add_(shared)


def _by_law(
    guide: JointGuide,
    x: Tensor,
    said: Tensor,
    held_out: Tensor,
    judged: Tensor,
    steps: int,
    random: RandomStream,
    progress: bool,
    learned: bool = False,
) -> JointGuide:
    """Add random waves by joint distributions of groups, if held-out groups are nearer."""
    u, count, numbers = _read(guide, x), len(said), said.shape[-1]
    rows = min(tuned.JUDGED, max(4 * tuned.GROUP, tuned.MOST_DISTANCES // (count**2 * numbers)))
    chosen = held_out[:rows], judged[:, :rows]
    # One function is its law; and other draws of the posterior would be as far as 0, on average.
    if count < 2 or (before := _apart(guide, *chosen)) <= 0:
        return guide
    groups = max(4, min(tuned.GROUPS, tuned.WIDEST // numbers))
    with random.borrowed():
        tried = guide.with_waves(u[: tuned.JUDGED], said[:, : tuned.JUDGED])
        witness = JointWitness(u.shape[1], numbers).to(u.device)
    heads = tried.heads

    def drawn() -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of groups, and what draws of student and teacher say there."""
        rows = torch.randint(len(u), (groups * tuned.GROUP,), device=u.device)
        mine, theirs = (
            torch.randperm(count, device=u.device)[: tuned.HEADS_DRAWS] for _ in range(2)
        )
        found = guide.in_groups(tuned.GROUP, guide.said(heads(u[rows], mine)))
        asked = guide.in_groups(tuned.GROUP, said[theirs[:, None], rows])
        return heads.standardize(u[rows]).unflatten(0, (groups, tuned.GROUP)), found, asked

    def losses() -> tuple[dict[str, Tensor], Any]:
        at, *laws = drawn()
        return {"law": (witness.gain(at, *laws) if learned else joint_energy(*laws)).mean()}, None

    def of_witness() -> tuple[dict[str, Tensor], Any]:
        with torch.no_grad():
            seen = drawn()
        return {"witness": witness.loss(*seen)}, None

    steps = max(1, round(tuned.LAW_STEPS * steps))
    adam = torch.optim.Adam(witness.parameters(), lr=tuned.WITNESS_RATE, betas=(0.5, 0.99))
    critics = [Descent(of_witness, adam, rounds=lambda step: 2 if step else tuned.WITNESS_WARM)]
    critics = critics if learned else []
    rate, trained = tuned.LAW_RATE, [*heads.parameters()]
    _descend("joint distribution", losses, trained, rate, steps, random, progress, critics)
    nearer = _apart(tried, *chosen) < before
    return tried if nearer and _misspread(tried, *chosen) <= _misspread(guide, *chosen) else guide


@torch.no_grad()
def _misspread(guide: JointGuide, x: Tensor, said: Tensor) -> float:
    """How far the spread of the draws is off, as a factor's logarithm; by a tenth none is."""
    mine, theirs = (max(guide.spread(each), 1e-30) for each in (guide.draws(x), said))
    return max(abs(math.log(mine / theirs)), tuned.RIGHT_SPREAD)


@torch.no_grad()
def _apart(guide: JointGuide, x: Tensor, said: Tensor) -> float:
    """Energy distance between the joint distributions of groups of these inputs."""
    groups = guide.in_groups(tuned.GROUP, guide.draws(x)), guide.in_groups(tuned.GROUP, said)
    pairs = zip(*(each.split(8, 1) for each in groups), strict=True)
    return float(torch.cat([joint_energy(*pair) for pair in pairs]).mean())


@torch.no_grad()
def _read(guide: JointGuide, x: Tensor) -> Tensor:
    """What the heads read at the inputs that teach."""
    return torch.cat([inputs_of_heads(guide.marginal, rows, False) for rows in x.split(1024)])


def _descend(
    name: str,
    losses: Losses,
    trained: list[nn.Parameter],
    rate: float,
    steps: int,
    random: RandomStream,
    progress: bool,
    critics: Sequence[Descent] = (),
) -> None:
    adam = torch.optim.Adam(trained, lr=rate, betas=(0.9, 0.99), fused=True)
    descent = Descent(losses, adam, cosine(rate, steps))
    fit([Phase(name, steps, descent, critics)], KeepLast(), random=random, progress=progress)
