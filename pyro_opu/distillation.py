"""Learn, once, a student that answers in one pass as a posterior does in hundreds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_device
from pyro_opu.distributed import together
from pyro_opu.distributions import Atoms, SimplexDistribution, is_answer
from pyro_opu.guides import PredictiveGuide, named_guide
from pyro_opu.guides.base import student_at
from pyro_opu.objectives import (
    CrossEntropy,
    EnergyDistance,
    MomentMatching,
    Objective,
    as_objective,
)
from pyro_opu.objectives.likelihood_first import LikelihoodFirst
from pyro_opu.outcomes.layout import read_layouts
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.predictive.drop_in import drop_in
from pyro_opu.reports.mixing import checked_mixing
from pyro_opu.rng import RandomStream
from pyro_opu.teachers import BaseTeacher, as_teacher
from pyro_opu.teachers import Source as TeacherSource
from pyro_opu.training.arguments import checked_arguments
from pyro_opu.training.autocast import checked_precision
from pyro_opu.training.checkpoint import Checkpoint
from pyro_opu.training.family import family_of, misfit
from pyro_opu.training.fit import Settings, Source, made_ready
from pyro_opu.training.loop import train
from pyro_opu.training.plan import (
    CALIBRATE_NUMBERS,
    JUDGE_NUMBERS,
    chosen_rate,
    chosen_seed,
    draws_per_step,
    labelled,
    opened,
    split,
    transfer_inputs,
    warm_steps,
)
from pyro_opu.training.validation import (
    calibrating_shift,
    log_concentration_of,
    sampling_distance,
)
from pyro_opu.transfer import TransferPolicy
from pyro_opu.transfer.indices import at_made_up_inputs, check_indices


@checked_arguments
def distill(
    source: TeacherSource,
    x: Tensor | Iterable[Any],
    *,
    guide: nn.Module | str | None = None,
    loss: str | Objective | None = None,
    transfer: TransferPolicy | None = None,
    num_steps: int = 3000,
    batch_size: int = 256,
    num_draws: int | None = None,
    learning_rate: float | None = None,
    warm_start: bool = True,
    recalibrate: bool = True,
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
) -> OnePassPredictive:
    r"""Learn a student :math:`\mathrm{Dir}(\alpha(x))` of a teacher :math:`p(\pi|x,D)`.

    Without a ``loss`` the student is fitted in closed form, without a critic: cross-entropy for h,
    moment matching for g. With one this is the warm start, nine tenths of the steps, and the
    objective goes on from there. The best iterate on held-out transfer inputs is kept, so a
    refinement that does not improve on the warm start is dropped, and a long one stops early. There
    is nothing to refine where the warm start is already nearer to the posterior than the S judging
    draws themselves are (``sampling_distance`` of ``pyro_opu.training.validation``). At last
    :math:`\alpha_0` is recalibrated so that the mean mutual information over the transfer inputs is
    the teacher's, as far as that does not move the student away from the draws. ``fast.report``
    says what was kept.

    A teacher whose held draws have not mixed is reported first (:func:`~pyro_opu.mixing`). No
    labels are needed, and where the student is taught decides what it knows: the teacher can label
    any input, so the transfer policy makes inputs around and away from ``x`` too.

    A regressor, a ``Predictive`` whose observed site is normal or a function ``x -> (loc, scale)``
    of draws, is distilled by :func:`pyro_opu.regression.distill_regression`, with its guides and
    losses and without a recalibration.

    Under ``torchrun``, or in any process group of ``torch.distributed``, all processes train the
    one student, and every one must make the call, with the same arguments. Where the group does
    not exist yet it is made, with gloo between CPUs and NCCL between GPUs. Each rank draws its
    share of every batch and asks the teacher there; gradients are averaged, rank 0 judges, writes
    the checkpoint and shows progress, and all end with the same weights. If one fails, the others
    stop at once. With a ``checkpoint`` the run goes on when ``torchrun --max-restarts`` starts it
    again after a worker has died.

    Args:
        source: Whatever :func:`~pyro_opu.as_teacher` takes: a ``Predictive``, a dropout network, an
            ensemble, a callable, a ``Teacher``.
        x: Transfer inputs ``(N, D)`` or ``(N, *input_shape)``, best not those the teacher was
            trained on; floating and finite. Or a ``DataLoader`` of such inputs, more than memory
            holds, that gives tensors or tuples whose first item is one; any iterable that begins
            anew will do. Its first rows, at most 16,384 and about 2^24 numbers, give what is held
            out and all scales; then a window of as many rows moves over it, from which the
            transfer policy draws (:class:`~pyro_opu.transfer.stream.Stream`).
        guide: A family by name (:data:`pyro_opu.guides.GUIDES`), sized to the input. By default
            "dirichlet", the :class:`~pyro_opu.PredictiveGuide`, or "mixture" where the best
            Dirichlet of every single input leaves more than 4 % of the draws' spread
            (:func:`pyro_opu.training.family.misfit`; ``fast.report["misfit"]``). Or any module
            ``x -> Dirichlet``, or to another distribution on the simplex; it is trained in place.
            Only a ``PredictiveGuide`` is recalibrated.
        loss: By default what suits the guide's family, for all steps: cross-entropy for h and
            moments for g of a Dirichlet, likelihood and then energy distance of a mixture or
            another density. Or "wasserstein", "moments", "energy", "likelihood", "cross_entropy",
            "endd", "proxy", or an :class:`~pyro_opu.Objective`: the default
            is then the warm start, and this the refinement.
        transfer: A transfer policy; by default one for tables or for images, which is refused
            where a column of ``x`` is an index to the model.
        num_steps: Steps in all; before another loss than the default nine tenths are the warm
            start.
        batch_size: Inputs per batch, of all ranks together.
        num_draws: Teacher's draws per input and step (all of a smaller posterior). By default 32,
            and in the warm start as many more, up to all, as cost little: all 500 of a logistic
            regression of two classes, 32 of a network.
        learning_rate: Adam's at the top of the warm start's schedule. By default 4e-3 where no
            layer is wider than 256 units, otherwise 1.024 over the width of the widest.
        warm_start: False starts the objective from scratch.
        recalibrate: Shift g at the end so that the mean mutual information is the teacher's. One
            Dirichlet cannot have the teacher's mutual information and its variance too, unless the
            teacher's draws are of Dirichlet shape; False keeps what the objective found, nearer to
            the variance. As much of the shift is taken as does not raise the energy distance over
            the transfer inputs. ``fast.report["recalibration"]`` has the shift asked
            for, the part taken, and the energy distance before and after.
        seed: Fixes everything random, in several threads at once too; torch's generator is left as
            it was. By default the seed is drawn from torch's generator.
        progress: Show a bar with the losses and the held-out fidelity.
        device: Where the student is trained; by default where ``x`` is. "cuda" is a GPU for every
            rank of a machine.
        site: The observed categorical site, when the model has several.
        return_sites: Sites that come back; by default those of the ``Predictive``. "probs" asks
            for the draws of class probabilities.
        inputs: Picks the input from a call's arguments, for models not called ``model(x, ...)``,
            such as ``lambda n, x: x``; the teacher is then asked in the same way, with ``None`` for
            other arguments without a default.
        num_samples: S of the answers; by default the ``Predictive``'s.
        checkpoint: A file to resume from, if it exists, and to write at every evaluation. A
            killed run started again ends with the weights of an unbroken one. It is refused where
            anything that the weights depend on differs: arguments, ``x``, the teacher's draws, the
            guide's modules, the number of threads (``pyro_opu.training.fingerprint``).
        evaluate_every: Steps between evaluations.
        accumulate: Batches per step, one after the other: the gradient of a batch so many times
            larger, in the memory of one.
        precision: ``torch.bfloat16`` runs the guide's trunk in it under autocast while it is
            trained; heads, the Dirichlet and losses stay in float32, and so does the student that
            is judged and returned. (float16, whose loss must be scaled, is refused.)

    Returns:
        The drop-in for ``source``; on every rank the same.

    Raises:
        TypeError: ``x`` or ``source`` or ``loss`` of a wrong type.
        ValueError: bad values of any argument; a teacher with one draw or one class; a site that
            is not categorical, or a latent one asked for; a device this machine does not have;
            ranks that were called with different arguments, or more ranks than ``batch_size``.
        DistillationError: the loss or the student's answers stopped being finite.
        RuntimeError: another rank has left with an error, or has died.

    Example:
        >>> import torch, pyro_opu
        >>> teacher = lambda x: torch.softmax(x @ torch.ones(2, 3) * torch.randn(20, 1, 1), -1)
        >>> fast = pyro_opu.distill(
        ...     teacher, torch.randn(50, 2), num_steps=5, seed=0, progress=False)
        >>> fast(torch.randn(4, 2))["obs"].shape
        torch.Size([20, 4])

    References:
        Cui, Yao, Li, Chan and Xue (2019), Algorithm 1; the warm start, the selection and the
        recalibration are this project's.
    """
    from pyro_opu.regression import distill_regression, is_regressor  # built on this module

    with together() as ranks:
        resume = None if checkpoint is None else Checkpoint(checkpoint, ranks)
        seed = ranks.broadcast(chosen_seed(seed, resume))
        x, stream = opened(x, seed, ranks)
        if is_regressor(source, x, site, inputs):
            return distill_regression(
                source,
                stream or x,
                guide=guide,
                loss=loss,
                transfer=transfer,
                num_steps=num_steps,
                batch_size=batch_size,
                num_draws=num_draws,
                learning_rate=learning_rate,
                warm_start=warm_start,
                seed=seed,
                progress=progress,
                device=device,
                site=site,
                return_sites=return_sites,
                inputs=inputs,
                num_samples=num_samples,
                checkpoint=checkpoint,
                evaluate_every=evaluate_every,
                accumulate=accumulate,
                precision=precision,
            )
        target = ranks.device(x.device if device is None else check_device(device))
        asked = None if loss is None else as_objective(loss)
        random = RandomStream(seed, target)
        with random.borrowed():
            teacher = as_teacher(source, site, inputs=inputs)
            num_classes = _check_teacher(teacher, x)
            if transfer is None:
                check_indices(teacher.stream, x)
            sites = read_layouts(teacher, x, return_sites)
            per_step = ranks.broadcast(draws_per_step(teacher, x, num_draws, batch_size))
            # Before all that depends on `guide`: a seed holds out the same inputs for all guides.
            chosen, rest = split(x)
            held_out = labelled(teacher, chosen, target, JUDGE_NUMBERS)
            mixing = checked_mixing(teacher, held_out.x.to(x.device), held_out.draws)
            share = ranks.broadcast(misfit(held_out))
            if guide is None or isinstance(guide, str):
                guide = named_guide(guide or family_of(share), x, num_classes)
                if isinstance(guide, PredictiveGuide):
                    guide.start_at(log_concentration_of(held_out))
            guide = made_ready(guide, target)
            closed_form = _first_objective(guide, x[:2].to(target), num_classes)
            objective = closed_form if asked is None else asked
            warm = warm_steps(num_steps, objective, closed_form, warm_start)
            settings = Settings(
                warm,
                num_steps - warm,
                batch_size,
                *per_step,
                chosen_rate(learning_rate, guide),
                evaluate_every,
                accumulate=accumulate,
                precision=checked_precision(precision, guide),
            )
            drawn = transfer_inputs(transfer, stream, rest, held_out.x)
            feed = Source(
                at_made_up_inputs(teacher.probs), drawn, settings, target, teacher.max_draws, ranks
            )
            enough = sampling_distance(held_out)
        report = train(
            guide, closed_form, objective, feed, held_out, x, random, resume, progress, enough
        )
        if recalibrate and isinstance(guide, PredictiveGuide):
            found: dict[str, float] = {}
            if ranks.first:
                with random.borrowed():
                    many = labelled(teacher, x, target, CALIBRATE_NUMBERS)
                    found = calibrating_shift(guide, many)
            report["recalibration"] = ranks.broadcast(found)
            guide.recalibrate(1.0, report["recalibration"]["shift"])
    return drop_in(
        guide,
        teacher,
        x,
        sites,
        num_samples=num_samples,
        inputs=inputs,
        report={
            "seed": seed,
            "loss": type(objective).__name__,
            "guide": type(guide).__name__,
            "misfit": share,
            "mixing": mixing.to_dict(),
            **report,
        },
    )


def _check_teacher(teacher: BaseTeacher, x: Tensor) -> int:
    """Number of classes; refuses a teacher with nothing to teach."""
    shape = teacher.probs(x[:2], None if teacher.max_draws is None else teacher.max_draws).shape
    if teacher.max_draws == 1 or shape[0] == 1:
        raise ValueError(
            "`source` holds one posterior draw; expected at least two, or there is no uncertainty "
            "to learn. Pass more posterior samples, or more networks."
        )
    if shape[-1] < 2:
        raise ValueError(
            f"`source` gives {shape[-1]} class; expected at least two (for two classes [1 - p, p])."
        )
    return shape[-1]


def _first_objective(guide: nn.Module, x: Tensor, num_classes: int) -> Objective:
    """What the warm start makes small, by what the guide answers; refuses what is no answer."""
    try:
        answer = student_at(guide, x)
    except Exception as error:
        raise ValueError(
            f"`guide` must answer inputs of shape {tuple(x.shape)} with a Dirichlet; it raised "
            f"{type(error).__name__}: {str(error)[:300]}. Try guide(x[:2]) by itself."
        ) from error
    if not is_answer(answer):
        raise TypeError(
            f"`guide` must return a Dirichlet for x; got {type(answer).__name__}. Put your network "
            "into a PredictiveGuide."
        )
    if answer.batch_shape != x.shape[:1] or answer.event_shape != (num_classes,):
        raise ValueError(
            f"`guide` must return a Dirichlet with batch shape ({len(x)},) and event shape "
            f"({num_classes},), the teacher's classes, for N = {len(x)}; got "
            f"{tuple(answer.batch_shape)} and {tuple(answer.event_shape)}. Check its last layer."
        )
    if not answer.mean.requires_grad or not torch.isfinite(answer.mean).all():
        fault = "NaN or infinity" if answer.mean.requires_grad else "one without gradient"
        raise ValueError(
            "`guide` must return a Dirichlet with a finite mean that depends on its weights; got "
            f"{fault}. Check its forward for NaN, torch.no_grad and .detach()."
        )
    if isinstance(answer, Atoms):
        return CrossEntropy()
    if not isinstance(answer, SimplexDistribution):
        return MomentMatching()
    # The likelihood needs a density, which a family of the user's own may lack.
    dense = type(answer).log_prob is not SimplexDistribution.log_prob
    return LikelihoodFirst() if dense else EnergyDistance(likelihood=1.0)
