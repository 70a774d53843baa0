"""One-pass regression: mean, aleatoric and epistemic variance of a real y in one pass."""

from __future__ import annotations

from pyro_opu.regression.distill import distill_regression
from pyro_opu.regression.fidelity import RegressionFidelity, regression_fidelity
from pyro_opu.regression.guide import (
    REGRESSION_GUIDES,
    GaussianGuide,
    NormalMixtureGuide,
    RealGuide,
    named_regression_guide,
)
from pyro_opu.regression.mixture import PredictiveNormalMixture
from pyro_opu.regression.normal import Components, PredictiveNormal
from pyro_opu.regression.objective import (
    NormalCRPS,
    NormalMoments,
    RegressionObjective,
    expected_nll,
)
from pyro_opu.regression.predictive import (
    OnePassRegression,
    RegressionUncertainty,
    regression_drop_in,
)
from pyro_opu.regression.sources import (
    FunctionRegressionTeacher,
    as_regression_teacher,
    is_regressor,
)
from pyro_opu.regression.teacher import RealTeacher, RegressionTeacher

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
    "expected_nll",
    "is_regressor",
    "named_regression_guide",
    "regression_drop_in",
    "regression_fidelity",
]
