"""Bad calls of the rivals of ``distill``, for ``bad_input``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import nn

from benchmarks.bad_input import Cases
from benchmarks.bad_input_models import BROKEN, INF, MODEL, MODEL2, NAN, NETWORK, X, Y
from pyro_opu import rivals, samplers
from pyro_opu.models.neural_network import bayesian_network

WEIGHT = torch.randn(8, 3, 3, generator=torch.Generator().manual_seed(0))
POSTERIOR = Predictive(MODEL, {"weight": WEIGHT, "bias": torch.zeros(8, 3)})
FEW: dict[str, Any] = {"num_steps": 2, "progress": False, "seed": 0}
KERNEL = samplers.SGLD(MODEL, step_size=1e-3)

CASES = Cases()
add, each = CASES.add, CASES.each


def teacher(x: torch.Tensor) -> torch.Tensor:
    """Draws of a teacher of 3 features and 3 classes."""
    return (x @ WEIGHT).softmax(-1)


_DARK = partial(rivals.dark_knowledge, teacher, **FEW)
each("dark_knowledge", _DARK, "form", "mean", 3, x=X)
each("dark_knowledge", _DARK, "batch_size", 0, 1.5, x=X)
each("dark_knowledge", _DARK, "learning_rate", 0.0, -1.0, NAN, "1", None, x=X)
each("dark_knowledge", _DARK, "prior_precision", -1.0, NAN, INF, "1", x=X)
each("dark_knowledge", _DARK, "optimizer", "adam", None, x=X)
each("dark_knowledge", _DARK, "guide", "forest", 3, nn.Linear(3, 3), x=X)
each("dark_knowledge", _DARK, "transfer", "jitter", 3, teacher, x=X)
each("dark_knowledge", _DARK, "x", BROKEN, X.tolist(), X[:0])
each("dark_knowledge", partial(rivals.dark_knowledge, teacher, X, progress=False), "num_steps",
     0, 1.5)  # fmt: skip
each("dark_knowledge", partial(rivals.dark_knowledge, teacher, X, num_steps=2), "progress", "no")
each("dark_knowledge", partial(rivals.dark_knowledge, x=X, **FEW), "source", None, 3)
_ONLINE = partial(rivals.online_dark_knowledge, KERNEL, num_draws=2, progress=False)
each("online_dark_knowledge", _ONLINE, "data", X, None, x=X)
add("online_dark_knowledge", "data without labels", _ONLINE, (X,), X)
add("online_dark_knowledge", "labels out of range", _ONLINE, (X, Y + 1), X)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X), "warmup_steps", -1, 1.5)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X), "batch_size", 0, 1.5)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X, warmup_steps=0), "num_samples", 0, 1.5)
each("online_dark_knowledge", partial(_ONLINE, (X, Y), X, warmup_steps=0), "optimizer", "adam")
add(
    "online_dark_knowledge",
    "another kernel",
    rivals.online_dark_knowledge,
    samplers.PolyaGammaGibbs(MODEL2),
    (X, Y),
    X,
)
_ENDD = partial(rivals.endd, teacher, X, num_steps=2, progress=False)
each("endd", _ENDD, "temperature", 0.5, NAN, "10")
each("endd", _ENDD, "smoothing", -0.1, 1.0, NAN)
each("endd", _ENDD, "learning_rate", 0.0, NAN)
each("endd", _ENDD, "batch_size", 0, "256")
each("endd", _ENDD, "seed", 1.5, "0")
_PROXY = partial(rivals.proxy_dirichlet, teacher, X, progress=False)
each("proxy_dirichlet", _PROXY, "num_steps", 0, 1.5)
each("proxy_dirichlet", partial(_PROXY, num_steps=2), "num_draws", 0, 2.5)
_PRIOR = partial(rivals.prior_network, teacher, outside=9 * X, **FEW)
each("prior_network", _PRIOR, "concentration", 0.0, NAN, INF, "1", x=X)
each("prior_network", _PRIOR, "outside_weight", -1.0, NAN, "1", x=X)
each("prior_network", _PRIOR, "form", "both", 3, x=X)
each("prior_network", _PRIOR, "learning_rate", 0.0, NAN, INF, "1", x=X)
each("prior_network", _PRIOR, "y", Y + 1, Y.float(), Y[:7], Y.tolist(), x=X)
each("prior_network", _PRIOR, "hidden", (0,), 8, "8", x=X)
each("prior_network", _PRIOR, "x", X[:1], BROKEN, X[:, :2])
_COMPACT = partial(rivals.compact_approx, POSTERIOR, X, progress=False)
each("compact_approx", _COMPACT, "size", 0, 9, 1.5, "5")
each("compact_approx", partial(_COMPACT, size=2), "method", "best", 3, None)
each("compact_approx", partial(_COMPACT, size=2), "pool", 0, 99, 1.5)
each("compact_approx", partial(_COMPACT, size=2), "tries", 0, 1.5)
each("compact_approx", partial(_COMPACT, size=2), "return_sites", ["label"], "obs", 3)


def load_compact(source: Any, **settings: Any) -> Any:
    """A compact student is written, and read with another source."""
    path = Path("student")
    try:
        rivals.compact_approx(POSTERIOR, X, size=2, tries=9, progress=False).save(path)
        return rivals.load_compact(path, source, **settings)
    finally:
        path.unlink(missing_ok=True)


def doubled(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """A model with the latents of the logistic regression, and twice its classes."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    logits = (x @ weight + bias).repeat(1, 2)
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


for _what, _source in (
    ("a model of other classes", Predictive(doubled, num_samples=1)),
    ("a model with other latents", Predictive(bayesian_network(NETWORK), num_samples=1)),
    ("a model of two classes", Predictive(MODEL2, num_samples=1)),
    ("an ensemble", [NETWORK, NETWORK]),
    ("a function", teacher),
    ("nothing", None),
):
    add("load_compact", _what, load_compact, _source)
add("load_compact", "no device", load_compact, POSTERIOR, device="tpu9")
add("load_compact", "a missing file", rivals.load_compact, "missing", POSTERIOR)
_BRIDGE = partial(rivals.laplace_bridge_predictive, progress=False)
each("laplace_bridge_predictive", partial(_BRIDGE, POSTERIOR, X), "num_draws", 0, 1, 1.5, 99)
each("laplace_bridge_predictive", partial(_BRIDGE, POSTERIOR, X), "normalize", "no", None)
each("laplace_bridge_predictive", partial(_BRIDGE, POSTERIOR), "x", BROKEN, X.tolist(), X[:, :2])
each("laplace_bridge_predictive", partial(_BRIDGE, x=X), "source", None, 3)
