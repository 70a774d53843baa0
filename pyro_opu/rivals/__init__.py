"""Other ways of making a posterior cheap, behind the call of ``distill``.

Every function here is called ``name(source, x, *, ..., seed=None, progress=True)``, with whatever
:func:`~pyro_opu.as_teacher` takes and transfer inputs ``(N, *input_shape)``, and returns a
:class:`~pyro_opu.OnePassPredictive`, the drop-in for the source: to compare two of them is to
change one word. ``seed`` fixes everything random, and torch's generator is left as it was;
errors are those of :func:`~pyro_opu.distill`.
"""

from __future__ import annotations

from pyro_opu.rivals.bayesian_dark_knowledge import dark_knowledge
from pyro_opu.rivals.compact import CompactGuide, compact_approx, load_compact
from pyro_opu.rivals.ensemble_distillation import endd, proxy_dirichlet
from pyro_opu.rivals.laplace_bridge import LaplaceBridgeGuide, laplace_bridge_predictive
from pyro_opu.rivals.online import online_dark_knowledge
from pyro_opu.rivals.prior_networks import prior_network

__all__ = [
    "LaplaceBridgeGuide",
    "compact_approx",
    "dark_knowledge",
    "endd",
    "laplace_bridge_predictive",
    "load_compact",
    "online_dark_knowledge",
    "prior_network",
    "proxy_dirichlet",
]


def __dir__() -> list[str]:
    return sorted(__all__)
