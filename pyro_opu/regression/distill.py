"""Learn a student of a regressor: mean, aleatoric and epistemic variance in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_device
from pyro_opu.distributed import together
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.distributions.normal_mixture import is_real_answer
from pyro_opu.guides.base import student_at
from pyro_opu.guides.normal import named_regression_guide
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.objectives import Objective
from pyro_opu.objectives.normal import (
    NormalCRPS,
    NormalMoments,
    RegressionObjective,
    as_regression_objective,
)
from pyro_opu.outcomes.real_layout import read_real_layouts
from pyro_opu.regression.predictive import OnePassRegression, regression_drop_in
from pyro_opu.reports.mixing import LEAST_DRAWS, MixingReport, draws_mixing, warned
from pyro_opu.rng import RandomStream
from pyro_opu.teachers.real import RealTeacher, RegressionTeacher
from pyro_opu.teachers.real_sources import as_regression_teacher
from pyro_opu.training.arguments import checked_arguments
from pyro_opu.training.autocast import checked_precision
from pyro_opu.training.checkpoint import Checkpoint
from pyro_opu.training.fit import Settings, Source, made_ready
from pyro_opu.training.loop import train
from pyro_opu.training.plan import (
    LABEL_BLOCKS,
    LABEL_DRAWS,
    chosen_rate,
    chosen_seed,
    draws_per_step,
    opened,
    split,
    transfer_inputs,
    warm_steps,
)
from pyro_opu.training.real_validation import RealLabelled
from pyro_opu.transfer import TransferPolicy
from pyro_opu.transfer.indices import at_made_up_inputs, check_indices
from pyro_opu.transfer.stream import Stream

__all__ = ["distill_regression"]

#: Held draws and inputs that are looked at for mixing, at most.
MIXING_DRAWS, MIXING_INPUTS = 4096, 64
#: Cheap draws in a step of the warm start, at most, where the loss itself costs more than they do.
CRPS_DRAWS = 128


@checked_arguments
def distill_regression(
    source: Any,
    x: Tensor | Iterable[Any] | Stream,
    *,
    guide: nn.Module | str | None = None,
    loss: str | Objective | None = None,
    transfer: TransferPolicy | None = None,
    num_steps: int = 3000,
    batch_size: int = 256,
    num_draws: int | None = None,
    learning_rate: float | None = None,
    warm_start: bool = True,
    seed: int | None = None,
    progress: bool = True,
    device: torch.device | str | None = None,
    site: str | None = None,
    return_sites: Sequence[str] | None = None,
    inputs: Callable[..., Tensor] | None = None,
    num_samples: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    evaluate_every: int = 100,
    accumulate: int = 1,
    precision: torch.dtype | None = None,
) -> OnePassRegression:
    r"""Learn a student :math:`N(\mu(x), a(x) + e(x))` of a teacher's real y.

    :func:`pyro_opu.distill` comes here by itself where the observed site is normal. The student
    takes the mean of y, the aleatoric variance :math:`a = \mathbb{E}\,\sigma_\theta^2` and the
    epistemic one :math:`e = \operatorname{Var} f_\theta` from the teacher's draws, which are exact
    moments of y for any teacher; a mixture of normals takes the shape too. The best iterate on
    held-out transfer inputs is kept. A teacher whose held draws have not mixed is reported first.

    Args:
        source: A ``Predictive`` whose observed site is normal, with one output per input, or a
            function ``x -> (loc, scale)`` of draws ``(S, N)``.
        x: Transfer inputs ``(N, D)`` or ``(N, *input_shape)``, best not those the teacher was
            trained on; floating and finite; or a loader of such.
        guide: "gaussian" (the default) or "mixture", for teachers whose draws lie apart; or any
            module ``x -> PredictiveNormal``, trained in place.
        loss: "moments" (the default for one normal), "crps" (for a mixture), or a
            :class:`~pyro_opu.regression.RegressionObjective`. Any but the default comes after a
            warm start by the default, nine tenths of the steps.
        transfer: As in :func:`~pyro_opu.distill`, like all that follows.
        num_steps: Steps in all.
        batch_size: Inputs per batch, of all ranks together.
        num_draws: Teacher's draws per input and step; under "crps" the warm start takes at most
            128 by default.
        learning_rate: Adam's at the top of the warm start's schedule; by default as in
            :func:`~pyro_opu.distill`.
        warm_start: False starts the objective from scratch.
        seed: Fixes everything random.
        progress: Show a bar.
        device: Where the student is trained; by default where ``x`` is.
        site: The observed normal site, when the model has several.
        return_sites: Sites that come back; by default those of the ``Predictive``. "mean" asks for
            draws of the mean of y.
        inputs: Picks the input from a call's arguments.
        num_samples: S of the answers; by default the ``Predictive``'s.
        checkpoint: A file to resume from, if it exists, and to write at every evaluation.
        evaluate_every: Steps between evaluations.
        accumulate: Batches per step.
        precision: ``torch.bfloat16`` for the guide's trunk in training.

    Returns:
        The drop-in for ``source``.

    Raises:
        TypeError: ``x`` or ``source`` or ``loss`` of a wrong type; a guide for classes.
        ValueError: bad values of any argument; a teacher with one draw, with a site that is not
            normal, or with several outputs; a latent site asked for.
        DistillationError: the loss or the student's answers stopped being finite.
        RuntimeError: another rank has left with an error, or has died.

    Example:
        >>> import torch
        >>> from pyro_opu.regression import distill_regression
        >>> w = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
        >>> teacher = lambda x: (w * x[:, 0], torch.ones(20, 1))
        >>> fast = distill_regression(teacher, torch.randn(50, 1), num_steps=5, seed=0,
        ...     progress=False)
        >>> fast(torch.zeros(4, 1))["obs"].shape, fast.uncertainty(torch.zeros(4, 1)).total.shape
        (torch.Size([20, 4]), torch.Size([4]))

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, section 2.2, for
        one variance and an online teacher.
    """
    with together() as ranks:
        resume = None if checkpoint is None else Checkpoint(checkpoint, ranks)
        seed = ranks.broadcast(chosen_seed(seed, resume))
        x, stream = opened(x, seed, ranks)
        target = ranks.device(x.device if device is None else check_device(device))
        random = RandomStream(seed, target)
        with random.borrowed():
            teacher = as_regression_teacher(source, site, inputs=inputs)
            _check_spread(teacher, x)
            if transfer is None:
                check_indices(teacher.stream, x)
            sites = read_real_layouts(teacher, x, return_sites)
            held_out, rest = _hold_out(teacher, x, target)
            mixing = _checked_mixing(teacher, held_out.x.to(x.device))
            if guide is None or isinstance(guide, str):
                f, log_scale = held_out.draws.unbind(-1)
                y = f + log_scale.exp() * torch.randn_like(f)
                guide = named_regression_guide(guide or "gaussian", x, y)
            guide = made_ready(guide, target)
            closed_form, objective = _objectives(guide, x[:2].to(target), loss)
            held_out = replace(held_out, by_moments=isinstance(objective, NormalMoments))
            warm = warm_steps(num_steps, objective, closed_form, warm_start)
            per_step = draws_per_step(teacher, x, num_draws, batch_size)
            warm_draws, draws = ranks.broadcast(per_step)
            if num_draws is None and isinstance(closed_form, NormalCRPS):
                warm_draws = min(warm_draws, CRPS_DRAWS)
            settings = Settings(
                warm,
                num_steps - warm,
                batch_size,
                warm_draws,
                draws,
                chosen_rate(learning_rate, guide),
                evaluate_every,
                accumulate=accumulate,
                precision=checked_precision(precision, guide),
            )
            drawn = transfer_inputs(transfer, stream, rest, held_out.x)
            feed = Source(
                at_made_up_inputs(teacher.draws), drawn, settings, target, teacher.max_draws, ranks
            )
        report = train(guide, closed_form, objective, feed, held_out, x, random, resume, progress)
    return regression_drop_in(
        guide,
        teacher,
        x,
        sites,
        num_samples=num_samples,
        inputs=inputs,
        report={
            "seed": seed,
            "loss": type(objective).__name__,
            "mixing": mixing.to_dict(),
            **report,
        },
    )


def _check_spread(teacher: RealTeacher, x: Tensor) -> None:
    """Refuse a teacher with nothing to teach."""
    if teacher.max_draws == 1 or len(teacher.draws(x[:2], teacher.max_draws)) == 1:
        raise ValueError(
            "`source` holds one posterior draw; expected at least two, or there is no uncertainty "
            "to learn. Pass more posterior samples."
        )


def _objectives(
    guide: nn.Module, x: Tensor, loss: str | Objective | None
) -> tuple[RegressionObjective, RegressionObjective]:
    """What the warm start makes small, and then the loss, by what the guide answers."""
    with torch.no_grad():
        answer = student_at(guide, x)
    if not is_real_answer(answer):
        raise TypeError(
            "`guide` must return a PredictiveNormal or a mixture of them for x, as the teacher's y "
            f'is real; got {type(answer).__name__}. Leave it out, or pass "mixture".'
        )
    if answer.batch_shape != x.shape[:1]:
        raise ValueError(
            f"`guide` must return a PredictiveNormal with batch shape ({len(x)},) for N = {len(x)};"
            f" got {tuple(answer.batch_shape)}. Squeeze its last axis."
        )
    one = isinstance(answer, PredictiveNormal)
    objective = as_regression_objective(loss or ("moments" if one else "crps"))
    if isinstance(objective, NormalMoments) and not one:
        raise ValueError(
            '`loss` "moments" needs a guide that answers with one normal, since moments do not say '
            'how to place several; got a mixture. Use "crps".'
        )
    return (NormalMoments() if one else NormalCRPS()), objective


def _hold_out(teacher: RealTeacher, x: Tensor, device: torch.device) -> tuple[RealLabelled, Tensor]:
    """Some transfer inputs with the teacher's draws, and the other inputs."""
    chosen, rest = split(x)
    num_draws = min(LABEL_DRAWS, teacher.max_draws or LABEL_DRAWS)
    blocks = chosen.chunk(LABEL_BLOCKS) if teacher.max_draws is None else [chosen]
    draws = torch.cat([teacher.draws(block, num_draws) for block in blocks], 1)
    return RealLabelled(chosen.to(device), draws.to(device, torch.float32)), rest


def _checked_mixing(teacher: RealTeacher, x: Tensor) -> MixingReport:
    """Mixing of the draws' means and scales, with a warning where they have not mixed."""
    count = teacher.max_draws
    if count is None or not isinstance(teacher, RegressionTeacher):
        return MixingReport(None, "the teacher's draws have no order of a chain.", count)
    if count < LEAST_DRAWS:
        return MixingReport(None, f"{count} draws are too few; {LEAST_DRAWS} are needed.", count)
    draws = teacher.draws(x[: max(2, MIXING_INPUTS * MIXING_DRAWS // max(count, MIXING_DRAWS))])
    draws[..., 0] /= teacher_moments(draws).scale  # units in which a movement is none
    report = draws_mixing(draws)
    reason = report.reason.replace("class probabilities", "means and scales")
    return warned(replace(report, reason=reason))
