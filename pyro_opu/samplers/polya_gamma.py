"""Polya-Gamma Gibbs sampling of logistic models, as a kernel for Pyro's ``MCMC``."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_opu.checks import check_callable
from pyro_opu.rng import preserve_rng
from pyro_opu.samplers.affine import AffineLogits, Model, read_affine_logits
from pyro_opu.utils import name_of

Array = NDArray[np.float64]
#: Largest integer h and tilt c of PG(h, c) drawn by Devroye's method: its time grows with h, and
#: the package's draws are far off from tilts of 200 or so.
MOST_WHOLE, MOST_TILT = 16, 100
#: Terms of the infinite sum PG(h, c) that are drawn one by one.
TERMS = 64


class PolyaGammaGibbs(MCMCKernel):
    r"""Gibbs sampling of a logistic model by Polya-Gamma variables, without tuning.

    For any Pyro model whose latents :math:`\theta` are Normal with fixed parameters, and whose one
    observed site is ``Bernoulli`` or ``Binomial`` with logits affine in them,
    :math:`\psi = X\theta + b`:

    .. math::
        \omega_i &\sim \mathrm{PG}(n_i, \psi_i) \\
        \theta \mid \omega &\sim N(m, V), \quad V = (X^\top \Omega X + P_0)^{-1}, \quad
        m = V \bigl(X^\top(\kappa - \Omega b) + P_0 \mu_0\bigr), \quad \kappa = y - n / 2

    X, b and the prior are read by running the model with the latents at zero and at unit vectors;
    four more points check that the logits are affine. The prior may correlate latents within a
    site, and X need not have full rank. A warning is given where all labels are of one class.

    With a ``Categorical`` of more than two classes each latent must move one logit. The blocks of
    latents are then updated in turn, block k given the others with
    :math:`\psi_{ik} = z_{ik} - \log\sum_{j \ne k} e^{z_{ij}}` in place of the binary logit: exact,
    but slower mixing, above all of what is added to the weights of all classes alike, which follows
    the prior and leaves the probabilities unchanged.

    Both draws are exact where :math:`n_i` is a whole number up to 16, as for every ``Bernoulli``,
    and :math:`|\psi_i|` is at most 100. Elsewhere, as where a weight on the row makes :math:`n_i`
    fractional (``poutine.scale``, :func:`~pyro_opu.samplers.tempered`), :math:`\omega_i` is correct
    to 1e-5 of its mean and variance: of the infinite sum of gamma variables that defines it, those
    after the 64th are replaced by one.

    Linear algebra is in float64; draws have the latents' dtype. All randomness comes from torch's
    generator. A chain starts at a draw from the prior, or at ``initial_params``; a run is continued
    exactly by ``MCMC(kernel, n, warmup_steps=0, initial_params={name: value[-1] for name, value in
    mcmc.get_samples().items()})``.

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
        variables (2013), section 3.1 and the supplement on the multinomial logit.
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
        self.model = check_callable("model", model, "(...), a Pyro model")
        self.transforms: dict[str, Any] = {}  # Normal latents are unconstrained
        self._saved: list[str] | None = None
        self._start: dict[str, Tensor] | None = None
        self._problem: AffineLogits | None = None

    def __repr__(self) -> str:
        return f"PolyaGammaGibbs({name_of(self.model)})"

    def setup(self, warmup_steps: int, *args: object, **kwargs: object) -> None:
        """Read design, offset and prior off the model; choose the start of the chain."""
        with preserve_rng(), torch.no_grad():
            self._problem = problem = read_affine_logits(self.model, args, kwargs)
        if self._start is None:  # a draw from the prior
            mean, precision = problem.prior_mean, problem.prior_precision
            self._start = problem.latents.split(_gaussian(precision, precision @ mean))
        problem.latents.check(self._start, "With several chains put them on axis 0.")

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
        problem = self._problem
        assert problem is not None
        with torch.no_grad():
            return problem.latents.split(_sweep(problem, problem.latents.join(params).double()))

    def diagnostics(self) -> dict[str, Any]:
        """Gibbs sampling has no divergences; ArviZ asks for them."""
        return {"divergences": []}


def _sweep(model: AffineLogits, theta: Tensor) -> Tensor:
    """Every block once, given the others; ``theta`` (P,)."""
    seed = int(torch.randint(2**63 - 1, ()))
    generator = np.random.Generator(np.random.PCG64(seed))
    theta, logits, columns = theta.clone(), model.offset.clone(), range(model.offset.shape[1])
    for block in model.blocks:
        logits[:, block.column] += block.design @ theta[block.places]
    for block in model.blocks:
        k, x, places = block.column, block.design, block.places
        rest = logits[:, [j for j in columns if j != k]].logsumexp(-1)
        tilt = (logits[:, k] - rest).cpu().numpy()
        drawn = draw_polya_gamma(model.trials.cpu().numpy(), tilt, generator)
        omega = torch.from_numpy(drawn).to(x)
        kappa = model.counts[:, k] - model.trials / 2
        others = theta - model.prior_mean
        others[places] = -model.prior_mean[places]
        precision = x.T @ (omega.unsqueeze(-1) * x) + model.prior_precision[places][:, places]
        linear = x.T @ (kappa - omega * (model.offset[:, k] - rest))
        theta[places] = _gaussian(precision, linear - model.prior_precision[places] @ others)
        logits[:, k] = model.offset[:, k] + x @ theta[places]
    return theta


def draw_polya_gamma(h: Array, c: Array, generator: np.random.Generator) -> Array:
    r"""A draw of each :math:`\mathrm{PG}(h, c)`, as exact as :class:`PolyaGammaGibbs` says."""
    import polyagamma

    found = np.empty(len(h))
    whole = (h == np.rint(h)) & (h <= MOST_WHOLE) & (np.abs(c) <= MOST_TILT)
    found[whole] = polyagamma.random_polyagamma(
        h[whole], c[whole], method="devroye", random_state=generator
    )
    found[~whole] = _gamma_series(h[~whole], c[~whole], generator)
    return found


def _gamma_series(h: Array, c: Array, generator: np.random.Generator) -> Array:
    r"""The sum that defines PG, ``(N,)``, with one gamma variable for its remainder.

    .. math::
        \omega = \frac{1}{2\pi^2} \sum_{k \ge 1} \frac{g_k}{(k - 1/2)^2 + a^2}, \quad
        g_k \sim \mathrm{Gamma}(h, 1), \quad a = \frac{|c|}{2\pi}

    The remainder's mean and variance are sums of :math:`1 / (x^2 + a^2)` and of its square over
    the midpoints x above K, so to :math:`O(K^{-2})` the integrals from K on.
    """
    t = np.maximum(np.abs(c) / (2 * np.pi * TERMS), 1e-5)  # a / K; smaller ones make no difference
    squares = (np.arange(TERMS) + 0.5) ** 2
    drawn = generator.standard_gamma(h[:, None], (len(h), TERMS))
    first = (drawn / (squares + (TERMS * t[:, None]) ** 2)).sum(1)
    mean = h * np.arctan(t) / t / TERMS
    variance = h * (np.arctan(t) - t / (1 + t**2)) / (2 * t**3) / TERMS**3
    rest = generator.gamma(mean**2 / variance, variance / mean)
    return (first + rest) / (2 * np.pi**2)


def _gaussian(precision: Tensor, linear: Tensor) -> Tensor:
    """A draw from N(A^-1 b, A^-1)."""
    factor = torch.linalg.cholesky(precision)
    half = torch.linalg.solve_triangular(factor, linear.unsqueeze(-1), upper=False)
    noise = torch.randn_like(half)
    return torch.linalg.solve_triangular(factor.mT, half + noise, upper=True).squeeze(-1)
