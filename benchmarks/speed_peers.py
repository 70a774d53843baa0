"""Other libraries on the same weights: NumPyro's jitted ``Predictive``, and laplace-torch.

Both are optional; :func:`absent` says which is not there.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.speed_models import Kit

#: Package -> what is left out without it.
PEERS = {"numpyro": "NumPyro's Predictive", "laplace": "laplace-torch's last layer"}


def absent(package: str) -> bool:
    return importlib.util.find_spec(package) is None


class JittedPredictive:
    """NumPyro's ``Predictive`` of the model of a kit, compiled by ``jax.jit`` as a whole.

    The draws are an argument of the compiled function: as constants they would be part of it.
    """

    def __init__(self, kit: Kit) -> None:
        import jax
        import jax.numpy as jnp

        self.random, self.array = jax.random, jnp.asarray
        self.samples = {name: self.array(v.cpu().numpy()) for name, v in kit.samples.items()}
        self.logits = jax_logits(kit.subject.name)
        self.jit = jax.jit

    def model(self, x: Any) -> None:
        import numpyro
        import numpyro.distributions as dist

        theta = {}
        for name, value in self.samples.items():
            prior = dist.Normal(0.0, 1.0).expand(value.shape[1:]).to_event(value.ndim - 1)
            theta[name] = numpyro.sample(name, prior)
        logits = self.logits(theta, x)
        with numpyro.plate("data", len(x)):
            binary = logits.shape[-1] == 1
            law = dist.Bernoulli(logits=logits[:, 0]) if binary else dist.Categorical(logits=logits)
            numpyro.sample("obs", law)

    def call(self, x: Tensor, draws: int, *, parallel: bool) -> Callable[[], object]:
        """The labels of so many draws at ``x``, and the wait for them."""
        from numpyro.infer import Predictive

        def labels(key: Any, some: dict[str, Any], x: Any) -> Any:
            return Predictive(self.model, some, parallel=parallel)(key, x)["obs"]

        run, key = self.jit(labels), self.random.key(0)
        some = {name: value[:draws] for name, value in self.samples.items()}
        inputs = self.array(x.cpu().numpy())
        return lambda: run(key, some, inputs).block_until_ready()


def jax_logits(name: str) -> Callable[[dict[str, Any], Any], Any]:
    """The network of a subject: latents and inputs to logits ``(N, K)``."""
    from jax import lax, nn

    def perceptron(theta: dict[str, Any], x: Any) -> Any:
        for layer in range(2):
            x = nn.relu(x @ theta[f"w{layer}"] + theta[f"b{layer}"])
        return x @ theta["w2"] + theta["b2"]

    def regression(theta: dict[str, Any], x: Any) -> Any:
        return x @ theta["weight"] + theta["bias"]

    def convolution(theta: dict[str, Any], x: Any) -> Any:
        x = x[:, None]
        for layer in ("1", "4"):
            x = lax.conv(x, theta[f"{layer}.weight"], (1, 1), "SAME")
            x = nn.relu(x + theta[f"{layer}.bias"][:, None, None])
            x = lax.reduce_window(x, -float("inf"), lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x.reshape(len(x), -1) @ theta["8.weight"].T + theta["8.bias"]

    if name.startswith("MLP"):
        return perceptron
    return regression if name.startswith("logistic") else convolution


def laplace_ways(
    network: nn.Module, train: tuple[Tensor, Tensor], x: Tensor, draws: int
) -> dict[str, Callable[[], object]]:
    """laplace-torch's predictive of the last layer by its defaults (Kronecker), in three ways."""
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # of its parts, about each other
        from laplace import Laplace

        network.requires_grad_(True)
        fit: Any = Laplace(network, "classification", subset_of_weights="last_layer")
        fit.fit(DataLoader(TensorDataset(*train), 256))

    def way(link: str) -> Callable[[], object]:
        more = {"n_samples": draws} if link == "mc" else {}

        @torch.enable_grad()
        def call() -> object:
            return fit(x, pred_type="glm", link_approx=link, **more)

        return call

    return {f"laplace-torch, {link}": way(link) for link in ("probit", "bridge", "mc")}
