"""One-pass predictive uncertainty for Pyro.

``distill`` learns, once and from any posterior, a Dirichlet over class probabilities that one
forward pass gives; the :class:`OnePassPredictive` it returns takes the place of
``pyro.infer.Predictive``.

Letters mean the same in every docstring: S posterior draws, N inputs, C classes, D features, in
this order of axes: draws of class probabilities are ``(S, N, C)``, inputs ``(N, D)``. M is the
number of draws that a finite posterior holds; alpha are the parameters of a Dirichlet, alpha_0,
their sum, its concentration. Entropies, divergences and log-likelihoods are in nats (natural
logarithms).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyro_opu.distillation import distill
from pyro_opu.distributions.bridge import inverse_laplace_bridge, laplace_bridge, probit_predictive
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.inputs import Inputs
from pyro_opu.metrics.top_k import top_k
from pyro_opu.metrics.uncertainty import (
    aleatoric_uncertainty,
    concentration,
    differential_entropy,
    entropy,
    epistemic_uncertainty,
    expected_pairwise_kl,
    max_probability,
    mutual_information,
    total_uncertainty,
    uncertainty,
    variance,
)
from pyro_opu.objectives import (
    CrossEntropy,
    DirichletLikelihood,
    EnergyDistance,
    MetaCritic,
    MomentMatching,
    Objective,
    WassersteinELBO,
)
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.predictive.distillation_report import FidelityWarning
from pyro_opu.reports.mixing import MixingWarning, mixing
from pyro_opu.teachers import Teacher, as_teacher
from pyro_opu.training.descent import DistillationError
from pyro_opu.training.options import Training
from pyro_opu.utils.version import __version__ as __version__

if TYPE_CHECKING:
    from pyro_opu import (
        distributions,
        export,
        guides,
        interop,
        joint,
        models,
        objectives,
        plots,
        rivals,
        samplers,
        teachers,
        transfer,
    )
    from pyro_opu.interop.arviz import to_inference_data
    from pyro_opu.ladder.advice import Advice, advise
    from pyro_opu.ladder.exact import batched, exact
    from pyro_opu.ladder.guarded import guarded
    from pyro_opu.reports.detection import detection, misclassification, out_of_domain
    from pyro_opu.reports.fidelity import FidelityReport, fidelity
    from pyro_opu.samplers import SGLD, PolyaGammaGibbs
    from pyro_opu.scoring.scorer import Scorer

__all__ = [
    "SGLD",
    "Advice",
    "CrossEntropy",
    "DirichletLikelihood",
    "DistillationError",
    "EnergyDistance",
    "FidelityReport",
    "FidelityWarning",
    "Inputs",
    "MetaCritic",
    "MixingWarning",
    "MomentMatching",
    "Objective",
    "OnePassPredictive",
    "PolyaGammaGibbs",
    "PredictiveDirichlet",
    "PredictiveGuide",
    "Scorer",
    "Teacher",
    "Training",
    "WassersteinELBO",
    "advise",
    "aleatoric_uncertainty",
    "as_teacher",
    "batched",
    "concentration",
    "detection",
    "differential_entropy",
    "distill",
    "distributions",
    "entropy",
    "epistemic_uncertainty",
    "exact",
    "expected_pairwise_kl",
    "export",
    "fidelity",
    "guarded",
    "guides",
    "interop",
    "inverse_laplace_bridge",
    "joint",
    "laplace_bridge",
    "max_probability",
    "misclassification",
    "mixing",
    "models",
    "mutual_information",
    "objectives",
    "out_of_domain",
    "plots",
    "probit_predictive",
    "rivals",
    "samplers",
    "teachers",
    "to_inference_data",
    "top_k",
    "total_uncertainty",
    "transfer",
    "uncertainty",
    "variance",
]

#: Public names that are imported when first asked for, as rooms are, by module: the package loads
#: quickly.
_LATER = {
    "SGLD": "samplers",
    "Advice": "ladder.advice",
    "advise": "ladder.advice",
    "PolyaGammaGibbs": "samplers",
    "Scorer": "scoring.scorer",
    "batched": "ladder.exact",
    "detection": "reports.detection",
    "exact": "ladder.exact",
    "guarded": "ladder.guarded",
    "misclassification": "reports.detection",
    "out_of_domain": "reports.detection",
    "FidelityReport": "reports.fidelity",
    "fidelity": "reports.fidelity",
    "to_inference_data": "interop.arviz",
}


if not TYPE_CHECKING:  # where it would say that every name is there

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            value = globals()[name] = getattr(import_module(f"pyro_opu.{_LATER[name]}"), name)
            return value
        if name in __all__:  # a room
            return import_module(f"pyro_opu.{name}")
        raise AttributeError(f"module 'pyro_opu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
