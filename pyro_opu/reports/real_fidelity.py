"""How close a regression student is to its teacher, beside what is possible and what is trivial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from textwrap import fill
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_seed, positive_int
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.distributions.normal_mixture import RealAnswer, is_real_answer
from pyro_opu.metrics.normals import (
    energies,
    energies_of_draws,
    kl_of_normals,
    teacher_moments,
)
from pyro_opu.metrics.ranks import spearman
from pyro_opu.reports.certainty import ratio, verdict_of
from pyro_opu.reports.fidelity_report import WIDTH, NamedNumbers, Row
from pyro_opu.rng import evaluating, seeded
from pyro_opu.teachers.real import RealTeacher
from pyro_opu.teachers.real_sources import as_regression_teacher
from pyro_opu.utils.chunks import chunks
from pyro_opu.utils.tables import cell, json_ready, table

__all__ = ["RegressionFidelity", "regression_fidelity"]

_LABELS = {
    "kl": "KL of the normals",
    "kl_ratio": "  over attainable",
    "mean_error": "error of the mean",
    "energy_distance": "energy distance of y",
    "mean_energy_distance": "  of its mean f",
    "aleatoric": "aleatoric variance",
    "aleatoric_error": "  relative error",
    "aleatoric_spearman": "  Spearman",
    "epistemic": "epistemic variance",
    "epistemic_error": "  relative error",
    "epistemic_spearman": "  Spearman",
}
_VARIANCES = ("aleatoric", "epistemic")
_COLUMNS = ("student", "attainable", "floor", "best", "trivial", "teacher")
# Draws per input from which the trivial normal is made; they are averaged over all inputs.
_TRIVIAL_DRAWS = 64
# What the verdict needs, by the columns and rows of the values.
_VERDICT = {
    "kl": ("student", "kl"),
    "kl_attainable": ("attainable", "kl"),
    "uncertainty": ("share", "student"),
    "uncertainty_teacher": ("share", "teacher"),
    "noise_of_all": ("share", "noise"),
}
# Numbers held at once per draw and input.
_PER_DRAW = 16


@dataclass(frozen=True, repr=False)
class RegressionFidelity(NamedNumbers):
    """How close a student is to its teacher: ``print`` it, or take the numbers by name.

    ``report.kl`` is the student's number of the row "kl", ``report.kl_attainable`` and
    ``report.kl_floor`` what stands beside it; ``report["kl"]`` is the whole row.

    Attributes:
        rows: All quantities by name; :func:`~pyro_opu.regression_fidelity` says what they are.
        num_inputs: N.
        num_draws: Teacher draws in each of the two sets that were compared.
        max_draws: Draws that the posterior holds; ``None`` when it gives any number.
        faithful: Whether the student is faithful; `pyro_opu.fidelity` has the rule, with the
            epistemic variance in place of the mutual information.
        verdict: A sentence that says so.
    """

    rows: dict[str, Row]
    num_inputs: int
    num_draws: int
    max_draws: int | None
    faithful: bool
    verdict: str
    _names: ClassVar[tuple[str, ...]] = tuple(_LABELS)

    def _row(self, name: str) -> Row | None:
        return self.rows.get(name)

    def __getitem__(self, name: str) -> Row:
        if name not in self.rows:
            raise KeyError(f"no row {name!r}; there are {', '.join(self.rows)}")
        return self.rows[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for ``json.dump``; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(asdict(self))
        return numbers

    def __repr__(self) -> str:
        header = [f"{self.num_inputs} inputs", *_COLUMNS[:3], "best normal", *_COLUMNS[4:]]
        lines = []
        for name, row in self.rows.items():
            shown = {column: getattr(row, column) for column in _COLUMNS}
            if name.startswith(_VARIANCES):  # the teacher's own
                shown["attainable"] = None
            lines.append([_LABELS[name], *map(cell, shown.values())])
        notes = (
            "attainable: a perfect student by these draws. floor: the teacher asked again.\n"
            "best: the normal with its moments, per input. trivial: one normal for all inputs.\n"
            "Error of the mean and energy distances in the teacher's deviations.\n"
            f"{self.num_draws} teacher draws judge, {self.num_draws} others are the floor."
        )
        return "\n\n".join([fill(self.verdict, WIDTH), table(header, lines), notes])


def regression_fidelity(
    student: Any,
    teacher: Any,
    x: Tensor,
    *,
    num_draws: int = 500,
    chunk_size: int | None = None,
    seed: int | None = None,
) -> RegressionFidelity:
    r"""Compare a regression student's answers with fresh draws of its teacher.

    :func:`~pyro_opu.fidelity` calls it where the teacher is a regressor. Two sets of teacher draws
    are taken at every input, A and B, split anew for each: all that a finite posterior holds, up to
    ``2 num_draws``, half in each. A judges the **student**; the **floor**, the mixture that B is;
    the **best** normal, with the moments of the posterior; and the **trivial** one, one normal for
    all inputs with the moments of all draws there. Beside them stands what is **attainable**: what
    the posterior itself, as it was taught, would score.

    The rows, means over inputs unless said otherwise:

    - ``kl``: of the normals with the moments of A and of the answer, nats; ``kl_ratio``, that as a
      multiple of the attainable;
    - ``mean_error``: root mean square, in units of A's deviation of y;
    - ``energy_distance``: of y, in the same units, to the posterior as it holds its draws; exact in
      the student, unbiased in the draws, 0 for a perfect answer and possibly slightly negative;
    - ``mean_energy_distance``: of its mean f, in units of A's deviation of f, but of at least a
      tenth of y's;
    - ``aleatoric``, ``epistemic``: the variances, in units of y squared; for both ``..._error``,
      the typical relative error (median over inputs of \|answer / A - 1\|), and
      ``..._spearman``, the rank correlation over inputs.

    Args:
        student: What :func:`~pyro_opu.distill` returns for a regressor, or another object with
            ``distribution(x)``, or a guide ``x -> PredictiveNormal``.
        teacher: What :func:`~pyro_opu.regression.as_regression_teacher` takes.
        x: Held-out inputs ``(N, ...)``.
        num_draws: Draws in each set, at most.
        chunk_size: Inputs handled at once, to bound memory.
        seed: Makes the report reproducible, and leaves torch's generators as they were.

    Returns:
        The report.

    Raises:
        TypeError: ``x`` is no floating tensor, or the student does not answer with normals.
        ValueError: bad ``x``, ``num_draws``, ``chunk_size`` or ``seed``; a posterior of fewer than
            4 draws; a student that answers with NaN or not once per input.

    Example:
        >>> import torch
        >>> from pyro_opu.regression import PredictiveNormal, regression_fidelity
        >>> zero = lambda x: torch.zeros(len(x))
        >>> student = lambda x: PredictiveNormal(x[:, 0], zero(x), zero(x))  # f ~ N(x, 1)
        >>> teacher = lambda x, num_draws: (x[:, 0] + torch.randn(num_draws, 1), torch.ones(1, 1))
        >>> report = regression_fidelity(student, teacher, torch.randn(50, 1), seed=0)
        >>> report["energy_distance"].student < 0.01 < report["energy_distance"].trivial
        True
    """
    check_inputs(x)
    positive_int("num_draws", num_draws, 2, "One draw has no spread.")
    with seeded(check_seed(seed)), torch.no_grad():
        ready = as_regression_teacher(teacher)
        _answer(student, x[:1])
        ready.draws(x[:1], None if ready.max_draws is None else 1)
        held = ready.max_draws
        if held is not None and held < 4:
            raise ValueError(
                "`teacher` must hold at least 4 posterior draws, two in each half; it holds "
                f"{held}. Sample a longer posterior."
            )
        size = math.inf if held is None else held
        count = min(num_draws, num_draws if held is None else held // 2)
        trivial = _trivial(ready, x, min(count, _TRIVIAL_DRAWS))
        parts = []
        for part in chunks(len(x), 2 * count, _PER_DRAW, chunk_size):
            draws = ready.draws(x[part], 2 * count).double()
            judged = _judged(
                _answer(student, x[part]), trivial.expand(x[part].shape[:1]), _shuffled(draws), size
            )
            parts.append(judged | _sampling(draws, size))
    values = {key: torch.cat([part[key] for part in parts]).double() for key in parts[0]}
    faithful, verdict = verdict_of(
        {name: values[column, row].cpu().numpy() for name, (column, row) in _VERDICT.items()},
        uncertainty="epistemic variance",
    )
    return RegressionFidelity(_rows(values), len(x), count, held, faithful, verdict)


def _trivial(teacher: RealTeacher, x: Tensor, num_draws: int) -> PredictiveNormal:
    """One normal with the moments of the teacher's draws at all inputs together."""
    draws = torch.cat(
        [teacher.draws(x[part], num_draws) for part in chunks(len(x), num_draws, _PER_DRAW)], 1
    )
    return teacher_moments(draws.double().reshape(-1, 1, 2))


def _shuffled(draws: Tensor) -> Tensor:
    """Another order of the draws at every input: then chance in their split averages out."""
    order = torch.rand(draws.shape[:2], device=draws.device).argsort(0)
    return draws.gather(0, order[..., None].expand_as(draws))


def _answer(student: Any, x: Tensor) -> RealAnswer:
    """The student's answer at ``x``, modules in evaluation mode."""
    call = getattr(student, "distribution", student)
    with evaluating(student):
        answer = call(x)
    if not is_real_answer(answer):
        raise TypeError(
            "`student` must answer an input with a PredictiveNormal or a mixture of them; "
            f"{type(student).__name__} returned {type(answer).__name__}. Pass the result of "
            "`distill`, or its `.guide`."
        )
    if answer.batch_shape != x.shape[:1]:
        raise ValueError(
            f"`student` must answer with batch shape (N,) = ({len(x)},); got "
            f"{tuple(answer.batch_shape)} for inputs of shape {tuple(x.shape)}. Squeeze its last "
            "axis."
        )
    real: RealAnswer = answer
    normal = real.normal()
    undefined = normal.mean.isnan() | normal.log_variance.isnan()
    if undefined.any():
        raise ValueError(
            "`student` must answer with numbers; its mean or its variance is NaN at "
            f"{int(undefined.sum())} of {len(x)} inputs. Check its weights (torch.isfinite), or "
            "distil it again."
        )
    return real


def _judged(
    student: RealAnswer, trivial: PredictiveNormal, draws: Tensor, size: float
) -> dict[tuple[str, str], Tensor]:
    """Every answer against the first half of the draws, one number per input.

    What is attainable, and the energy distance of the best normal, are extrapolated to a posterior
    of ``size`` draws as in :func:`pyro_opu.reports.judging.posterior`.
    """
    a, b = draws.chunk(2)
    teacher, other, best = teacher_moments(a), teacher_moments(b), teacher_moments(draws)
    left = 1 - len(draws) / size
    distances = {
        "student": energies(student, a, size),
        "attainable": (torch.zeros_like(best.mean),) * 2,
        "floor": energies_of_draws(b, a),
        "best": _best_energies(a, b, left),
        "trivial": energies(trivial, a, size),
    }
    normals = {"student": student.normal(), "floor": other, "best": best, "trivial": trivial}
    out = {("teacher", name): getattr(teacher, name) for name in _VARIANCES}
    for column, normal in normals.items():
        out |= {(column, name): getattr(normal, name) for name in _VARIANCES}
    for column, normal in (normals | {"attainable": best}).items():
        # The mean of S draws is further from that of M than from that of 2 S, by this factor.
        sampling = 1 + left if normal is best else 1.0
        error = ((normal.mean - teacher.mean) / teacher.scale).square()
        of_y, of_mean = distances[column]
        out |= {
            (column, "kl"): kl_of_normals(teacher, normal) * sampling,
            (column, "mean_error"): error * sampling,
            (column, "energy_distance"): of_y,
            (column, "mean_energy_distance"): of_mean,
        }
    # In units of y's variance, as shares of it.
    out["share", "student"] = normals["student"].epistemic / best.variance
    out["share", "teacher"] = best.epistemic / best.variance
    return out


def _best_energies(a: Tensor, b: Tensor, left: float) -> list[Tensor]:
    """Energy distances of y and of f of the normals with the moments of a posterior."""
    sets = [torch.cat([a, b]), a, b]
    found = [energies(teacher_moments(draws), draws, len(draws)) for draws in sets]
    return [
        whole - left * ((first + second) / 2 - whole)
        for whole, first, second in zip(*found, strict=True)
    ]


def _sampling(draws: Tensor, size: float) -> dict[tuple[str, str], Tensor]:
    """Shares of the variance of the sum of epistemic variances, from joint draws ``(S, N, 2)``."""
    f, count = draws[..., 0], draws.shape[1]
    squares = (f - f.mean(0)).square() / teacher_moments(draws).variance
    noise = squares.sum(-1).var() * (1 / len(draws) - 1 / size) / count
    return {("share", "noise"): noise.expand(count)}


def _rows(values: dict[tuple[str, str], Tensor]) -> dict[str, Row]:
    """Means, errors and rank correlations over all inputs."""
    kl = _row(values, "kl", _mean, 0.0)
    rows = {
        "kl": kl,
        "kl_ratio": Row(**{c: ratio(getattr(kl, c), kl.attainable) for c in _COLUMNS}),
        "mean_error": _row(values, "mean_error", _root_mean, 0.0),
        "energy_distance": _row(values, "energy_distance", _mean, 0.0),
        "mean_energy_distance": _row(values, "mean_energy_distance", _mean, 0.0),
    }
    for name in _VARIANCES:
        truth = values["teacher", name]
        rows[name] = _row(values, name, _mean, _mean(truth))
        rows[f"{name}_error"] = _row(values, name, partial(_typical_error, truth), 0.0)
        rows[f"{name}_spearman"] = _row(values, name, partial(spearman, b=truth), 1.0)
    return rows


def _row(
    values: dict[tuple[str, str], Tensor],
    name: str,
    sum_up: Callable[[Tensor], float],
    teacher: float,
) -> Row:
    found = {c: sum_up(values[c, name]) for c in _COLUMNS[:-1] if (c, name) in values}
    return Row(**{"attainable": teacher, **found}, teacher=teacher)


def _mean(values: Tensor) -> float:
    return float(values.mean())


def _root_mean(squares: Tensor) -> float:
    return float(squares.mean().sqrt())


def _typical_error(truth: Tensor, values: Tensor) -> float:
    return float((values / truth - 1).abs().median())
