"""Predict with a sparse Gaussian process by Cholesky factors computed once for every draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_opu.models.gaussian_process import SparseGaussianProcess
from pyro_opu.models.kernels import Parameters

__all__ = ["factored"]

#: Site of the Cholesky factors.
SITE = "lower"


def factored(
    model: SparseGaussianProcess, samples: dict[str, Tensor]
) -> tuple[SparseGaussianProcess, dict[str, Tensor]]:
    r"""The same posterior with the Cholesky factor L of every draw as a site "lower".

    :math:`L L^\top = K_{ZZ}` depends on the hyper-parameters alone and is most of the cost of a
    prediction at few inputs. Returns the model that reads L from its site, and the draws with
    "lower" ``(S, M, M)`` added; ``Predictive(*factored(model, samples))`` has the same answers,
    number for number.
    """
    found = model.hyper_parameters(samples)
    draws = range(len(next(iter(found.values()))))
    lower = [model.lower({name: value[draw] for name, value in found.items()}) for draw in draws]
    settings = {field.name: getattr(model, field.name) for field in fields(model)}
    return _Factored(**settings), {**samples, SITE: torch.stack(lower)}


class _Factored(SparseGaussianProcess):
    """Reads L from a site, and computes it only where the site is not given."""

    def lower(self, parameters: Parameters) -> Tensor:
        compute = super().lower
        shape = (len(self.inducing), len(self.inducing))
        return pyro.sample(SITE, _Computed(lambda: compute(parameters), shape))


class _Computed(dist.TorchDistribution):
    """A point mass whose value is computed when it is drawn, so not where a value is given."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.lower_cholesky

    def __init__(
        self, compute: Callable[[], Tensor], shape: Sequence[int], batch_shape: Sequence[int] = ()
    ) -> None:
        super().__init__(torch.Size(batch_shape), torch.Size(shape), validate_args=False)
        self.compute = compute

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> _Computed:
        return _Computed(self.compute, self.event_shape, batch_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.compute().expand(self._extended_shape(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return value.new_zeros(value.shape[:-2])
