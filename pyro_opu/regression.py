"""The names of one-pass regression: mean, aleatoric and epistemic variance of a real y."""

from __future__ import annotations

from pyro_opu.distillation import distill_regression
from pyro_opu.distributions.normal import Components, PredictiveNormal, PredictiveNormalMixture
from pyro_opu.guides.normal import (
    REGRESSION_GUIDES,
    GaussianGuide,
    NormalMixtureGuide,
    RealGuide,
    named_regression_guide,
)
from pyro_opu.metrics.uncertainty import RegressionUncertainty
from pyro_opu.objectives.normal import NormalCRPS, NormalMoments, RegressionObjective
from pyro_opu.predictive import OnePassRegression
from pyro_opu.predictive.drop_in import drop_in as regression_drop_in
from pyro_opu.reports.fidelity import FidelityReport as RegressionFidelity
from pyro_opu.reports.fidelity import regression_fidelity
from pyro_opu.teachers.finished import is_regressor
from pyro_opu.teachers.real import FunctionRegressionTeacher, RealTeacher, RegressionTeacher
from pyro_opu.teachers.regressors import as_regression_teacher

__all__ = [
    "REGRESSION_GUIDES",
    "Components",
    "FunctionRegressionTeacher",
    "GaussianGuide",
    "NormalCRPS",
    "NormalMixtureGuide",
    "NormalMoments",
    "OnePassRegression",
    "PredictiveNormal",
    "PredictiveNormalMixture",
    "RealGuide",
    "RealTeacher",
    "RegressionFidelity",
    "RegressionObjective",
    "RegressionTeacher",
    "RegressionUncertainty",
    "as_regression_teacher",
    "distill_regression",
    "is_regressor",
    "named_regression_guide",
    "regression_drop_in",
    "regression_fidelity",
]
