"""Pyro's NUTS with the energy of every draw, for ArviZ's ``bfmi`` and ``plot_energy``."""

from __future__ import annotations

from typing import Any

from pyro.infer import NUTS
from torch import Tensor


class NUTSWithEnergy(NUTS):
    r"""NUTS that keeps the energy at which each draw's trajectory begins.

    .. math:: E_n = U(q_{n-1}) + \tfrac12 p_n^\top M^{-1} p_n

    U is the potential of the unconstrained latents and :math:`p_n` the fresh momentum. Draws are
    those of ``pyro.infer.NUTS`` under the same seed, bit for bit; Pyro does not keep energies.
    :func:`~pyro_opu.to_inference_data` hands them on as "energy" of ``sample_stats``.
    Its arguments are those of ``pyro.infer.NUTS``.

    Example:
        >>> import torch, pyro, pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> def model():
        ...     pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        >>> mcmc = MCMC(NUTSWithEnergy(model), num_samples=5, warmup_steps=5, disable_progbar=True)
        >>> mcmc.run()
        >>> len(mcmc.diagnostics()["energy"]["chain 0"])
        5

    References:
        Betancourt (2016), Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte
        Carlo, Section 3: what the energies of successive draws tell.
    """

    def _reset(self) -> None:
        super()._reset()
        self._energies: list[float] = []

    def _sample_r(self, name: str) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
        """The momentum of the next trajectory; the potential is that of the last draw."""
        momentum, unscaled = super()._sample_r(name)
        self._energy = float(self._potential_energy_last + self._kinetic_energy(unscaled))
        return momentum, unscaled

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        draw = super().sample(params)
        if params and self._t > (self._warmup_steps or 0):
            self._energies.append(self._energy)
        return draw

    def diagnostics(self) -> dict[str, Any]:
        """The diagnostics of NUTS, and "energy", one number (nats) per draw."""
        return {**super().diagnostics(), "energy": self._energies}
