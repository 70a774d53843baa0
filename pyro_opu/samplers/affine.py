"""Design, prior and labels of a logistic model with logits affine in Gaussian latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch import distributions as dist

from pyro_opu.checks import ArgumentError, check_inputs, check_tensor
from pyro_opu.rng import exclusive
from pyro_opu.samplers.latents import Latents, latent_and_observed
from pyro_opu.utils import Node, is_known, warn_user

Model = Callable[..., object]
_CHANGE = "Sample such a model with pyro.infer.NUTS."


@dataclass(frozen=True)
class Block:
    """Latents that move one column of the logits: their positions, and their columns of X."""

    column: int
    places: Tensor
    design: Tensor


@dataclass(frozen=True)
class AffineLogits:
    """A logistic model: logits ``(N, C)``, counts per class, and a Gaussian prior."""

    latents: Latents
    blocks: list[Block]
    offset: Tensor  # (N, C): the logits at zero; a binary model has the columns 0 and its logit
    trials: Tensor  # (N,): number of trials times the weight of the row
    counts: Tensor  # (N, C): labels of each class, weighted, summing to `trials`
    prior_mean: Tensor  # (P,)
    prior_precision: Tensor  # (P, P)


def read_affine_logits(
    model: Model, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> AffineLogits:
    """Run the model at zero, at unit vectors and at random points to read its parts."""

    def run(values: dict[str, Tensor]) -> dict[str, Any]:
        with exclusive(), poutine.block(), poutine.condition(data=values):
            return dict(poutine.trace(model).get_trace(*args, **kwargs).nodes)

    nodes = run({})
    sites, observed = latent_and_observed(nodes)
    if len(observed) != 1:
        advice = _CHANGE if observed else "Pass the labels, mcmc.run(x, y), and have obs=y there."
        raise ArgumentError(
            f"`model` must have one observed site; got {observed or 'none'}. {advice}"
        )
    obs, names = observed[0], sorted(sites)
    mean, precision = _prior({name: sites[name] for name in names})
    latents = Latents.of({name: site["value"] for name, site in sites.items()})

    def logits(theta: Tensor) -> Tensor:
        again = run(latents.split(theta))
        now = _prior({name: again[name] for name in names})
        if not all(map(torch.equal, now, (mean, precision))):
            raise ArgumentError(
                "`model`'s latents must have fixed parameters; got a mean or a scale that depends "
                f"on another latent, among the sites {names}. {_CHANGE}"
            )
        return _logits(again[obs]["fn"])

    offset = logits(torch.zeros_like(mean))
    trials, counts = _counts(nodes[obs], obs, offset.shape)
    design = torch.stack([logits(unit) - offset for unit in torch.eye(len(mean)).to(mean)])
    _check_affine(logits, offset, design, mean, precision)
    owners = [name for name, shape in latents.shapes.items() for _ in range(shape.numel())]
    kept = trials > 0  # without the rows that are masked or hold no trial
    blocks = _blocks(design[:, kept], offset, owners)
    return AffineLogits(latents, blocks, offset[kept], trials[kept], counts[kept], mean, precision)


def _unwrap(fn: Any) -> Any:
    while is_known(fn, dist.Independent):
        fn = fn.base_dist
    return fn


def _prior(nodes: Mapping[str, Node]) -> tuple[Tensor, Tensor]:
    """Mean (P,) and precision (P, P) of all latents together."""
    means, blocks = [], []
    for name, node in nodes.items():
        fn = _unwrap(node["fn"])
        kinds = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)
        if not is_known(fn, kinds):
            raise ArgumentError(
                "`model`'s latents must be Normal or MultivariateNormal; got "
                f"{type(fn).__name__} at site '{name}'. {_CHANGE}"
            )
        weight = _weight(node)
        if isinstance(fn, dist.Normal):
            each = (weight / fn.stddev.double() ** 2).reshape(-1, 1, 1)
        else:
            each = torch.cholesky_inverse(fn.scale_tril.double()) * weight.unsqueeze(-1)
        means.append(fn.mean.double().reshape(-1))
        blocks += list(each.reshape(-1, *each.shape[-2:]))
    if not blocks:
        raise ArgumentError(f"`model` must have Normal latents; got no latent at all. {_CHANGE}")
    mean, precision = torch.cat(means), torch.block_diag(*blocks)
    if not (mean.isfinite().all() and precision.isfinite().all() and (precision.diag() > 0).all()):
        raise ArgumentError(
            "`model`'s latents must have finite means, scales that are finite and positive, and no "
            f"mask; got others among the sites {list(nodes)}. Check their parameters."
        )
    return mean, precision


def _weight(node: Node) -> Tensor:
    """The factor of a site's log-density by poutine.scale and poutine.mask."""
    weight = torch.as_tensor(node["scale"]).double()
    if node["mask"] is not None:
        weight = weight * torch.as_tensor(node["mask"], device=weight.device)
    return weight.reshape(weight.shape + (1,) * node["fn"].event_dim).to(node["value"].device)


def _logits(fn: Any) -> Tensor:
    """Logits (N, C) up to a shift of each row; (0, logit) for a Bernoulli or a Binomial."""
    fn = _unwrap(fn)
    if not is_known(fn, (dist.Bernoulli, dist.Binomial, dist.Categorical)):
        raise ArgumentError(
            "`model`'s observed site must be Bernoulli, Binomial or Categorical; got "
            f"{type(fn).__name__}. {_CHANGE}"
        )
    logits = fn.logits.double().expand(fn.batch_shape + fn.param_shape[len(fn.batch_shape) :])
    if isinstance(fn, dist.Categorical):
        logits = logits.reshape(-1, logits.shape[-1])
    else:
        logits = torch.stack([torch.zeros_like(logits), logits], -1).reshape(-1, 2)
    return check_inputs(logits, "model's logits")


def _counts(node: Node, name: str, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Weighted numbers of trials (N,) and of labels of each class (N, C)."""
    fn, value = _unwrap(node["fn"]), check_tensor("obs", node["value"])
    if value.shape != fn.batch_shape:
        raise ArgumentError(
            f"`obs` at site '{name}' must have shape {tuple(fn.batch_shape)}, that of the "
            f"logits; got {tuple(value.shape)}. Reshape y, or squeeze the logits."
        )
    classes, labels = shape[1], value.double()
    trials = torch.ones_like(labels) * getattr(fn, "total_count", 1)
    most = trials * (classes - 1) if isinstance(fn, dist.Categorical) else trials
    bad = ~((labels >= 0) & (labels <= most) & (labels == labels.round()))  # also where NaN
    if bad.any():
        raise ArgumentError(
            f"`obs` at site '{name}' must hold whole numbers from 0 to {most[bad][0]:g}; got "
            f"{value[bad][0].item():g} in {int(bad.sum())} of {bad.numel()} rows. Recode y."
        )
    if isinstance(fn, dist.Categorical):
        counts = torch.nn.functional.one_hot(labels.long(), classes).double()
    else:
        counts = torch.stack([trials - labels, labels], -1)
    weight = _weight(node)
    trials = (trials * weight).reshape(-1)
    counts = (counts * weight.unsqueeze(-1)).reshape(-1, classes)
    if trials.any() and (counts.sum(0) > 0).sum() < 2:
        warn_user(
            f"all labels at site '{name}' are of one class, {int(counts.sum(0).argmax())}; the "
            "likelihood has no maximum, and only the prior holds the posterior. Check y."
        )
    return trials, counts


def _check_affine(
    logits: Callable[[Tensor], Tensor],
    offset: Tensor,
    design: Tensor,
    mean: Tensor,
    precision: Tensor,
) -> None:
    """Compare logits with offset + design . theta at four random points, near and far."""
    noise = torch.randn_like(mean)
    far = 3 * noise / precision.diag().sqrt()
    for theta in (noise, -noise, mean + far, mean - far):
        gap = logits(theta) - offset - torch.einsum("p,pnc->nc", theta, design)
        gap = gap - gap[:, :1]  # the shift of a row does not count
        size = offset.abs() + torch.einsum("p,pnc->nc", theta.abs(), design.abs())
        # 1e-3: rounding of a float32 model, which grows with the terms of the sum.
        if (gap.abs().amax(-1) > 1e-3 * size.amax(-1) + 1e-5).any():
            raise ArgumentError(
                "`model`'s logits must be affine in the latents, X theta + b; got logits that "
                f"differ from that by up to {gap.abs().max():.3g}. {_CHANGE}"
            )


def _blocks(design: Tensor, offset: Tensor, owners: list[str]) -> list[Block]:
    """Blocks of latents by the one column of the logits that they move; design (P, N, C)."""
    if design.shape[-1] == 2:
        every = torch.arange(len(design), device=design.device)
        return [Block(1, every, (design[..., 1] - design[..., 0]).T.contiguous())]
    design = design - design.median(-1, keepdim=True).values  # all columns but one move alike
    size = design.abs().amax(1)
    # Rounding of a float32 log-softmax, relative to what is moved and to where it starts.
    moved = size > 1e-4 * size.amax(-1, keepdim=True) + 1e-5 * offset.abs().max()
    several = (moved.sum(-1) > 1).nonzero().flatten()
    if len(several):
        raise ArgumentError(
            f"`model`'s latents must each move the logit of one of {len(offset[0])} classes; got "
            f"overlapping blocks: a latent of site '{owners[int(several[0])]}' moves several. "
            f"{_CHANGE}"
        )
    column = moved.long().argmax(-1)  # 0 for latents that move none
    blocks = []
    for k in column.unique().tolist():
        places = (column == k).nonzero().flatten()
        blocks.append(Block(k, places, (design * moved.unsqueeze(1))[places, :, k].T.contiguous()))
    return blocks
