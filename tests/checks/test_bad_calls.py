"""Slips that would be answered silently, or by an error from inside torch, if none looked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pyro.infer import Predictive
from torch.distributions import Dirichlet

import pyro_opu
from pyro_opu import EnergyDistance, WassersteinELBO, datasets, plots, samplers
from pyro_opu.metrics.coverage import central_coverage
from pyro_opu.metrics.distances import kl_divergence, kl_from_log
from pyro_opu.metrics.scores import calibration, expected_calibration_error
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network, perceptron
from pyro_opu.models.variational import mean_field
from pyro_opu.reports.mixing import effective_sample_size, r_hat
from pyro_opu.rivals import compact_approx, load_compact

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])
DRAWS, Y, X = PROBS.expand(5, 4, 3), torch.tensor([0, 1, 2, 2]), torch.ones(4, 2)
NAN = PROBS.clone()
NAN[0, 0] = torch.nan
BROKEN = Dirichlet(NAN, validate_args=False)
RUN = Predictive(
    logistic_regression(3), {"weight": torch.randn(8, 2, 3), "bias": torch.zeros(8, 3)}
)


def student(x: torch.Tensor, classes: int) -> Dirichlet:
    return Dirichlet(torch.ones(len(x), classes))


MEASURES: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (kl_divergence, (2 * PROBS, PROBS), "`p_mean` must hold probabilities"),
    (kl_divergence, (PROBS, NAN), "`q_mean` must be finite; got NaN"),
    (kl_divergence, (PROBS.tolist(), PROBS), "`p_mean` must be a torch.Tensor .* got list"),
    (kl_from_log, (PROBS, PROBS), "`log_p` must hold log-probabilities"),
    (calibration, (PROBS, Y), r"`log_probs` must hold log-probabilities \(N, C\)"),
    (calibration, (PROBS.numpy(), Y), "`log_probs` must be a torch.Tensor .* got ndarray"),
    (calibration, (DRAWS.log(), Y.repeat(2)[:5]), r"`probs` must have shape \(N, C\); got"),
    (expected_calibration_error, (PROBS.log(), Y), "`probs` must hold probabilities"),
    (expected_calibration_error, (PROBS, Y, 0), "`num_bins` must be a positive integer"),
    (r_hat, (NAN.T[None].repeat(1, 2, 1),), "`draws` must be finite, from at least one chain"),
    (effective_sample_size, ([[1.0, 2.0]],), "`draws` must be a torch.Tensor"),
    (pyro_opu.top_k, (BROKEN,), "`dirichlet` must have positive parameters; got NaN or"),
    (pyro_opu.uncertainty, (BROKEN,), "`source` must have positive parameters; got NaN or"),
    (pyro_opu.laplace_bridge, (PROBS, [[1.0]]), "`covariance` must be a torch.Tensor"),
    (pyro_opu.PredictiveDirichlet, (NAN.log(), PROBS[:, 0], True), "`log_mean` and .* finite"),
    (
        central_coverage,
        (Dirichlet(PROBS), DRAWS, PROBS, [50.0]),
        r"`levels` must be a number in \(0, 1\); got 50.0",
    ),
    (
        pyro_opu.detection,
        (partial(student, classes=5), RUN, X, Y),
        "`student` must have the 3 classes of `teacher`; got 5",
    ),
    (
        pyro_opu.detection,
        (partial(student, classes=3), RUN, X, Y, X),
        "`outside` must be a dict name -> inputs; got Tensor",
    ),
    (pyro_opu.diagnose, (Predictive(len, {"w": NAN}),), "`run` must hold finite draws; .* 'w'"),
    (pyro_opu.to_inference_data, (RUN, X, Y[:3]), "`y` must hold one label per row of `x`"),
    (pyro_opu.to_inference_data, (RUN, X, Y + 1), "`obs` at site 'obs' must hold values of"),
    (pyro_opu.to_inference_data, (RUN, PROBS, Y), "`run`'s model could not be called with the"),
    (plots.three_classes, (PROBS, ["a", "b", "c"]), "`classes` must be 3 different classes"),
    (plots.reliability, (torch.tensor([[1.5, -0.5]]), Y[:1]), "smallest entry -0.5"),
]

SETTINGS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (logistic_regression, (3, 0.0), "`scale` must be a positive finite number; got 0.0"),
    (logistic_regression(3), (X, Y[:3]), r"`y` must hold one label per row .* \(4,\); got \(3,\)"),
    (perceptron, ((),), "`sizes` must be a tuple of at least 2 positive integers"),
    (perceptron, ((2, 2.5),), "`sizes` must be a tuple of at least 2 positive integers"),
    (dropout_network, ((2, 4, 3), 1), r"`p` must be a number in \[0, 1\); got 1"),
    (fit_network, (perceptron((2, 3)), X, Y + 1), "`y` must hold labels from 0 to C - 1 = 2"),
    (mean_field, (None, None), "`scale` must be a positive finite number"),
    (samplers.PolynomialDecay, (1.0, 1.0, 2.0), r"`gamma` must be a number in \(0, 1\]; got 2.0"),
    (samplers.Halving, (1.0, 2.5), "`every` must be a positive integer; got 2.5"),
    (samplers.tempered, (len,), "`likelihood` must be a positive finite number"),
    (samplers.SGLD, (None,), r"`model` must be a callable"),
    (EnergyDistance, (2.5,), "`num_samples` must be an integer of at least 2; got 2.5"),
    (WassersteinELBO, (float("nan"),), "`beta` must be a finite number of at least 0; got nan"),
    (pyro_opu.PredictiveGuide.for_inputs, (X, 3), "`hidden` must be a tuple of positive integers"),
    (datasets.two_moons, (200, -0.1), "`noise` must be a finite number of at least 0; got -0.1"),
    (datasets.split, (X,), "`dataset` must be a Dataset; got Tensor"),
]
OTHERS: dict[Any, dict[str, Any]] = {
    mean_field: {"scale": float("nan")},
    samplers.tempered: {"likelihood": float("nan")},
    samplers.SGLD: {"step_size": 1e-3},
    pyro_opu.PredictiveGuide.for_inputs: {"hidden": (0,)},
}


@pytest.mark.parametrize(("call", "args", "message"), SETTINGS)
def test_settings(call: Callable[..., Any], args: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call(*args, **OTHERS.get(call, {}))


def test_a_compact_student_beside_another_model(tmp_path: Path) -> None:
    compact_approx(RUN, X, size=2, tries=9, progress=False, seed=0).save(tmp_path / "student")
    binary = Predictive(logistic_regression(2), num_samples=1)
    with pytest.raises(ValueError, match="`source`.* must"):
        load_compact(tmp_path / "student", binary)
    assert load_compact(tmp_path / "student", RUN).num_classes == 3


@pytest.mark.parametrize(("call", "args", "message"), MEASURES)
def test_measures(call: Callable[..., Any], args: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call(*args)
