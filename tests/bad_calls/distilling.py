"""Bad calls of ``distill``, and the posteriors and inputs that others share."""

import math
import warnings
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from flat import distill_flat
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.predictive import WeighedPredictive
from torch import nn
from torch.nn.functional import dropout

from bad_calls.table import calls, values, without
from pyro_opu import EnergyDistance, PredictiveGuide, Training, distill
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.transfer import HeldOut, Mixture, TransferPolicy

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(1))
SHORT: dict[str, Any] = {"num_steps": 4, "progress": False, "seed": 0, "batch_size": 16}
NAN = math.nan


def predictive(draws: int = 8, weight: torch.Tensor = WEIGHT) -> Predictive:
    samples = {"weight": weight[:draws], "bias": torch.zeros(draws, 4)}
    return Predictive(logistic_regression(4), samples)


def unlike(samples: dict[str, torch.Tensor]) -> Predictive:
    """Samples of unlike lengths, of which Pyro warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Predictive(logistic_regression(4), samples, num_samples=8)


def draws(x: torch.Tensor) -> torch.Tensor:
    """Eight draws of four classes, as a function."""
    return (x @ WEIGHT.to(x.dtype)).softmax(-1)


def real(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight draws of a regression."""
    loc = x @ WEIGHT[..., 0].T
    return loc.T, torch.ones_like(loc.T)


def short(source: Any = None, x: Any = X, **arguments: Any) -> Any:
    return distill_flat(draws if source is None else source, x, **{**SHORT, **arguments})


def with_entry(value: float, x: torch.Tensor = X) -> torch.Tensor:
    """``x`` with one entry changed."""
    changed = x.clone()
    changed[3, 1] = value
    return changed


def two_sites(x: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("first", dist.Bernoulli(logits=w * x[:, 0]))
        pyro.sample("second", dist.Bernoulli(logits=w * x[:, 1]))


def counts(x: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Poisson((w * x[:, 0]).exp()))


def later(change: Any, after: int) -> Any:
    """A teacher that is right at first, and after a number of calls gives something else."""
    asked = 0

    def source(x: torch.Tensor) -> Any:
        nonlocal asked
        asked += 1
        return draws(x) if asked <= after else change(draws(x))

    return source


class BadPolicy(TransferPolicy):
    """Rows of x, changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        object.__setattr__(self, "change", change)

    def _draw(self, n: int) -> torch.Tensor:
        return self.change(self._rows(n))


class Answering(nn.Module):
    """A guide of the user's that answers with what a function of x gives."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.weight, self.answer = nn.Parameter(torch.zeros(())), answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(x)


class Loader:
    """Batches, again and again."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def raising(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of order")


SCALAR = {"w": torch.randn(8, generator=torch.Generator().manual_seed(2))}
#: Inputs that no call takes, for three features.
INPUTS: dict[str, Any] = {
    "a list": X.tolist(),
    "an array with NaN": with_entry(NAN).numpy(),
    "an array of text": X.numpy().astype(str),
    "an array of unsigned numbers": abs(X).numpy().astype("uint16"),
    "an array of objects": X.numpy().astype(object),
    "None": None,
    "a string": "x",
    "without a row": X[:0],
    "1-d": X[:, 0],
    "of integers": X.long(),
    "of bools": X > 0,
    "complex": X + 0j,
    "sparse": X.to_sparse(),
    "on the meta device": X.to("meta"),
    "with NaN": with_entry(NAN),
    "with infinity": with_entry(math.inf),
    "of another width": X[:, :2],
    "of another rank": X[:, None],
}
#: Posteriors that no classifier is made of, and those that ``as_teacher`` does not take either.
OTHER_OUTCOMES: dict[str, Any] = {
    "two observed sites": Predictive(two_sites, SCALAR),
    "counts": Predictive(counts, SCALAR),
}
SOURCES: dict[str, Any] = {
    "None": 0,
    "a string": "posterior",
    "a tensor of draws": draws(X),
    "an MCMC run": MCMC(NUTS(logistic_regression(4)), 4),
    "an empty list": [],
    "a list of functions": [draws, draws],
    "a network without dropout": nn.Linear(3, 4),
    "a class of networks": nn.Linear,
    "a network of one logit": nn.Sequential(nn.Dropout(), nn.Linear(3, 1)),
    "networks of unlike classes": [nn.Linear(3, 4), nn.Linear(3, 5)],
    "a network for other inputs": nn.Sequential(nn.Dropout(), nn.Linear(7, 4)),
    "one draw": predictive(1),
    "one class": lambda x: torch.ones(8, len(x), 1),
    "infinite draws": predictive(weight=WEIGHT / 0),
    "unlike numbers of draws": unlike({"weight": WEIGHT, "bias": torch.zeros(7, 4)}),
    "draws of another width": predictive(weight=WEIGHT[:, :2]),
    "draws off the simplex": lambda x: x @ WEIGHT,
    "unnormalised draws": lambda x: 2 * draws(x),
    "draws of NaN": lambda x: draws(x) * NAN,
    "draws as a list": lambda x: draws(x).tolist(),
    "draws without an axis S": lambda x: draws(x)[0],
    "draws with axes exchanged": lambda x: draws(x).transpose(0, 1),
    "draws of integers": lambda x: draws(x).round().long(),
    "another number of rows": lambda x: draws(x)[:, 1:],
    "a model that raises": raising,
    "None as draws": lambda x: None,
    "classes that follow the rows": lambda x: torch.ones(8, len(x), len(x)) / len(x),
    "a function of no arguments": lambda: draws(X),
    "fewer draws than asked for": lambda x, num_draws: draws(x)[:3],
    "a mixture of unlike classes": [predictive(), Predictive(two_sites, SCALAR)],
    "a real posterior with NaN": lambda x: (real(x)[0] * NAN, real(x)[1]),
    "a real posterior, scale below zero": lambda x: (real(x)[0], -real(x)[1]),
    "a real posterior, scale of NaN": lambda x: (real(x)[0], NAN * real(x)[1]),
    "a real posterior of other rows": lambda x: (real(x)[0][:, 1:], real(x)[1][:, 1:]),
    "a real posterior of three parts": lambda x: (*real(x), real(x)[0]),
    "a real posterior whose scale is a number": lambda x: (real(x)[0], 3),
    "a real posterior of other scales": lambda x: (real(x)[0], real(x)[1][0, :3]),
    "a network with dropout in an LSTM": nn.LSTM(3, 4, num_layers=2, dropout=0.2),
    "a network of tuples": Answering(lambda x: (dropout(x), x)),
    "a network of labels": Answering(lambda x: dropout(x).argmax(-1)),
    "a network of NaN": Answering(lambda x: NAN * dropout(x)),
    "draws with weights": WeighedPredictive(counts, guide=counts, num_samples=2),
    "samples in arrays": Predictive(two_sites, {"w": SCALAR["w"].numpy()}),
}
#: What posteriors and policies turn into while the student is taught.
CHANGES: dict[str, Any] = {
    "NaN": lambda v: v * NAN,
    "one NaN": lambda v: with_entry(NAN, v.flatten(1)).view(v.shape),
    "negative rows": lambda v: torch.cat([v[..., :1] - 2, v[..., 1:2] + 2, v[..., 2:]], -1),
    "unnormalised rows": lambda v: 1.5 * v,
    "zeros": lambda v: 0 * v,
    "fewer classes": lambda v: v[..., :3] / v[..., :3].sum(-1, keepdim=True),
    "more classes": lambda v: torch.cat([v, 0 * v], -1),
    "fewer draws": lambda v: v[:5],
    "more draws": lambda v: torch.cat([v, v]),
    "fewer rows": lambda v: v[:, 1:],
    "more rows": lambda v: torch.cat([v, v], 1),
    "lists": lambda v: v.tolist(),
    "None": lambda v: None,
    "an error": raising,
    "integers": lambda v: v.round().long(),
}
TRANSFERRED: dict[str, Any] = {
    "NaN": lambda x: x * NAN,
    "infinity": lambda x: x / 0,
    "fewer rows": lambda x: x[1:],
    "no rows": lambda x: x[:0],
    "more rows": lambda x: torch.cat([x, x]),
    "other features": lambda x: x[:, :2],
    "more features": lambda x: torch.cat([x, x], 1),
    "another axis": lambda x: x[:, None],
    "float64": lambda x: x.double(),
    "integers": lambda x: x.long(),
    "a list": lambda x: x.tolist(),
    "None": lambda x: None,
    "an error": raising,
}

# fmt: off
values("distill", short, source=SOURCES)
values("distill", short, num_steps=[0, -1, 2.5, "3", True, NAN], batch_size=[0, -1, 2.5, "3", True],
    num_draws=[0, -3, 2.5, "3", True], learning_rate=[0.0, -1.0, NAN, math.inf, "a", True, [0.1]],
    evaluate_every=[0, -1, 2.5, "3", None],
    num_samples=[0, -1, 2.5, "3", True], seed=[1.5, "0", True, 2**70, NAN, [0]],
    warm_start=["no", 1, None], recalibrate=["no", 0, None], progress=[1, "yes", None],
    device=["gpu", "meta", 0, "cuda:99"],
    loss={"'kl'": "kl", "3": 3, "of torch": nn.CrossEntropyLoss()},
    return_sites=["probs", ["label"], ["weight"], [3], 3],
    inputs={"'x'": "x", "3": 3, "a tensor": X},
    checkpoint=[".", "missing/run", "", "a\0b", "/nonexistent/run", "/dev/null/run", 3, True],
    site=["label", "weight", 3],
    guide={"of no such name": "dirichlets", "3": 3, "a function": lambda x: x,
        "a class": PredictiveGuide, "a tensor": X,
        "of other classes": PredictiveGuide.for_inputs(X, 5),
        "of other inputs": PredictiveGuide.for_inputs(X[:, :2], 4), "of logits": nn.Linear(3, 4),
        "without parameters": nn.Identity(),
        "on the meta device": PredictiveGuide.for_inputs(X, 4).to("meta"),
        "that answers None": Answering(lambda x: None),
        "that answers a normal": Answering(lambda x: dist.Normal(x, 1.0)),
        "of one Dirichlet for all": Answering(lambda x: dist.Dirichlet(torch.ones(4))),
        "of NaN": Answering(lambda x: dist.Dirichlet(NAN * torch.ones(len(x), 4))),
        "without gradient": Answering(lambda x: dist.Dirichlet(torch.ones(len(x), 4))),
        "that raises": Answering(raising)},
    transfer={"a function": lambda n: X[:n], "a name": "jitter", "a class": HeldOut,
        "a list": [HeldOut()], "a tensor": X, "a number": 0.5, "without _draw": TransferPolicy(),
        **{f"that gives {w}": BadPolicy(change) for w, change in TRANSFERRED.items()},
        "in a mixture, that gives NaN": Mixture([(1.0, BadPolicy(TRANSFERRED["NaN"]))]),
        "in a mixture, that gives fewer rows": Mixture([(1.0, BadPolicy(lambda x: x[1:]))])},
    x={**without(INPUTS, "of another width", "of another rank"), "a number": 3.0,
        "a dict of another name": {"z": X}, "a dict of numbers": {"x": 3.0},
        "a tuple of too many": (X, X, X), "a tuple of other rows": (X, X[:3]),
        "an index below zero": X.long() - 9, "pixels in bytes": (X * 9).byte(),
        "without a feature": X[:, :0], "of three rows": X[:3], "0-d": X[0, 0],
        "of another width than the model": X[:, :2], "a loader without batches": Loader(),
        "a loader of strings": Loader("ab"), "a loader of integers": Loader(X.long()),
        "a loader of 1-d batches": Loader(X[:, 0]), "a loader of two widths": Loader(X, X[:, :2]),
        "a loader with NaN": Loader(with_entry(NAN)), "a loader of empty tuples": Loader(())})
values("distill", partial(distill, draws, X, num_steps=4, progress=False),
    training=[None, {"num_draws": 8}, Training])
values("distill, of a Predictive", partial(short, predictive()),
    return_sites=["probs", ["obs", "weight"], ["label"], [3]], site=["label", "weight", 3],
    inputs=["x", 3])
values("distill, of a real y", partial(short, real), loss=["wasserstein", "energy", 3],
    guide={"of classes": "dirichlet", "of a Dirichlet": PredictiveGuide.for_inputs(X, 4)})
values("distill, of a real y", partial(short, real, guide="mixture"), loss=["moments"])
values("distill, implicit", partial(short, guide="implicit"),
    loss=["likelihood", "moments", "cross_entropy", "endd", "proxy"])
SLOPES = torch.ones(9, X.shape[1], 4)
calls("distill", {"x a generator": lambda: short(x=(row for row in X)),
    "x float64 for float32 weights": lambda: short(lambda x: (x @ SLOPES).softmax(-1),
        x=X.double())})
# The default labels a pool at once; an objective of draws asks in every step.
for after, asked in ((3, {}), (4, {}), (5, {"loss": EnergyDistance(4), "warm_start": False})):
    values("distill", lambda source, after=after, asked=asked: short(later(source, after), **asked),
        source={f"{what}, after {after} calls": change for what, change in CHANGES.items()})
