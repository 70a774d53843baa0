"""Polya-Gamma Gibbs sampling of logistic models, as a kernel for Pyro's ``MCMC``."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch import distributions as dist

from pyro_opu.restoring import kept_random

Model = Callable[..., Any]
_CHANGE = "Sample such a model with pyro.infer.NUTS."


class PolyaGammaGibbs(MCMCKernel):
    r"""Gibbs sampling of a logistic model by Polya-Gamma variables, without tuning.

    For any Pyro model whose latents :math:`\theta` are Normal with fixed parameters, and whose one
    observed site is ``Bernoulli`` or ``Binomial`` with logits affine in them,
    :math:`\psi = X\theta + b`. Both conditionals are exact:

    .. math::
        \omega_i &\sim \mathrm{PG}(n_i, \psi_i) \\
        \theta \mid \omega &\sim N(m, V), \quad V = (X^\top \Omega X + P_0)^{-1}, \quad
        m = V \bigl(X^\top(\kappa - \Omega b) + P_0 \mu_0\bigr), \quad \kappa = y - n / 2

    X, b and the prior are found at the start of a run, by running the model with the latents at
    zero and at unit vectors; that the logits are affine is checked at four points more. The prior
    may correlate latents within a site, and X need not have full rank.

    With a ``Categorical`` of more than two classes each latent must move one logit alone. Then the
    blocks of latents take turns, block k given the others with
    :math:`\psi_{ik} = z_{ik} - \log\sum_{j \ne k} e^{z_{ij}}` in place of the binary logit. That is
    exact Gibbs sampling too, but mixes more slowly than the binary sampler. A vector added to the
    weights of all classes leaves the probabilities as they are: in that direction the prior alone
    speaks, and weights may mix more slowly than the probabilities do.

    Weights on the rows (``poutine.scale``, ``poutine.mask``, :func:`~pyro_opu.samplers.tempered`)
    are exact as well. Linear algebra is in float64; draws have the latents' dtype. All randomness
    comes from torch's generator. A chain starts at a draw from the prior, or at ``initial_params``;
    a run goes on with ``MCMC(kernel, n, warmup_steps=0, initial_params={name: value[-1] for name,
    value in mcmc.get_samples().items()})``, as if it had not been interrupted.

    Where all labels are of one class a warning is given: the posterior is proper, but leans on the
    prior.

    Args:
        model: The Pyro model; its arguments are those of ``mcmc.run``.

    Raises:
        ImportError: the package polyagamma is missing.
        ValueError: from ``mcmc.run``, where the model or the data are not as described.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import MCMC
        >>> from pyro_opu.samplers.polya_gamma import PolyaGammaGibbs
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)
        >>> x = torch.randn(100, 2)
        >>> y = (x[:, 0] > 0).float()
        >>> mcmc = MCMC(PolyaGammaGibbs(model), 200, 50, disable_progbar=True)
        >>> mcmc.run(x, y)
        >>> mcmc.get_samples()["w"].shape
        torch.Size([200, 2])

    References:
        Polson, Scott, Windle: Bayesian inference for logistic models using Polya-Gamma latent
        variables (2013), section 3.1 and the supplement on the multinomial logit,
        https://arxiv.org/abs/1205.0310.
        Holmes, Held: Bayesian auxiliary variable models for binary and multinomial regression
        (2006).
    """

    def __init__(self, model: Model) -> None:
        if importlib.util.find_spec("polyagamma") is None:
            raise ImportError(
                "PolyaGammaGibbs needs the package polyagamma, which is not installed. "
                "pip install 'pyro-opu[samplers]'"
            )
        super().__init__()
        self.model = model
        self.transforms: dict[str, Any] = {}  # Normal latents are unconstrained
        self._saved: list[str] | None = None
        self._start: dict[str, Tensor] | None = None
        self._problem: _Problem | None = None

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Read design, offset and prior off the model; choose the start of the chain."""
        with kept_random(), torch.no_grad():
            self._problem = problem = _read(self.model, args, kwargs)
        if self._start is None:  # a draw from the prior
            mean, precision = problem.prior_mean, problem.prior_precision
            self._start = problem.latents.split(_gaussian(precision, precision @ mean))
        problem.latents.check(self._start)

    def cleanup(self) -> None:
        """Forget the run: the next chain on this kernel starts afresh."""
        self._start = self._problem = None

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The latents at which the chain starts; known once it is set up, if not given."""
        return self._start or {}

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._start = params

    @property
    def save_params(self) -> list[str]:
        """Names of the latents that are kept, all by default; sorted, as ``MCMC`` reads them."""
        if self._saved is None and self._problem is not None:
            return list(self._problem.latents.shapes)
        return self._saved or []

    @save_params.setter
    def save_params(self, names: list[str]) -> None:
        self._saved = sorted(names)

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """One sweep: for each block its Polya-Gamma variables, then its latents."""
        assert self._problem is not None
        with torch.no_grad():
            problem = self._problem
            return problem.latents.split(problem.sweep(problem.latents.join(params)))

    def diagnostics(self) -> dict[str, Any]:
        """Gibbs sampling has no divergences; ArviZ asks for them."""
        return {"divergences": []}


@dataclass(frozen=True)
class _Latents:
    """How named latents lie in one vector of length P, in the order of their names."""

    shapes: dict[str, torch.Size]
    dtypes: dict[str, torch.dtype]

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.reshape(shape).to(self.dtypes[name])
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def join(self, values: dict[str, Tensor]) -> Tensor:
        return torch.cat([values[name].reshape(-1).double() for name in self.shapes])

    def check(self, start: dict[str, Tensor]) -> None:
        """A start of a chain must have these names and shapes, and be finite."""
        got = {name: tuple(value.shape) for name, value in start.items()}
        wanted = {name: tuple(shape) for name, shape in self.shapes.items()}
        if got != wanted or not all(value.isfinite().all() for value in start.values()):
            raise ValueError(
                f"`initial_params` must hold a finite value for every latent, {wanted}; got {got}. "
                "With several chains put them on axis 0."
            )


@dataclass(frozen=True)
class _Block:
    """Latents that move one column of the logits: their places, and X of shape (N, |places|)."""

    column: int
    places: Tensor
    design: Tensor


@dataclass(frozen=True)
class _Problem:
    """A logistic model as numbers: logits ``(N, C)``, counts per class, and a Gaussian prior."""

    latents: _Latents
    blocks: list[_Block]
    offset: Tensor  # (N, C): the logits at zero; a binary model has the columns 0 and its logit
    trials: Tensor  # (N,): number of trials times the weight of the row
    counts: Tensor  # (N, C): labels of each class, weighted, summing to `trials`
    prior_mean: Tensor  # (P,)
    prior_precision: Tensor  # (P, P)

    def sweep(self, theta: Tensor) -> Tensor:
        """Every block once, given the others; ``theta`` (P,)."""
        import polyagamma

        seed = int(torch.randint(2**63 - 1, ()))
        generator = np.random.Generator(np.random.PCG64(seed))
        theta, logits, columns = theta.clone(), self.offset.clone(), range(self.offset.shape[1])
        for block in self.blocks:
            logits[:, block.column] += block.design @ theta[block.places]
        for block in self.blocks:
            k, x, places = block.column, block.design, block.places
            rest = logits[:, [j for j in columns if j != k]].logsumexp(-1)
            omega = polyagamma.random_polyagamma(
                self.trials.cpu().numpy(),
                (logits[:, k] - rest).cpu().numpy(),
                random_state=generator,
            )
            omega = torch.from_numpy(omega).to(x)
            kappa = self.counts[:, k] - self.trials / 2
            others = theta - self.prior_mean
            others[places] = -self.prior_mean[places]
            precision = x.T @ (omega.unsqueeze(-1) * x) + self.prior_precision[places][:, places]
            linear = x.T @ (kappa - omega * (self.offset[:, k] - rest))
            theta[places] = _gaussian(precision, linear - self.prior_precision[places] @ others)
            logits[:, k] = self.offset[:, k] + x @ theta[places]
        return theta


def _gaussian(precision: Tensor, linear: Tensor) -> Tensor:
    """A draw from N(A^-1 b, A^-1)."""
    factor = torch.linalg.cholesky(precision)
    half = torch.linalg.solve_triangular(factor, linear.unsqueeze(-1), upper=False)
    noise = torch.randn_like(half)
    return torch.linalg.solve_triangular(factor.mT, half + noise, upper=True).squeeze(-1)


def _read(model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Problem:
    """The model as numbers; errors say what it must be."""

    def run(values: dict[str, Tensor]) -> dict[str, Any]:
        with poutine.block(), poutine.condition(data=values):
            nodes = poutine.trace(model).get_trace(*args, **kwargs).nodes
        return {name: node for name, node in nodes.items() if node["type"] == "sample"}

    nodes = run({})
    obs = _find_observed(nodes)
    names = sorted(n for n, v in nodes.items() if not (v["is_observed"] or site_is_subsample(v)))
    mean, precision = _prior({name: nodes[name] for name in names})
    values = {name: nodes[name]["value"] for name in names}
    latents = _Latents(
        {name: value.shape for name, value in values.items()},
        {name: value.dtype for name, value in values.items()},
    )

    def logits(theta: Tensor) -> Tensor:
        again = run(latents.split(theta))
        now = _prior({name: again[name] for name in names})
        if not (torch.equal(now[0], mean) and torch.equal(now[1], precision)):
            raise ValueError(
                "`model`'s latents must have fixed parameters; got a mean or a scale that depends "
                f"on another latent, among the sites {names}. {_CHANGE}"
            )
        return _logits(again[obs]["fn"])

    offset = logits(torch.zeros_like(mean))
    trials, counts = _counts(nodes[obs], obs, offset.shape)
    design = torch.stack([logits(unit) - offset for unit in torch.eye(len(mean)).to(mean)])
    _check_affine(logits, offset, design, mean, precision)
    owners = [name for name, shape in latents.shapes.items() for _ in range(shape.numel())]
    kept = trials > 0  # not the rows that are masked or hold no trial
    blocks = _blocks(design[:, kept], offset, owners)
    return _Problem(latents, blocks, offset[kept], trials[kept], counts[kept], mean, precision)


def _find_observed(nodes: dict[str, Any]) -> str:
    """Name of the observed site; there must be one, without random subsampling."""
    for name, node in nodes.items():
        if site_is_subsample(node) and node["fn"].subsample_size not in (None, node["fn"].size):
            raise ValueError(
                "`model` must see all its data at every step; got random subsampling in the plate "
                f"'{name}'. Leave out its subsample_size."
            )
    found = [
        name
        for name, node in nodes.items()
        if node["is_observed"] and not node["infer"].get("_deterministic")
    ]
    if len(found) != 1:
        what_to_do = _CHANGE if found else "Pass the labels, mcmc.run(x, y), and have obs=y there."
        raise ValueError(
            f"`model` must have one observed site; got {found or 'none'}. {what_to_do}"
        )
    return found[0]


def _unwrap(fn: Any) -> Any:
    while isinstance(fn, dist.Independent):
        fn = fn.base_dist
    return fn


def _prior(nodes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Mean (P,) and precision (P, P) of all latents together."""
    means, blocks = [], []
    for name, node in nodes.items():
        fn = _unwrap(node["fn"])
        normal = isinstance(fn, dist.Normal)
        if not normal and not isinstance(
            fn, (dist.MultivariateNormal, dist.LowRankMultivariateNormal)
        ):
            raise ValueError(
                "`model`'s latents must be Normal or MultivariateNormal; got "
                f"{type(fn).__name__} at site '{name}'. {_CHANGE}"
            )
        weight = _weight(node)
        if normal:
            each = (weight / fn.stddev.double() ** 2).reshape(-1, 1, 1)
        else:
            each = torch.cholesky_inverse(fn.scale_tril.double()) * weight.unsqueeze(-1)
        means.append(fn.mean.double().reshape(-1))
        blocks += list(each.reshape(-1, *each.shape[-2:]))
    if not blocks:
        raise ValueError(f"`model` must have Normal latents; got no latent at all. {_CHANGE}")
    mean, precision = torch.cat(means), torch.block_diag(*blocks)
    if not (mean.isfinite().all() and precision.isfinite().all() and (precision.diag() > 0).all()):
        raise ValueError(
            "`model`'s latents must have finite means, scales that are finite and positive, and no "
            f"mask; got others among the sites {list(nodes)}. Look at their parameters."
        )
    return mean, precision


def _weight(node: dict[str, Any]) -> Tensor:
    """What poutine.scale and poutine.mask multiply a site's log-density by; fits its values."""
    weight = torch.as_tensor(node["scale"]).double()
    if node["mask"] is not None:
        weight = weight * torch.as_tensor(node["mask"], device=weight.device)
    return weight.reshape(weight.shape + (1,) * node["fn"].event_dim).to(node["value"].device)


def _logits(fn: Any) -> Tensor:
    """Logits (N, C) up to a shift of each row; (0, logit) for a Bernoulli or a Binomial."""
    fn = _unwrap(fn)
    if not isinstance(fn, (dist.Bernoulli, dist.Binomial, dist.Categorical)):
        raise ValueError(
            "`model`'s observed site must be Bernoulli, Binomial or Categorical; got "
            f"{type(fn).__name__}. {_CHANGE}"
        )
    logits = fn.logits.double().expand(fn.batch_shape + fn.param_shape[len(fn.batch_shape) :])
    if isinstance(fn, dist.Categorical):
        logits = logits.reshape(-1, logits.shape[-1])
    else:
        logits = torch.stack([torch.zeros_like(logits), logits], -1).reshape(-1, 2)
    bad = ~logits.isfinite().all(-1)
    if bad.any():
        raise ValueError(
            f"`model`'s logits must be finite; got NaN or infinity in {int(bad.sum())} of "
            f"{len(bad)} rows (first: row {int(bad.nonzero()[0])}). Remove or impute those rows of "
            "the features."
        )
    return logits


def _counts(node: dict[str, Any], name: str, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Weighted numbers of trials (N,) and of labels of each class (N, C)."""
    fn, value = _unwrap(node["fn"]), node["value"]
    if value.shape != fn.batch_shape:
        raise ValueError(
            f"the labels at site '{name}' must have shape {tuple(fn.batch_shape)}, that of the "
            f"logits; got {tuple(value.shape)}. Reshape y, or squeeze the logits."
        )
    classes, labels = shape[1], value.double()
    trials = torch.ones_like(labels) * getattr(fn, "total_count", 1)
    most = trials * (classes - 1) if isinstance(fn, dist.Categorical) else trials
    bad = ~((labels >= 0) & (labels <= most) & (labels == labels.round()))  # also where NaN
    if bad.any():
        raise ValueError(
            f"the labels at site '{name}' must be whole numbers from 0 to {most[bad][0]:g}; got "
            f"{value[bad][0].item():g} in {int(bad.sum())} of {bad.numel()} rows. Encode y so."
        )
    if isinstance(fn, dist.Categorical):
        counts = torch.nn.functional.one_hot(labels.long(), classes).double()
    else:
        counts = torch.stack([trials - labels, labels], -1)
    weight = _weight(node)
    trials = (trials * weight).reshape(-1)
    counts = (counts * weight.unsqueeze(-1)).reshape(-1, classes)
    if trials.any() and (counts.sum(0) > 0).sum() < 2:
        warnings.warn(
            f"all labels at site '{name}' are of one class, {int(counts.sum(0).argmax())}; the "
            "likelihood has no maximum, and the posterior leans on the prior.",
            UserWarning,
            stacklevel=4,
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
            raise ValueError(
                "`model`'s logits must be affine in the latents, X theta + b; got logits that "
                f"differ from that by up to {gap.abs().max():.3g}. {_CHANGE}"
            )


def _blocks(design: Tensor, offset: Tensor, owners: list[str]) -> list[_Block]:
    """Blocks of latents by the one column of the logits that they move; design (P, N, C)."""
    if design.shape[-1] == 2:
        every = torch.arange(len(design), device=design.device)
        return [_Block(1, every, (design[..., 1] - design[..., 0]).T.contiguous())]
    design = design - design.median(-1, keepdim=True).values  # all columns but one move alike
    size = design.abs().amax(1)
    # Rounding of a float32 log-softmax, relative to what is moved and to where it starts.
    moved = size > 1e-4 * size.amax(-1, keepdim=True) + 1e-5 * offset.abs().max()
    several = (moved.sum(-1) > 1).nonzero().flatten()
    if len(several):
        raise ValueError(
            f"`model`'s latents must each move the logit of one class alone, for {len(offset[0])} "
            f"classes; got overlapping blocks: a latent of site '{owners[int(several[0])]}' moves "
            f"several. {_CHANGE}"
        )
    column = moved.long().argmax(-1)  # 0 for latents that move none
    blocks = []
    for k in column.unique().tolist():
        places = (column == k).nonzero().flatten()
        blocks.append(_Block(k, places, (design * moved.unsqueeze(1))[places, :, k].T.contiguous()))
    return blocks
