"""How close a regression student is to its teacher, beside what is possible and what is trivial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_opu.chunks import chunks
from pyro_opu.fidelity_report import Row
from pyro_opu.inputs import check_inputs
from pyro_opu.regression.judging import energies, energies_of_draws, kl_of_normals, teacher_moments
from pyro_opu.regression.mixture import RealAnswer, is_real_answer
from pyro_opu.regression.normal import PredictiveNormal
from pyro_opu.regression.sources import as_regression_teacher
from pyro_opu.regression.teacher import RealTeacher
from pyro_opu.restoring import evaluating, seeded
from pyro_opu.tables import cell, json_ready, table

__all__ = ["RegressionFidelity", "regression_fidelity"]

_LABELS = {
    "kl": "KL of the normals",
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
_COLUMNS = ("student", "floor", "best", "trivial", "teacher")
# Draws per input from which the trivial normal is made; they are averaged over all inputs.
_TRIVIAL_DRAWS = 64
# Numbers held at once per draw and input.
_PER_DRAW = 16


@dataclass(frozen=True, repr=False)
class RegressionFidelity:
    """How close a student is to its teacher: ``print`` it, or take ``report["kl"].student``.

    Attributes:
        rows: All quantities by name; :func:`~pyro_opu.regression_fidelity` says what they are.
        num_inputs: N.
        num_draws: Teacher draws in each of the two sets that were compared.
    """

    rows: dict[str, Row]
    num_inputs: int
    num_draws: int

    def __getitem__(self, name: str) -> Row:
        if name not in self.rows:
            raise KeyError(f"no row {name!r}; there are {', '.join(self.rows)}")
        return self.rows[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for ``json.dump``; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(asdict(self))
        return numbers

    def __repr__(self) -> str:
        header = [f"{self.num_inputs} inputs", *_COLUMNS[:2], "best normal", *_COLUMNS[3:]]
        lines = [
            [_LABELS[name], *(cell(getattr(row, column)) for column in _COLUMNS)]
            for name, row in self.rows.items()
        ]
        return table(header, lines) + (
            "\n\nfloor: the teacher asked again. best: the normal with its moments, per input.\n"
            "trivial: one normal for all inputs. teacher: what a perfect copy would have.\n"
            "Error of the mean and energy distances in the teacher's deviations.\n"
            f"{self.num_draws} teacher draws judge, {self.num_draws} others are the floor."
        )


def regression_fidelity(
    student: Any, teacher: Any, x: Tensor, *, num_draws: int = 500, seed: int | None = None
) -> RegressionFidelity:
    r"""Compare a regression student's answers with fresh draws of its teacher.

    Two sets of teacher draws are taken at every input, A and B, split anew for each: all that a
    finite posterior holds, up to ``2 num_draws``, half in each. A judges the **student**; the
    **floor**, the mixture that B is; the **best** normal, with the moments of B; and the
    **trivial** one, one normal for all inputs with the moments of all draws there.

    The rows, means over inputs unless said otherwise:

    - ``kl``: of the normals with the moments of A and of the answer, nats. The normals of A and B
      are both uncertain, so that a perfect student has about half the floor's;
    - ``mean_error``: root mean square, in units of A's deviation of y;
    - ``energy_distance``: of y, in the same units; exact in the student, unbiased in the draws, 0
      for a perfect answer and possibly slightly negative;
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
        seed: Makes the report reproducible, and leaves torch's generators as they were.

    Returns:
        The report.

    Raises:
        TypeError: ``x`` is no floating tensor, or the student does not answer with normals.
        ValueError: bad ``x`` or ``num_draws``; a posterior of fewer than 4 draws.

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
    if isinstance(num_draws, bool) or not isinstance(num_draws, int) or num_draws < 2:
        raise ValueError(f"`num_draws` must be at least 2, to see a spread; got {num_draws!r}.")
    with seeded(seed), torch.no_grad():
        ready = as_regression_teacher(teacher)
        ready.draws(x[:1], None if ready.max_draws is None else 1)
        held = ready.max_draws
        if held is not None and held < 4:
            raise ValueError(
                "`teacher` must hold at least 4 posterior draws, two in each half; it holds "
                f"{held}. Sample a longer posterior."
            )
        count = num_draws if held is None else min(num_draws, held // 2)
        trivial = _trivial(ready, x, min(count, _TRIVIAL_DRAWS))
        parts = []
        for part in chunks(len(x), 2 * count, _PER_DRAW):
            draws = _shuffled(ready.draws(x[part], 2 * count).double())
            answer = _answer(student, x[part])
            parts.append(_judged(answer, trivial.expand(x[part].shape[:1]), *draws.chunk(2)))
    values = {key: torch.cat([part[key] for part in parts]).double() for key in parts[0]}
    return RegressionFidelity(_rows(values), len(x), count)


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
    real: RealAnswer = answer
    return real


def _judged(
    student: RealAnswer, trivial: PredictiveNormal, a: Tensor, b: Tensor
) -> dict[tuple[str, str], Tensor]:
    """Every answer against the draws ``a`` that judge, one number per input."""
    teacher, best = teacher_moments(a), teacher_moments(b)
    normals = {"student": student.normal(), "floor": best, "best": best, "trivial": trivial}
    distances = {
        "student": energies(student, a),
        "floor": energies_of_draws(b, a),
        "best": energies(best, a),
        "trivial": energies(trivial, a),
    }
    out = {("teacher", name): getattr(teacher, name) for name in _VARIANCES}
    for column, normal in normals.items():
        out |= {(column, name): getattr(normal, name) for name in _VARIANCES}
        out |= {
            (column, "kl"): kl_of_normals(teacher, normal),
            (column, "mean_error"): ((normal.mean - teacher.mean) / teacher.scale).square(),
            (column, "energy_distance"): distances[column][0],
            (column, "mean_energy_distance"): distances[column][1],
        }
    return out


def _rows(values: dict[tuple[str, str], Tensor]) -> dict[str, Row]:
    """Means, errors and rank correlations over all inputs."""
    rows = {
        "kl": _row(values, "kl", _mean, 0.0),
        "mean_error": _row(values, "mean_error", _root_mean, 0.0),
        "energy_distance": _row(values, "energy_distance", _mean, 0.0),
        "mean_energy_distance": _row(values, "mean_energy_distance", _mean, 0.0),
    }
    for name in _VARIANCES:
        truth = values["teacher", name]
        rows[name] = _row(values, name, _mean, _mean(truth))
        rows[f"{name}_error"] = _row(values, name, partial(_typical_error, truth), 0.0)
        rows[f"{name}_spearman"] = _row(values, name, partial(_spearman, truth), 1.0)
    return rows


def _row(
    values: dict[tuple[str, str], Tensor],
    name: str,
    sum_up: Callable[[Tensor], float],
    teacher: float,
) -> Row:
    return Row(teacher=teacher, **{c: sum_up(values[c, name]) for c in _COLUMNS[:-1]})


def _mean(values: Tensor) -> float:
    return float(values.mean())


def _root_mean(squares: Tensor) -> float:
    return float(squares.mean().sqrt())


def _typical_error(truth: Tensor, values: Tensor) -> float:
    return float((values / truth - 1).abs().median())


def _spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation; NaN where one side is constant to rounding: it is not defined there."""
    if any(float(v.max() - v.min()) <= 1e-6 * float(v.abs().max()) for v in (a, b)):
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(a.cpu().numpy(), b.cpu().numpy()).statistic)
