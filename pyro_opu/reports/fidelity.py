"""How close a student is to its teacher, beside what is possible and what is trivial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_seed, positive_int
from pyro_opu.guides.novelty import NOVEL
from pyro_opu.inputs import InputLike
from pyro_opu.judging.advice import Known
from pyro_opu.reports.answers import Student, at_border, named_inputs, teacher_of
from pyro_opu.reports.comparing import Plan, comparisons_of
from pyro_opu.reports.fidelity_report import FidelityReport, SetFidelity
from pyro_opu.reports.local import Where, regions
from pyro_opu.reports.regions import corrected
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

__all__ = ["FidelityReport", "SetFidelity", "fidelity"]

#: Inputs at which novel ones are looked for.
LOOKED_AT = 2048
#: The name of the main input set in the report.
HELD_OUT = "held-out"


def fidelity(
    student: Student,
    teacher: Source,
    x: InputLike,
    *,
    extra: Mapping[str, Tensor] | None = None,
    num_draws: int = 500,
    chunk_size: int | None = None,
    seed: int | None = None,
    where: Where | None = None,
    wasserstein_inputs: int = 64,
) -> FidelityReport:
    r"""Compare a student's answers with draws of its teacher, and with what a perfect one scores.

    Two disjoint sets of ``S`` teacher draws are taken at every input, split at random for each
    anew, since a teacher's draws are joint over inputs: :math:`A` judges, :math:`B` is the floor.
    Where the posterior holds M draws these are random subsets, of ``S`` draws each if it holds
    ``2 S``, and otherwise its two halves; each judges in turn, and the results are averaged. M is
    :math:`\infty` otherwise. Judged by :math:`A` are

    - **student**: mostly :math:`\mathrm{Dir}(\alpha(x))`;
    - **attainable**: a perfect student, the very posterior that was taught. Its KL is not 0, since
      the mean of :math:`A` is not that of the posterior;
    - **floor**: :math:`B`, the teacher asked once more;
    - **best**: per input, the Dirichlet with the mean and the concentration (moments) of the
      posterior, without the sampling error of its fit. What lies between it and the attainable is
      the Dirichlet family's doing, not the student's;
    - **trivial**: one Dirichlet for all inputs, with the mean and concentration of all teacher
      draws at ``x`` together. It serves the extra sets too.

    The rows, each a mean over inputs:

    - ``kl``: :math:`\mathrm{KL}(\bar A\,\|\,m)` of the means of draws and answer, nats. Attainable
      is :math:`2 (1 - S / M)\, \mathrm{KL}(\bar A\,\|\,\overline{A \cup B})`: exact for a posterior
      of 2 S draws, a quarter of the floor there; half of the floor for fresh draws, to second
      order in the sampling error (too low for classes so rare that few draws have them);
    - ``draws``: **the unit of nearness**, the number of independent posterior draws whose mean errs
      as the student's does, :math:`S / ((r - 1)(1 - S / M))` with r the KL over the attainable
      (``kl_ratio``, which grows with S). At most 10,000; ``report.draws_interval`` is of 95 %, over
      inputs;
    - ``epistemic_factor``: by which the mutual information (of a real y the variance of its mean)
      is typically off at one input, exp of the median \|log ratio\|, without the noise of the
      draws; attainable is what this noise alone makes of a perfect student;
    - ``energy_share``: the energy distance as a share of the mean distance between two draws:
      1 / n for n draws;
    - ``energy_distance``: from the posterior, the M held draws equally likely, or what the fresh
      ones are a sample of. Unbiased: 0 is attainable, and it may be slightly negative. The best
      Dirichlet's is extrapolated from fits to S and to 2 S draws, with an error of order
      :math:`1 / S^2`;
    - ``wasserstein``: exact, between as many draws of both, on evenly spaced inputs; *not* 0 for a
      perfect answer, the floor is;
    - ``mutual_information`` (nats), ``variance`` (:math:`\sum_k \mathrm{Var}\,\pi_k`), and for both
      ``..._error``, the relative error of the mean over inputs (for the floor between two sets
      of joint draws, and without sign), and ``..._spearman``, the rank correlation over inputs. On
      draws, the variance is unbiased, and the mutual information free of its bias of order 1/S;
    - ``coverage_50``, ``coverage_90``: share of draws of :math:`A` in the central intervals of the
      answer's marginals (`central_coverage`; of an answer that is no Dirichlet those of ``S``
      draws), classes weighted by the mean of :math:`B`;
    - ``agreement``: share of inputs where the likeliest class is that of :math:`A`.

    For a regressor the best and the trivial answer are normals, and the rows are ``kl`` and
    ``kl_ratio``, of the normals with the moments of draws and answer; and

    - ``coverage_50``, ``coverage_90``: of f, and ``energy_share``, that of f;
    - ``mean_error``: root mean square, in units of A's deviation of y;
    - ``energy_distance``: of y, in the same units; ``mean_energy_distance``: of its mean f, in
      units of A's deviation of f, but of at least a tenth of y's;
    - ``aleatoric``, ``epistemic``: the variances, in units of y squared; for both ``..._error``,
      the typical relative error (median over inputs of \|answer / A - 1\|), and
      ``..._spearman``, the rank correlation over inputs.

    Where several numbers of every row are observed, each counts as a row, and trivial is one answer
    for each of them. There is one set for every site, named "held-out, obs" where there are several
    sites. Trials are judged as two classes, and counts as normals with their moments.

    ``by_certainty`` has a row for inputs where the largest mean probability of the teacher is below
    .7, .7-.9, .9-.99, .99-.999 and above (:class:`~pyro_opu.reports.certainty.CertaintyRow`).

    The report begins with what differs for those who use the answers, a grade, the measures that
    decide, and one next step (``report.verdict``, ``.grade``, ``.advice``). A student is
    ``faithful`` where (:mod:`pyro_opu.judging.yardstick` holds the limits)

    - its mean errs as that of 100 posterior draws, or of all that the posterior holds, at most;
    - its mutual information (or epistemic variance) is within a factor of 1.25 at single inputs,
      and of 1.1 on average;
    - its shape is right: the energy distance is at most 3 % of the spread, and the coverage of
      both central intervals within 10 points.

    It is ``True`` if each keeps to its limit by two standard errors, ``False`` if one lies beyond
    by three, and ``None`` otherwise, or of fewer than 10 inputs (20, to be ``True``): rows or draws
    are then too few to tell. ``False`` too if a limit is exceeded in a class of certainty with at
    least 10 inputs (a factor of 1.25 on average there), or if the rank correlation with the
    teacher's epistemic part is below .5 and that of the teacher, asked again, at least .8. Errors
    below 1e-5 nats are none. The errors are over inputs, and of the epistemic part over the
    teacher's draws, which inputs share.

    A student's draws are independent between inputs, a teacher's are not: the report is about the
    marginal distribution at every input, which is all that a Dirichlet per input can copy.

    Args:
        student: What `distill` returns, or any object with ``distribution(x)`` or
            ``dirichlet(x)``, or a guide ``x -> Dirichlet``.
        teacher: What `as_teacher` takes, or a regressor.
        x: Held-out inputs, shape ``(N, ...)``.
        extra: More sets of inputs ``(M, ...)`` by name, such as out-of-distribution ones.
        num_draws: Draws ``S`` in each of the two sets.
        chunk_size: Inputs handled at once; by default such that a block of draws
            ``(2 S, chunk_size, C)`` has about four million numbers.
        seed: Makes the report reproducible, and leaves torch's generators as they were.
        where: Look for regions of ``x`` where the student is wrong. "inputs" finds them, at most 8,
            by a tree on the columns of x that is fitted to one half of the rows and tested on the
            other, and so do names of the columns, or a function x -> features ``(N, F)``; whole
            numbers ``(N,)`` label the rows by region. At every input 64 draws of the student stand
            beside 64 of the teacher, or as many as it holds; shuffled between the two they are
            those of a perfect student, which is called wrong anywhere in 5 % of reports at most
            (:class:`~pyro_opu.reports.regions.Region`). One that is not perfect is found wrong if
            there are rows and draws enough: nobody is wrong by less than the M draws that a
            posterior holds err by themselves. Read how wrong beside the p-value.
        wasserstein_inputs: Inputs used for the 1-Wasserstein distance, at most; 0 leaves it out. It
            is of classes alone, by at most 200 draws if there are more than two.

    Returns:
        The report; ``print`` it, read ``report.faithful``, ``report.draws``, ``report.kl``,
        ``report.kl_attainable``, ``report["name"].kl`` ...

    Raises:
        TypeError: When an argument is of a wrong type, or the student answers with no Dirichlets.
        ValueError: When inputs or answers hold NaN, extra inputs have another shape, a number is
            out of range, the posterior holds fewer than 4 draws, or the student has other classes
            than the teacher.

    Example:
        >>> student = lambda x: torch.distributions.Dirichlet(1 + 4 * torch.softmax(x, -1))
        >>> teacher = lambda x, num_draws: student(x).sample((num_draws,))
        >>> report = fidelity(student, teacher, torch.eye(3).repeat(20, 1), num_draws=100, seed=0)
        >>> report.faithful, report.draws > 300, report.energy_distance_trivial > 0.01
        (True, True, True)
    """
    form, x, student, teacher = at_border(x, student, teacher)
    others = named_inputs(("x", x), form, "extra", extra, HELD_OUT)
    num_draws = positive_int("num_draws", num_draws, 2, "One draw has no spread.")
    wasserstein_inputs = positive_int(
        "wasserstein_inputs", wasserstein_inputs, 0, "0 leaves the distance out."
    )
    with seeded(check_seed(seed)), torch.no_grad():
        source = teacher_of(teacher, x)
        source.draws(x[:1], 1)
        parts = comparisons_of(student, source)
        for part in parts:
            part.ask(x[:1])
        held = source.max_draws
        if held is not None and held < 4:
            raise ArgumentError(
                "`teacher` must hold at least 4 posterior draws, two in each half; it holds "
                f"{held}. Sample a longer posterior."
            )
        plan = Plan(
            num_draws=num_draws if held is None else min(num_draws, held // 2),
            held=held,
            chunk_size=chunk_size,
            wasserstein_inputs=wasserstein_inputs,
        )
        for part in parts:
            part.begin(plan, x)
        sets = [
            part.compare(name, inputs, known_of(student, inputs))
            for name, inputs in {HELD_OUT: x, **others}.items()
            for part in parts
        ]
        local = [] if where is None else [r for part in parts for r in regions(part, x, where)]
    found = {each.name: each for each in sets}
    return FidelityReport(found, plan.num_draws, held, corrected(local))


def known_of(student: Any, x: Tensor) -> Known:
    """What is known of a student of `distill` beside its numbers."""
    report = getattr(student, "report", None)
    if not isinstance(report, Mapping):
        return Known()
    try:
        some = x[:: -(-len(x) // LOOKED_AT)]
        far = float((student.novelty(some) > NOVEL).double().mean())
    except (AttributeError, NotImplementedError, ArgumentError):  # an earlier file has none
        far = 0.0
    return Known(far=far, report=report)
