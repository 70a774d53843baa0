"""A student that begins with the closed-form answer of a Gaussian process."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, check_inputs, positive_int
from pyro_opu.checks import sizes as check_sizes
from pyro_opu.guides import Perceptron, PredictiveGuide
from pyro_opu.models.gaussian_process import WHOLE_DRAWS, SparseGaussianProcess, check_call

__all__ = ["LatentLaw", "process_guide"]

#: Smallest variance of f given v, as a part of the prior variance.
FLOOR = 1e-4


class LatentLaw(nn.Module):
    r"""Mean and variance of f at every input, at the median of the hyper-parameters, as features.

    .. math::
        m(x) = a\,\mu, \quad s^2(x) = \bigl[k(x, x) - a a^\top\bigr] + a\,\Sigma\,a^\top, \quad
        a = k(x, Z)\, L^{-\top}

    with mean :math:`\mu` and covariance :math:`\Sigma` of the draws of v. Only the ``rank`` leading
    principal directions of a at the inputs ``x`` are kept, so that one pass is two products and an
    exponential. ``num_features`` is D + 1 + 4 O, with O latent functions.
    """

    scaled: Tensor
    linear: Tensor
    constant: Tensor
    lengthscale: Tensor
    prior: Tensor
    directions: Tensor
    between: Tensor

    def __init__(
        self, model: SparseGaussianProcess, samples: dict[str, Tensor], x: Tensor, rank: int = 96
    ) -> None:
        super().__init__()
        check_inputs(x)
        check_call(model, x)
        rank = positive_int("rank", rank, advice="Leave it out for 96.")
        count = len(samples.get("v", ()))
        if count < 2:
            raise ArgumentError(
                f"`samples` must hold at least two draws of the site 'v'; got {count} of them, and "
                f"the sites {sorted(samples)}. {WHOLE_DRAWS}"
            )
        v = samples["v"].reshape(count, model.outputs, len(model.inducing)).double()
        middle = {k: value.quantile(0.5, 0) for k, value in model.hyper_parameters(samples).items()}
        projection = model.projection(x, middle).double()
        directions = torch.linalg.eigh(projection.mT @ projection).eigenvectors.flip(-1)[:, :rank]
        wanted = torch.cat([directions, v.mean(0).mT], -1)
        upper = model.lower(middle).double().mT
        wanted = torch.linalg.solve_triangular(upper, wanted, upper=True)
        self.outputs, self.rank = model.outputs, directions.shape[1]
        self.num_features = x.shape[1] + 1 + 4 * self.outputs
        centred = (v - v.mean(0)) @ directions
        covariance = torch.einsum("sor,sot->ort", centred, centred) / (count - 1)
        values, vectors = torch.linalg.eigh(covariance)
        inducing, variance = model.inducing.double(), middle["variance"].double()
        steep = middle["slope"].double().square() if "slope" in middle else 0.0 * variance
        parts = {
            "lengthscale": middle["lengthscale"],
            "scaled": inducing / middle["lengthscale"],
            "directions": variance * wanted,
            "linear": steep * inducing.mT @ wanted,
            "constant": model.kernel.constant * wanted.sum(0),
            "prior": torch.stack([variance + model.kernel.constant, steep]),  # of 1 and |x|^2
            "between": vectors * values.clamp_min(0.0).sqrt()[:, None],
        }
        for name, value in parts.items():
            self.register_buffer(name, value.to(x.device, torch.get_default_dtype()))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean of f ``(N, O)``; its variance given v ``(N, 1)`` and between draws ``(N, O)``."""
        scaled, squares = x / self.lengthscale, x.square().sum(-1, keepdim=True)
        half = 0.5 * scaled.square().sum(-1, keepdim=True)
        near = torch.addmm(-0.5 * self.scaled.square().sum(-1), scaled, self.scaled.mT)
        found = (near - half).exp() @ self.directions + x @ self.linear + self.constant
        z, mean = found.split([self.rank, self.outputs], -1)
        prior = self.prior[0] + self.prior[1] * squares
        given = (prior - z.square().sum(-1, keepdim=True)).maximum(FLOOR * prior)
        between = torch.einsum("nr,ort->not", z, self.between).square().sum(-1)
        return mean, given, between

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(N, F)``: x itself and the moments, on scales that suit a network."""
        mean, given, between = self.moments(x)
        whole = given + between
        # A probit's argument: the logit that the law averages to (MacKay 1992).
        moderated = mean / (1.0 + math.pi / 8.0 * whole).sqrt()
        told = [mean.asinh(), moderated, whole.log(), between.clamp_min(1e-12).log(), given.log()]
        return torch.cat([x, *told], -1)


def process_guide(
    model: SparseGaussianProcess,
    samples: dict[str, Tensor],
    x: Tensor,
    *,
    hidden: tuple[int, ...] = (128, 128),
    rank: int = 96,
) -> PredictiveGuide:
    """A guide for ``distill`` on the features of :class:`LatentLaw`.

    A Gaussian process is sure at its training rows and less sure between them, a grain so fine that
    a network of x alone learns it slowly. This network is given the process's answer at one set of
    hyper-parameters and learns the rest. Load a saved student with such a guide:
    ``OnePassPredictive.load(path, guide=process_guide(...))``.

    Args:
        samples: At least two posterior draws by site, ``(S, ...)``: the kernel's sites and "v".
        x: Inputs ``(N, D)`` like those to come.
        hidden: Widths of the layers on the features.
        rank: Number of directions kept; the cost of one pass grows with it.
    """
    check_sizes("hidden", hidden)
    law = LatentLaw(model, samples, x, rank)
    network = Perceptron((law.num_features,), hidden)
    x = x.to(law.scaled.dtype)
    network.fit_scale(law(x))
    return PredictiveGuide(nn.Sequential(law, network), hidden[-1], model.num_classes).to(x.device)
