"""Stochastic gradient Langevin dynamics as a Pyro kernel."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import count
from typing import Any, Literal

import pyro
import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    check_callable,
    check_mapping,
    check_tensor,
    in_range,
    one_of,
    positive_float,
    positive_int,
)
from pyro_opu.rng import exclusive, preserve_rng
from pyro_opu.samplers.latents import Latents, check_model
from pyro_opu.samplers.minibatches import Minibatches
from pyro_opu.samplers.potential import PARTS, Chain, Potential, is_real
from pyro_opu.samplers.schedules import as_schedule, checked_step_size
from pyro_opu.samplers.tempering import tempered
from pyro_opu.utils import name_of


class SGLD(MCMCKernel):
    r"""Langevin dynamics on minibatches, for ``pyro.infer.MCMC`` or as a stream of draws.

    .. math::
        z_{t+1} = z_t + \frac{\eta_t}{2} \Big(\nabla \log p(z_t) + \frac{N}{M} \sum_{i \in B_t}
        \nabla \log p(y_i \mid x_i, z_t)\Big) + \sqrt{\tau}\, \epsilon_t, \quad
        \epsilon_t \sim N(0, \eta_t I)

    There is no accept step: draws follow the posterior in the limit of small steps. For a posterior
    :math:`N(0, \Lambda^{-1})`, all rows and a constant step size they follow
    :math:`N(0, (\Lambda - \eta \Lambda^2 / 4)^{-1})`, and diverge for
    :math:`\eta \ge 4 / \lambda_{\max}`; minibatches add the variance of their gradient.

    ``preconditioner="rmsprop"`` (pSGLD of Li et al.) scales the drift by G and the noise to
    :math:`N(0, \eta_t G)`, with :math:`\bar g` the gradient of the log-joint over N:

    .. math::
        G = \frac{1}{\lambda + \sqrt{V}}, \quad V \leftarrow \alpha V + (1 - \alpha) \bar g^2

    The term :math:`\Gamma(\theta)` is omitted, as in their experiments, which biases: deviations
    are 15 % too large along the flat direction of a Gaussian with precisions 1 and 10^4. Unlike in
    the paper :math:`\bar g` includes the prior, and V starts at the first :math:`\bar g^2`.

    z are the latents in unconstrained space (with the Jacobian); draws come back constrained. The
    model's arguments are the whole data; tensors of N rows are cut to the same M rows
    (:class:`~pyro_opu.samplers.minibatches.Minibatches`), and observed sites weigh N / M. Latents
    of single rows need all rows at once. The schedule counts steps from 0, burn-in included.
    Successive chains of one kernel start anew: at step 0, at random.

    Args:
        model: A Pyro model with continuous latents.
        step_size: :math:`\eta`, or a schedule ``t -> eta_t``, such as
            :class:`~pyro_opu.samplers.PolynomialDecay`.
        batch_size: M; None takes all rows.
        thinning: Steps per draw, also per draw of the burn-in.
        preconditioner: None, or "rmsprop".
        rms_decay: :math:`\alpha` of the preconditioner.
        rms_floor: :math:`\lambda` of the preconditioner.
        temperature: :math:`\tau \ge 0`: the target is :math:`p^{1/\tau}`; 0 is gradient descent.
        init_strategy: Where chains start, as in ``NUTS``.
        initial_params: A start in unconstrained space for every chain, site -> value of the
            latent's shape there; the ``initial_params`` of ``MCMC`` override it.
        resume: The :attr:`state` of a kernel, whose chain is continued; exactly, if torch's RNG
            state (``torch.get_rng_state``) is restored too.

    Raises:
        TypeError: ``step_size`` of another type, or ``initial_params`` not tensors by site.
        ValueError: an argument out of range; on the first use data or a model that cannot be
            sampled; later a step size that is not positive, or a state that is not finite.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import MCMC
        >>> from pyro_opu.samplers.sgld import SGLD
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)
        >>> y = torch.linspace(2.0, 4.0, 100)
        >>> kernel = SGLD(model, step_size=1e-3, batch_size=20, thinning=10)
        >>> mcmc = MCMC(kernel, num_samples=100, warmup_steps=50, disable_progbar=True)
        >>> mcmc.run(y)
        >>> bool((mcmc.get_samples()["mean"].mean() - 3.0).abs() < 0.1)
        True
        >>> draws = kernel.stream(y, num_samples=100, warmup_steps=50)  # nothing is stored
        >>> bool((sum(draw["mean"] for draw in draws) / 100 - 3.0).abs() < 0.1)
        True

    References:
        Welling and Teh, Bayesian learning via stochastic gradient Langevin dynamics (2011), eq. 4.
        Korattikara, Rathod, Murphy and Welling, Bayesian dark knowledge (2015), Algorithm 1.
        Li, Chen, Carlson and Carin, Preconditioned stochastic gradient Langevin dynamics for deep
        neural networks (2016), Algorithm 1.
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        step_size: float | Callable[[int], float],
        batch_size: int | None = None,
        thinning: int = 1,
        preconditioner: Literal["rmsprop"] | None = None,
        rms_decay: float = 0.99,
        rms_floor: float = 1e-5,
        temperature: float = 1.0,
        init_strategy: Callable[..., object] = init_to_uniform,
        initial_params: dict[str, Tensor] | None = None,
        resume: Mapping[str, object] | None = None,
    ) -> None:
        check_callable("model", model, "(...), a Pyro model")
        check_callable("init_strategy", init_strategy, "as pyro.infer.autoguide has them")
        thinning = positive_int("thinning", thinning, advice="Pass 1 to keep every step.")
        if batch_size is not None:
            batch_size = positive_int("batch_size", batch_size, advice="Leave it out for all rows.")
        for site, value in check_mapping(
            "initial_params", initial_params, "site -> tensor"
        ).items():
            check_tensor(f"initial_params[{site!r}]", value)
        if resume is not None and not (isinstance(resume, dict) and set(PARTS) <= set(resume)):
            found = sorted(resume) if isinstance(resume, dict) else type(resume).__name__
            raise ArgumentError(
                f"`resume` must be the state of a kernel, a dict with {', '.join(PARTS)}; got "
                f"{found}. Pass kernel.state."
            )
        if preconditioner is not None:
            one_of("preconditioner", preconditioner, {"rmsprop"}, "Leave it out for plain SGLD.")
        in_range("rms_decay", rms_decay, 0, 1, "[)", "Leave it out for 0.99.")
        positive_float("rms_floor", rms_floor, "Leave it out for 1e-5.")
        in_range("temperature", temperature, 0, advice="Leave it out for 1, the posterior.")
        self.model = model
        self.schedule = as_schedule(step_size)
        self.batch_size, self.thinning = batch_size, thinning
        self.preconditioner, self.rms_decay, self.rms_floor = preconditioner, rms_decay, rms_floor
        self.temperature, self.init_strategy = temperature, init_strategy
        self.transforms: Any = None  # known after setup
        self._start, self._resume = initial_params, resume
        self._given: dict[str, Tensor] | None = None
        self._chain: Chain | None = None
        self._state: dict[str, Any] | None = None

    def __repr__(self) -> str:
        shown = ("batch_size", "thinning", "preconditioner", "temperature")
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"SGLD({name_of(self.model)}, step_size={self.schedule!r}, {settings})"

    def setup(self, warmup_steps: int, *args: object, **kwargs: object) -> None:
        """Start a chain on the model's arguments, the whole data."""
        batches = Minibatches(args, kwargs, self.batch_size)
        check_model(self.model, batches, self.init_strategy)
        start, self._given = self._start if self._given is None else self._given, None
        if self._resume is not None:
            if start is not None:
                raise ArgumentError(
                    "`initial_params` must be left out where `resume` continues a chain; got both. "
                    "Leave one of them out."
                )
            start = self._resume["params"]
        model = tempered(self.model, likelihood=batches.scale) if batches.scale > 1 else self.model
        few, few_kwargs = batches.cut(torch.arange(batches.batch_size))
        with nullcontext() if start is None else preserve_rng():
            settings = {"init_strategy": self.init_strategy, "initial_params": start}
            params, _, self.transforms, trace = initialize_model(model, few, few_kwargs, **settings)
        sites = {name: trace.nodes[name] for name in self.transforms}
        curved = {k: self.transforms[k] for k, s in sites.items() if not is_real(s["fn"].support)}
        latents = Latents.of({k: self.transforms[k](s["value"]) for k, s in sites.items()})
        latents.check(params, "Constrained values go through init_strategy=init_to_value(...).")
        self._chain = Chain(batches, Potential(model, params, curved), params)
        if self._resume is not None:
            self._chain.restore(self._resume)
        checked_step_size(self.schedule(self._chain.step), self._chain.step)

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """Where the chain starts, in unconstrained space; known after setup."""
        return self._running.params

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._given = params

    @property
    def _running(self) -> Chain:
        if self._chain is None:
            raise AttributeError("the kernel runs no chain; let MCMC or .stream(...) start one.")
        return self._chain

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The unconstrained state ``thinning`` steps after ``params``, in fresh tensors."""
        chain = self._running
        z = chain.potential.latents.join(params)
        for _ in range(self.thinning):
            self._step(chain, z)
        if not math.isfinite(float(z.sum())):
            raise self._not_finite(chain, "the state")
        chain.params = chain.potential.latents.split(z)
        return chain.params

    def _step(self, chain: Chain, z: Tensor) -> None:
        """One step of the flat state, in place."""
        eta = chain.step_size = checked_step_size(self.schedule(chain.step), chain.step)
        args, kwargs = chain.batches.next()
        chain.energy, gradient = chain.potential.gradient(z, args, kwargs, out=chain.gradient)
        if not math.isfinite(chain.energy):
            raise self._not_finite(chain, f"the potential ({chain.energy})")
        deviation = math.sqrt(eta * self.temperature)
        if self.preconditioner is None:
            z.add_(gradient, alpha=-eta / 2)
            if deviation:
                z.add_(chain.noise.normal_(), alpha=deviation)
        else:
            scale = self._preconditioned(chain)
            z.addcmul_(gradient, scale, value=-eta / 2)
            if deviation:
                z.addcmul_(chain.noise.normal_(), scale.sqrt_(), value=deviation)
        chain.step += 1

    def _preconditioned(self, chain: Chain) -> Tensor:
        """G ``(P,)``, updated by the current gradient."""
        decay = self.rms_decay if len(chain.mean_square) else 0.0
        if not len(chain.mean_square):
            chain.mean_square = torch.zeros_like(chain.gradient)
        share = (1 - decay) / chain.batches.num_rows**2
        chain.mean_square.mul_(decay).addcmul_(chain.gradient, chain.gradient, value=share)
        return chain.mean_square.sqrt().add_(self.rms_floor).reciprocal_()

    def _not_finite(self, chain: Chain, what: str) -> ValueError:
        return ArgumentError(
            f"`step_size` must be small enough for the chain to stay finite; {what} is not at "
            f"step {chain.step}, step size {chain.step_size:.3g}. Lower the step size, start "
            "nearer to the mode (`init_strategy`, `initial_params`), or scale the data."
        )

    def stream(
        self, *args: object, num_samples: int | None = None, warmup_steps: int = 0, **kwargs: object
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the draws of one chain, latent site -> constrained value, without storing them.

        With the same seed they are those of ``MCMC`` with one chain. A kernel streams one chain
        at a time; :attr:`state` has the last draw.

        Args:
            *args: The model's arguments, the whole data; ``**kwargs`` likewise.
            num_samples: Draws after the burn-in; None for an endless stream.
            warmup_steps: Draws of the burn-in, ``thinning`` steps each.
        """
        warmup_steps = positive_int("warmup_steps", warmup_steps, 0)
        if num_samples is not None:
            num_samples = positive_int("num_samples", num_samples, 0)
        with exclusive(), pyro.validation_enabled(False):
            self.setup(warmup_steps, *args, **kwargs)
        params = self.initial_params
        names = getattr(self, "save_params", sorted(params))
        total = range(warmup_steps + num_samples) if num_samples is not None else count()
        try:
            for draw in total:
                with exclusive(), pyro.validation_enabled(False):
                    params = self.sample(params)
                if draw >= warmup_steps:
                    yield {name: self.transforms[name].inv(params[name]).clone() for name in names}
        finally:
            self.cleanup()

    @property
    def state(self) -> dict[str, Any]:
        """The state of the last chain, from which ``SGLD(..., resume=state)`` continues it.

        A dictionary of tensors and integers, for ``torch.save`` and ``torch.load`` with
        ``weights_only=True``. Chains in other processes leave nothing here; torch's RNG state is
        not part of it.
        """
        if self._chain is not None:
            return self._chain.record()
        if self._state is None:
            raise AttributeError("the kernel has no state before its first run; run MCMC first.")
        return self._state

    def logging(self) -> OrderedDict[str, str]:
        """Step size and potential of the last minibatch, for the progress bar."""
        chain = self._running
        shown = {"step size": f"{chain.step_size:.2e}", "potential": f"{chain.energy:.3e}"}
        return OrderedDict(shown)

    def diagnostics(self) -> dict[str, Any]:
        """The number of steps; no divergences, as a state that is not finite is an error."""
        return {"divergences": [], "steps": self._running.step}

    def cleanup(self) -> None:
        """End the chain: keep its :attr:`state`, release the data."""
        if self._chain is not None:
            self._state, self._chain = self._chain.record(), None
