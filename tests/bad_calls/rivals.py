"""Bad calls of the rivals of ``distill``."""

from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import nn

from bad_calls.models import BROKEN, INF, MODEL, MODEL2, NAN, NETWORK, ONE, X, Y
from bad_calls.table import arguments, calls, values
from pyro_opu import as_teacher, rivals, samplers
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.neural_network import bayesian_network

WEIGHT = torch.randn(8, 3, 3, generator=torch.Generator().manual_seed(0))
POSTERIOR = Predictive(MODEL, {"weight": WEIGHT, "bias": torch.zeros(8, 3)})
FEW: dict[str, Any] = {"num_steps": 2, "progress": False, "seed": 0}
QUIET = {"progress": False}
KERNEL = samplers.SGLD(MODEL, step_size=1e-3)


def teacher(x: torch.Tensor) -> torch.Tensor:
    """Draws of a teacher of 3 features and 3 classes."""
    return (x @ WEIGHT).softmax(-1)


# fmt: off
values("dark_knowledge",
    lambda **given: rivals.dark_knowledge(**{"source": teacher, "x": X, **FEW, **given}),
    form=["mean", "normal", 3], batch_size=[0, 1.5], learning_rate=[0.0, -1.0, NAN, "1", None],
    prior_precision=[-1.0, NAN, INF, "1"], optimizer=["adam", None],
    guide=["forest", 3, nn.Linear(3, 3)],
    transfer={"a name": "jitter", "3": 3, "a function": teacher},
    x={"with NaN": BROKEN, "a list": X.tolist(), "without a row": X[:0]}, num_steps=[0, 1.5],
    progress=["no"], source=[None, 3])
ONLINE = partial(rivals.online_dark_knowledge, num_draws=2, **QUIET)
values("online_dark_knowledge", partial(ONLINE, KERNEL, (X, Y), X), warmup_steps=[-1, 1.5],
    batch_size=[0, 1.5])
values("online_dark_knowledge", partial(ONLINE, KERNEL, (X, Y), X, warmup_steps=0),
    num_samples=[0, 1.5], optimizer=["adam"], form=["mixture", "normal"])
OF_REAL = partial(ONLINE, samplers.SGLD(bayesian_network(ONE, likelihood=regression()),
    step_size=1e-3), (X, X[:, 0]), X, warmup_steps=0)
values("online_dark_knowledge, of a real y", OF_REAL, form=["point"])
values("online_dark_knowledge, of a real y", partial(OF_REAL, form="normal"),
    guide=["point", nn.Linear(3, 3)])
values("online_dark_knowledge", partial(rivals.online_dark_knowledge, KERNEL, (X, Y), X, **QUIET),
    num_draws=[0])
arguments("online_dark_knowledge", ONLINE, {
    "data that are a tensor": (KERNEL, X, X),
    "no data": (KERNEL, None, X),
    "data without labels": (KERNEL, (X,), X),
    "labels out of range": (KERNEL, (X, Y + 1), X),
    "another kernel": (samplers.PolyaGammaGibbs(MODEL2), (X, Y), X)})
values(partial(rivals.endd, teacher, X, num_steps=2, **QUIET), temperature=[0.5, NAN, "10"],
    smoothing=[-0.1, 1.0, NAN], learning_rate=[0.0, NAN], batch_size=[0, "256"], seed=[1.5, "0"])
values(partial(rivals.endd, teacher, X, **QUIET), num_steps=[0, 2.5])
PROXY = partial(rivals.proxy_dirichlet, teacher, X, **QUIET)
values("proxy_dirichlet", PROXY, num_steps=[0, 1.5])
values("proxy_dirichlet", partial(PROXY, num_steps=2), num_draws=[0, 2.5])
values("prior_network",
    lambda **given: rivals.prior_network(teacher, **{"x": X, "outside": 9 * X, **FEW, **given}),
    concentration=[0.0, NAN, INF, "1"], outside_weight=[-1.0, NAN, "1"], form=["both", 3],
    learning_rate=[0.0, NAN, INF, "1"],
    y={"out of range": Y + 1, "float": Y.float(), "short": Y[:7], "a list": Y.tolist()},
    hidden=[(0,), 8, "8"], num_steps=[0, 1.5], batch_size=[0, 2.5],
    outside={"of another width": 9 * X[:, :2], "of one row": X[:1], "with NaN": BROKEN,
        "labels": Y},
    x={"of one row": X[:1], "with NaN": BROKEN, "of another width": X[:, :2]})
values("compact_approx",
    lambda **given: rivals.compact_approx(POSTERIOR, X, **{"size": 2, **QUIET, **given}),
    size=[0, 9, 1.5, "5"], method=["best", 3, None], pool=[0, 99, 1.5], tries=[0, 1.5])
values("compact_approx of a teacher", lambda **given: rivals.compact_approx(
        as_teacher(POSTERIOR, **given), X, size=2, **QUIET), return_sites=[["label"], "obs", 3])
BRIDGE = partial(rivals.laplace_bridge_predictive, **QUIET)
values("laplace_bridge_predictive", partial(BRIDGE, POSTERIOR, X), num_draws=[0, 1, 1.5, 99],
    normalize=["no", None])
values("laplace_bridge_predictive", partial(BRIDGE, POSTERIOR),
    x={"with NaN": BROKEN, "a list": X.tolist(), "of another width": X[:, :2]})
values("laplace_bridge_predictive", partial(BRIDGE, x=X), source=[None, 3])


def load_compact(source: Any, **settings: Any) -> Any:
    """A compact student is written, and read with another source."""
    path = Path.home() / "student"
    rivals.compact_approx(POSTERIOR, X, size=2, tries=9, **QUIET).save(path)
    return rivals.load_compact(path, source, **settings)


def doubled(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """A model with the latents of the logistic regression, and twice its classes."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    logits = (x @ weight + bias).repeat(1, 2)
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


arguments(load_compact, {
    "a model of other classes": (Predictive(doubled, num_samples=1),),
    "a model with other latents": (Predictive(bayesian_network(NETWORK), num_samples=1),),
    "a model of two classes": (Predictive(MODEL2, num_samples=1),),
    "an ensemble": ([NETWORK, NETWORK],),
    "a function": (teacher,),
    "nothing": (None,)})
calls("load_compact", {
    "no device": lambda: load_compact(POSTERIOR, device="tpu9"),
    "a missing file": lambda: rivals.load_compact("missing", POSTERIOR)})
