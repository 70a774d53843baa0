"""Measures of uncertainty as detectors of errors and of out-of-distribution inputs.

A detector's scores are the area under the ROC curve and the average precision, with errors, or
out-of-distribution inputs, as the positive class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import check_labels
from pyro_opu.inputs import InputLike
from pyro_opu.metrics.scores import calibration
from pyro_opu.reports.answers import Student, at_border, check_alike, is_student, named_inputs
from pyro_opu.reports.detection_report import DetectionReport, DetectionTable, Score
from pyro_opu.reports.readings import Array, Reader, Reading, check_same_classes
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

__all__ = ["detection", "misclassification", "out_of_domain"]

#: The name of the table of errors.
ERRORS = "misclassification"


def detection(
    student: Student,
    teacher: Source,
    x: InputLike,
    y: Tensor,
    outside: Mapping[str, Tensor] | None = None,
    *,
    num_draws: int = 500,
    seed: int | None = None,
) -> DetectionReport:
    """Compare student and teacher as classifiers and as detectors.

    One table for misclassification, where each of the two is asked to find *its own* errors, and
    one for every set of outside inputs. The latter also have two rows that need no classifier, the
    Euclidean norm and the mean of the input, in whichever direction does better: a baseline that
    many published pairs of data sets do not survive.

    Args:
        student: What `distill` returns, any object with ``dirichlet(x)``, or ``x -> Dirichlet``.
        teacher: What `as_teacher` takes.
        x: Inputs from the domain, shape ``(N, ...)``.
        y: Their labels, integers in ``[0, C)``, shape ``(N,)``.
        outside: Out-of-distribution inputs by name, each ``(M, ...)``.
        num_draws: Teacher draws; all that a posterior holds, if these are fewer.
        seed: Makes the report reproducible, and leaves torch's generators as they were.

    Returns:
        The report; ``print`` it, or ``report["misclassification"].student["entropy"].auroc``.

    Raises:
        TypeError: When ``x`` is no floating tensor, or ``y`` no integer one.
        ValueError: When inputs hold NaN, labels do not fit, outside inputs have another shape, or
            student and teacher other classes.

    Example:
        >>> student = lambda x: torch.distributions.Dirichlet(1 + x.abs())
        >>> teacher = lambda x, num_draws: student(x).sample((num_draws,))
        >>> x = torch.tensor([[9.0, 0.0], [0.0, 8.0], [2.0, 1.0]])
        >>> y = torch.tensor([0, 1, 1])
        >>> report = detection(student, teacher, x, y, {"near 0": x / 99}, seed=0)
        >>> report["misclassification"].student["entropy"]
        Score(auroc=1.0, aupr=1.0)
        >>> report.best("student", "near 0", epistemic=True)
        ('mutual_information', Score(auroc=1.0, aupr=1.0))
    """
    form, x, student, teacher = at_border(x, student, teacher)
    outside = named_inputs(("x", x), form, "outside", outside, ERRORS)
    with seeded(seed):
        sources = {
            "student": Reader(student, x, True, num_draws),
            "teacher": Reader(teacher, x, False, num_draws),
        }
        inside = {who: reader(x) for who, reader in sources.items()}
        check_same_classes(inside["student"], inside["teacher"])
        wrong = {who: _errors(reading, y) for who, reading in inside.items()}
        tables = {ERRORS: _table(ERRORS, {who: [inside[who]] for who in inside}, wrong, {})}
        for name, other in outside.items():
            readings = {who: [inside[who], reader(other)] for who, reader in sources.items()}
            positive = _outside_positive(x, other)
            trivial = _trivial(x, other, positive)
            tables[name] = _table(name, readings, dict.fromkeys(readings, positive), trivial)
    scores = {who: calibration(reading.log_mean, y) for who, reading in inside.items()}
    return DetectionReport(
        tables, scores["student"], scores["teacher"], num_draws=sources["teacher"].num_draws
    )


def misclassification(
    source: Source,
    x: InputLike,
    y: Tensor,
    *,
    num_draws: int = 500,
    seed: int | None = None,
) -> dict[str, Score]:
    """How well each measure finds the source's own errors.

    Args:
        source: A student or a teacher, as in `detection`.
        x: Inputs, shape ``(N, ...)``.
        y: Their labels, integers in ``[0, C)``, shape ``(N,)``.
        num_draws, seed: As in `detection`.

    Returns:
        AUROC and AUPR by measure, errors being positive; NaN when there are only errors, or none.

    Raises:
        TypeError, ValueError: As `detection`.

    Example:
        >>> student = lambda x: torch.distributions.Dirichlet(1 + x.abs())
        >>> x = torch.tensor([[9.0, 0.0], [0.0, 8.0], [2.0, 1.0]])
        >>> misclassification(student, x, torch.tensor([0, 1, 1]))["entropy"]
        Score(auroc=1.0, aupr=1.0)
    """
    _, x, source = at_border(x, source)
    with seeded(seed):
        reading = Reader(source, x, is_student(source, x), num_draws)(x)
    return _scores([reading], _errors(reading, y))


def out_of_domain(
    source: Source,
    x_in: Tensor,
    x_out: Tensor,
    *,
    num_draws: int = 500,
    seed: int | None = None,
) -> dict[str, Score]:
    """How well each measure tells out-of-distribution inputs from inputs of the domain.

    Args:
        source: A student or a teacher, as in `detection`.
        x_in: Inputs of the domain, shape ``(N, ...)``.
        x_out: Out-of-distribution inputs, shape ``(M, ...)``.
        num_draws, seed: As in `detection`.

    Returns:
        AUROC and AUPR by measure, ``x_out`` being positive.

    Raises:
        TypeError, ValueError: As `detection`.

    Example:
        >>> student = lambda x: torch.distributions.Dirichlet(1 + x.abs())
        >>> out_of_domain(student, torch.eye(2), torch.eye(2) / 9)["mutual_information"]
        Score(auroc=1.0, aupr=1.0)
    """
    form, x_in, source = at_border(x_in, source, name="x_in")
    x_out = check_alike(("x_in", x_in), form, ("x_out", x_out))
    with seeded(seed):
        reader = Reader(source, x_in, is_student(source, x_in), num_draws)
        readings = [reader(x_in), reader(x_out)]
    return _scores(readings, _outside_positive(x_in, x_out))


def _errors(reading: Reading, y: Tensor) -> NDArray[np.bool_]:
    labels = check_labels(y, *reading.log_mean.shape).to(reading.log_mean.device)
    wrong: NDArray[np.bool_] = (reading.log_mean.argmax(-1) != labels).cpu().numpy()
    return wrong


def _table(
    name: str,
    readings: dict[str, list[Reading]],
    positive: dict[str, NDArray[np.bool_]],
    trivial: dict[str, Score],
) -> DetectionTable:
    return DetectionTable(
        name=name,
        **{who: _scores(readings[who], positive[who]) for who in readings},
        trivial=trivial,
        num_inputs=len(positive["student"]),
        num_positive={who: int(each.sum()) for who, each in positive.items()},
    )


def _trivial(x_in: Tensor, x_out: Tensor, positive: NDArray[np.bool_]) -> dict[str, Score]:
    """Scores of what needs no classifier, in the better of both directions."""
    flat = torch.cat([x_in.flatten(1), x_out.flatten(1)]).double().cpu()
    baselines = {"input_norm": flat.norm(dim=-1).numpy(), "input_mean": flat.mean(-1).numpy()}
    return {
        name: max(score(values, positive), score(-values, positive))
        for name, values in baselines.items()
    }


def _outside_positive(x_in: Tensor, x_out: Tensor) -> NDArray[np.bool_]:
    return np.arange(len(x_in) + len(x_out)) >= len(x_in)


def _scores(readings: list[Reading], positive: NDArray[np.bool_]) -> dict[str, Score]:
    detectors = Reading.joined(readings).detectors
    return {name: score(values, positive) for name, values in detectors.items()}


def score(values: Array, positive: NDArray[np.bool_]) -> Score:
    """AUROC and AUPR of one detector; NaN where there is nothing to tell apart."""
    if positive.all() or not positive.any():
        return Score(math.nan, math.nan)
    from sklearn.metrics import average_precision_score, roc_auc_score

    return Score(
        float(roc_auc_score(positive, values)), float(average_precision_score(positive, values))
    )
