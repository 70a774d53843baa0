"""Programs whose call is awkward: masks, labels given beforehand, plates of a fixed size, flags."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from pyro.infer.reparam import LocScaleReparam
from torch import Tensor

from programs.base import (
    CHAIN,
    WARMUP,
    Program,
    by_guide,
    by_nuts,
    drawn,
    hidden,
    labels,
    program,
    whole,
)

N = 200
X, NEW = drawn(N, 2, seed=1), drawn(N, 2, seed=2)
LOGITS = 2.0 * X[:, 0] - X[:, 1]
Y, REAL = labels(LOGITS, seed=3), LOGITS + 0.5 * drawn(N, seed=4)


def predictor(x: Tensor) -> Tensor:
    """Linear, its weights from their prior."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    return (x * w).sum(-1) + pyro.sample("b", dist.Normal(0.0, 2.0))


def classifier(x: Tensor, y: Tensor | None = None) -> Tensor:
    logits = predictor(x)
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


@program("obs_mask, missing labels")
def missing() -> Program:
    def model(x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> None:
        mean, sigma = predictor(x), pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y, obs_mask=mask)

    # The rows without a label are integrated out: a guide of the other sites does not know them.
    def integrated(x: Tensor, y: Tensor, mask: Tensor) -> None:
        mean, sigma = predictor(x), pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)), poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    samples = by_nuts(integrated, X, REAL, torch.arange(N) % 3 != 0)
    return Program(Predictive(model, samples), X, NEW)


@program("obs_mask given in the model")
def missing_closed() -> Program:
    mask = torch.arange(N) % 3 != 0

    def model(x: Tensor, y: Tensor | None = None) -> None:
        mean, sigma = predictor(x), pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y, obs_mask=mask)

    guide = AutoNormal(hidden(model, "y_unobserved"))
    predictive = by_guide(model, X, REAL, guide=lambda _: guide, return_sites=("y",))
    return Program(predictive, X, NEW)


@program("poutine.mask")
def masked() -> Program:
    def model(x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> None:
        logits = predictor(x)
        known = torch.ones(len(x), dtype=torch.bool) if mask is None else mask
        with pyro.plate("data", len(x)), poutine.mask(mask=known):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    predictive = by_guide(model, X, Y, torch.arange(N) % 3 != 0, return_sites=("y",))
    return Program(predictive, X, NEW)


@program("pyro.condition")
def conditioned() -> Program:
    def generative(x: Tensor) -> Tensor:
        return classifier(x)

    model = pyro.condition(generative, data={"y": Y})
    return Program(by_guide(model, X, return_sites=("y",)), X, NEW)


@program("a plate of the training rows")
def fixed_plate() -> Program:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        logits = predictor(x)
        with pyro.plate("data", N):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return Program(by_guide(model, X, Y, return_sites=("y",)), X, NEW)


@program("a subsampled plate")
def subsampled() -> Program:
    def model(x: Tensor, y: Tensor | None = None, batch_size: int | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        with pyro.plate("data", len(x), subsample_size=batch_size) as rows:
            some = None if y is None else y[rows]
            pyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=some)

    return Program(by_guide(model, X, Y, 50, return_sites=("y",)), X, NEW)


@program("censored data")
def censored() -> Program:
    def model(x: Tensor, censored: Tensor | None = None, y: Tensor | None = None) -> None:
        mean, sigma = predictor(x), pyro.sample("sigma", dist.HalfNormal(1.0))
        fn = dist.Normal(mean, sigma)
        known = torch.ones(len(x), dtype=torch.bool) if censored is None else ~censored
        with pyro.plate("data", len(x)):
            with poutine.mask(mask=known):
                pyro.sample("y", fn, obs=y)
            if censored is not None and y is not None:
                beyond = (1 - fn.cdf(y)).clamp_min(1e-6).log()
                pyro.factor("beyond", torch.where(censored, beyond, 0.0))

    limit = 1.0
    predictive = by_guide(model, X, REAL > limit, REAL.clamp_max(limit), return_sites=("y",))
    return Program(predictive, X, NEW)


@program("semi-supervised, model(x, y=None, is_labeled=False)")
def semi_supervised() -> Program:
    def model(x: Tensor, y: Tensor | None = None, is_labeled: bool = False) -> None:
        logits = predictor(x)
        with pyro.plate("data", len(x)):
            y = y if is_labeled else None
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y, infer={"enumerate": "parallel"})

    predictive = by_guide(model, X[:80], Y[:80], True, return_sites=("y",))
    return Program(predictive, X, NEW)


@program("mixture of regressions, enumerated")
def mixture() -> Program:
    @config_enumerate
    def model(x: Tensor, y: Tensor | None = None) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("components", 2):
            slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(x)):
            part = pyro.sample("assignment", dist.Categorical(weights))
            pyro.sample("obs", dist.Normal(slope[part] * x[:, 0], 0.3), obs=y)

    signs = 1.5 - 3.0 * whole(2, N, seed=5)
    guide = AutoNormal(hidden(model, "assignment"))
    options = {"loss": TraceEnum_ELBO(max_plate_nesting=1), "return_sites": ("obs",)}
    predictive = by_guide(model, X, signs * X[:, 0], guide=lambda _: guide, **options)
    return Program(predictive, X, NEW)


@program("several chains, group_by_chain")
def chains() -> Program:
    chain = MCMC(NUTS(classifier), num_samples=CHAIN, warmup_steps=WARMUP, disable_progbar=True)
    chain.run(X, Y)
    samples = chain.get_samples(group_by_chain=True)
    return Program(Predictive(classifier, samples), X, NEW, cure="flatten(0, 1)")


@program("non-centred, poutine.reparam")
def reparametrised() -> Program:
    def model(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
        scale, logits = pyro.sample("scale", dist.HalfNormal(1.0)), predictor(x)
        with pyro.plate("groups", 5):
            a = pyro.sample("a", dist.Normal(0.0, scale))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=logits + a[group]), obs=y)

    changed = poutine.reparam(model, config={"a": LocScaleReparam(0.0)})
    group = whole(5, N, seed=8)
    predictive = by_guide(changed, X, group, Y, return_sites=("y",))
    return Program(predictive, (X, group), (NEW, whole(5, N, seed=9)))


@program("new groups at their population level")
def new_groups() -> Program:
    def model(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
        scale, logits = pyro.sample("scale", dist.HalfNormal(1.0)), predictor(x)
        with pyro.plate("groups", 5):
            a = pyro.sample("a", dist.Normal(0.0, scale))
        fresh = pyro.sample("a_new", dist.Normal(0.0, scale))
        with pyro.plate("data", len(x)):
            effect = torch.cat([a, fresh.reshape(1)])[group]
            pyro.sample("y", dist.Bernoulli(logits=logits + effect), obs=y)

    group = whole(5, N, seed=8)
    predictive = by_guide(model, X, group, Y, return_sites=("y",))
    return Program(predictive, (X, whole(6, N, seed=10)), (NEW, whole(6, N, seed=11)))
