"""Distil a posterior, once, into a student that answers in one forward pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from pyro_opu.choosing import GuideName, LossName, choice_of
from pyro_opu.guides.base import student_at
from pyro_opu.inputs import InputLike
from pyro_opu.objectives import Adversarial, Objective
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.predictive.distillation_report import warn_of_worthless, work
from pyro_opu.predictive.drop_in import student_of
from pyro_opu.predictive.with_novelty import with_novelty
from pyro_opu.predictive.with_watch import with_watch
from pyro_opu.reports.mixing import check_mixing
from pyro_opu.teachers import Source as TeacherSource
from pyro_opu.teachers.finished import finished_teacher
from pyro_opu.teachers.held import held_draws
from pyro_opu.teachers.own_rows import check_own_rows
from pyro_opu.training import tuned
from pyro_opu.training.arguments import checked_arguments
from pyro_opu.training.batches import Batches, makes_again
from pyro_opu.training.certify import certify
from pyro_opu.training.choose import at_rest, check_start, choose_guide
from pyro_opu.training.held_out import hold_out, label_rows
from pyro_opu.training.joint import joint_guide
from pyro_opu.training.options import Request, Training
from pyro_opu.training.plan import AT_REST, plan_of
from pyro_opu.training.run import run_of
from pyro_opu.training.train import recalibrated, train
from pyro_opu.training.tuned import Effort
from pyro_opu.transfer import TransferPolicy
from pyro_opu.transfer.default import transfer_for
from pyro_opu.transfer.indices import at_made_up_inputs, unmoved_columns


@checked_arguments
def distill(
    source: TeacherSource,
    x: InputLike | Iterable[object],
    *,
    guide: nn.Module | GuideName | None = None,
    loss: LossName | Objective | None = None,
    transfer: TransferPolicy | None = None,
    start: OnePassPredictive | None = None,
    effort: Effort | float = "default",
    num_steps: int | None = None,
    seed: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callable[[dict[str, Any]], object] | None = None,
    training: Training = Training(),  # noqa: B008
) -> OnePassPredictive:
    r"""Learn, once, a network that answers in one forward pass as a posterior does.

    Example:
        >>> network = nn.Sequential(nn.Dropout(), nn.Linear(2, 3))
        >>> fast = distill(network, torch.randn(99, 2), num_steps=5, progress=False)
        >>> fast.uncertainty(torch.randn(4, 2)).epistemic.shape  # in nats
        torch.Size([4])

    What is learned is a student :math:`\mathrm{Dir}(\alpha(x))`, or another distribution of class
    probabilities, of a teacher :math:`p(\pi|x,D)`.

    Without a ``loss`` the student is fitted in closed form, without a critic: cross-entropy for h,
    moment matching for g. With one this is the warm start, nine tenths of the steps, and the
    objective refines it, unless it is already nearer to the posterior than the judging draws are.
    The best iterate on held-out transfer inputs is kept, and its moments are read as the nearer
    distribution, Dirichlet or normal sticks. ``print(fast.report)`` says what was learnt and spent.

    A teacher whose held draws have not mixed is reported first (:func:`~pyro_opu.mixing`). No
    labels are needed; the transfer policy makes inputs around and away from ``x`` too.

    The outcome decides the guides, losses and scores (``pyro_opu.choosing``). The student of a real
    y is :math:`N(\mu(x), a(x) + e(x))`, with the aleatoric variance
    :math:`a = \mathbb{E}\,\sigma_\theta^2` and the epistemic one
    :math:`e = \operatorname{Var} f_\theta`, or a mixture of such normals. With several labels,
    vectors, counts or several observed sites each has an answer of its own.

    Under ``torchrun``, or in any process group of ``torch.distributed``, all processes train one
    student; each must make the call with the same arguments. If one fails, the others stop at once;
    with a ``checkpoint`` the run resumes when ``torchrun --max-restarts`` restarts it.

    Args:
        source: Whatever :func:`~pyro_opu.as_teacher` takes: a ``Predictive``, an ``MCMC`` run, a
            dropout network, an ensemble, a callable, a ``Teacher``.
        x: Transfer inputs ``(N, D)`` or ``(N, *input_shape)``, best not those the teacher was
            trained on; floating and finite. Or several with N rows each: a tuple, given to the
            model by position, or a dict, by name; whole numbers are indices, and ``(N,)`` is one
            number per row. Or a ``DataLoader`` (any restartable iterable) whose batches are such
            inputs, tensors or dicts, or tuples that begin with them, ``(x, y)``; several inputs by
            position are a tuple inside it, ``((x, group), y)``. Its first rows, at most 16,384
            and about 2^24 numbers, give the held-out inputs and all scales; then a window of as
            many rows moves over it (:class:`~pyro_opu.transfer.stream.Stream`).
        guide: By default the posterior's own network where it can be recorded, with a small network
            on its last features; where every draw is affine in the inputs for each index, a closed
            form beside a small network; where the posterior is over a linear head alone, or is a
            Gaussian process, a small network that reads mean and variance of the logits, or of too
            many their average. It answers with a Dirichlet or :class:`.NormalSticks`, by the draws,
            or with a mixture where the best of both leave more than 3 % of the draws' spread
            (``fast.report["misfit"]``), unless that costs much. "network" is the same on a network
            of this package; a name of :data:`pyro_opu.guides.GUIDES` is that family on such a
            network. "joint" has ``num_samples`` draws beside the default that are joint over inputs
            (:class:`~pyro_opu.guides.joint.JointGuide`). "implicit" makes draws of a row from
            noise, and has no density. Or any module ``x -> Dirichlet``, or to another distribution
            on the simplex, trained in place.
        loss: By default what suits the guide's family, for all steps: cross-entropy for h and
            moments for g of a Dirichlet, likelihood and then energy distance of a mixture or
            another density. Or "wasserstein", "moments", "energy", "likelihood", "cross_entropy",
            "endd", "proxy", or an :class:`~pyro_opu.Objective`; for a regressor "moments" or
            "crps". With guide="joint", "wasserstein" learns a witness of joint distributions too.
        transfer: A transfer policy; by default one for tables or for images, which is refused
            where a column of ``x`` is an index to the model.
        start: An earlier student of the same inputs and outcome, to begin at when the posterior has
            changed a little: new rows, or more draws. It stays as it is. By default a tenth of the
            steps and a fifth of the labels are then taken; the report says how far the posterior
            has moved. A family that was left to the draws is chosen anew, and another begins at
            the posterior's network.
        effort: "quick", "default" or "thorough": 1,000, 3,000 or 12,000 steps, at inputs labelled
            once, at most 2^14, 2^16 or 2^18 of them. A student that reads the logits
            classes, or begins as near as 1,000 draws, gets the quick ones; one in closed form that
            is excellent as it begins takes none, unless "thorough", steps or a ``loss`` are asked
            for. Or so many seconds from the call to the return, by a clock: another run then takes
            other steps, and too few seconds are warned of.
        num_steps: Steps in all, in place of those of ``effort``, at most: the closed-form ones end
            early where the held-out energy distance no longer falls.
        seed: Fixes everything random, in several threads at once too; by default it is drawn from
            torch's generator.
        device: Where the student is trained; by default where ``x`` is. "cuda" is a GPU for every
            rank of a machine.
        progress: Show a bar for each phase, with its remaining time and how near the student is.
        checkpoint: A file to resume from, if it exists, and to write at every evaluation. A killed
            run started again ends with the weights of an unbroken one. A file is refused where
            anything differs that the weights depend on, the number of threads among it.
        callback: Called at every evaluation, on the first rank, with a record: "phase", "step", the
            parts of the loss, and held-out scores as in ``fast.report["history"]``.
        training: Batches, draws, the rate and the warm start (:class:`~pyro_opu.Training`).

    Returns:
        The drop-in for ``source``; on every rank the same.

    Raises:
        TypeError: ``x`` or ``source`` or ``loss`` of a wrong type.
        ValueError: bad values of any argument; a teacher with one draw or one class; a site
            that is not observed, or a latent one asked for; a device this machine does not have;
            ranks that were called with different arguments, or more ranks than ``batch_size``.
        DistillationError: the loss or the student's answers stopped being finite.
        RuntimeError: another rank has left with an error, or has died.

    References:
        Cui, Yao, Li, Chan and Xue (2019), Algorithm 1; the warm start, the selection and the
        recalibration are this project's. For a real y Korattikara, Rathod, Murphy and Welling
        (2015), Bayesian Dark Knowledge, section 2.2.
    """
    training = replace(training, num_steps=training.steps(num_steps))
    request = Request(effort, training, guide, start)
    clock, keep = request.clock, not request.single_draw
    with run_of(
        source, x, seed, device, checkpoint, progress, callback, keep=keep, clock=clock
    ) as run:
        x, form = run.inputs.tensor, run.inputs.form
        with run.random.borrowed():
            # The teacher, and its draws at rows that judge, which are the same for all guides.
            teacher = finished_teacher(source, x, form=form, num_draws=request.look)
            choice, said, codes = choice_of(teacher.outcome), teacher.options, teacher.codes(x)
            held = held_draws(teacher, x, said.num_samples, run.seed) if request.joint else None
            if not request.single_draw:
                check_own_rows(teacher, x)
            sites = teacher.layouts(x, said.return_sites)
            check_start(request, teacher.outcome, run.inputs, sites)
            some, rest = hold_out(x)
            policy = transfer_for(
                rest, transfer, form, teacher.stream, in_steps=teacher.in_steps, codes=codes
            )
            timer = partial(run.timer, tuned.JUDGING_SHARE) if clock.runs else None
            label = partial(
                label_rows,
                teacher,
                device=run.device,
                progress=run.progress,
                thrift=request.thrift,
                timer=timer,
            )
            judge = label(
                some,
                tuned.VALIDATION_NUMBERS,
                "held out",
                queries=request.judging,
                timer=timer and partial(timer, ranks=run.ranks),
            )
            mixing = check_mixing(teacher, judge.x.to(x.device), judge.draws)
            sampler = run.sampler(policy, rest, judge.x)
            # The student, what it descends, and the numbers of the run.
            unmoved = unmoved_columns(x, transfer is None, codes)
            chosen = choose_guide(request, teacher, choice, judge, run, unmoved)
            student = chosen.guide
            losses = choice.objectives(student, x[:2].to(run.device), loss)
            closed_form, objective = losses
            judge = judge.for_objective(closed_form).for_objective(objective)
            learned = isinstance(objective, Adversarial)
            if request.law_is_open and not training.warm_start and learned:
                choice.teach_as(student, judge)
            rests, near = False, None
            if request.may_rest(loss):
                rests, near = at_rest(chosen, judge, request.law_is_open, run.ranks)
            plan = AT_REST
            if not rests:
                plan = plan_of(
                    request,
                    student,
                    *losses,
                    teacher,
                    rest,
                    judge,
                    run.ranks,
                    near,
                    run.progress,
                    remakes=makes_again(sampler, rest, run.device),
                )
            asked = teacher.draws_apart if request.single_draw else teacher.draws
            ask = at_made_up_inputs(asked)
            batches = Batches(ask, sampler, plan, run.device, teacher.max_draws, run.ranks)
        report = train(student, *losses, batches, judge, run)
        if training.recalibrate and not request.single_draw and plan != AT_REST:
            many = partial(label, x, plan.calibration, "calibration")
            report |= recalibrated(student, choice, many, request.law_is_open, run)
        answering = student
        if held is not None:  # no draw of which has been taught before
            steps = training.num_steps or plan.num_steps * request.share[0]
            answering, report["joint"] = joint_guide(
                student, held, sampler, judge.x, steps, run, learned
            )
        if run.stream is not None:
            run.stream.let_go()
        draws = said.num_samples or teacher.max_draws or teacher.default_draws
        report["bound"] = certify(run, request, answering, label, draws)
        queries = teacher.queries + (0 if held is None else held.queries)
        spent = work(
            report["history"],
            None if clock.runs else plan.num_steps,
            queries=sum(run.ranks.all_gather(queries)),
            seconds=time.perf_counter() - request.begun,
            teacher_seconds=teacher.seconds,
        )
        report |= run.ranks.broadcast(chosen.earlier | judge.summary(answering) | {"spent": spent})
        if run.ranks.first:
            warn_of_worthless(report)
        answered = partial(student_at, answering.eval())
        novel = run.some(x, answered, tuned.NOVELTY_SHARE, tuned.FEWEST_ROWS)
    fast = student_of(
        answering,
        teacher,
        x,
        sites,
        report={
            "seed": run.seed,
            "taught_by": f"{teacher!r}, at {len(x) + len(run.kept):,} transfer inputs",
            **({} if plan == AT_REST else {"inputs": policy.made}),
            "loss": type(objective).__name__,
            "guide": type(answering).__name__,
            **chosen.described,
            **chosen.started,
            "mixing": mixing.to_dict(),
            **report,
        },
    )
    fast = with_watch(with_novelty(fast, novel), novel, run.kept)
    clock.check()
    return fast
