"""Closed forms between Gaussian logits and probabilities: the Laplace bridge and the probit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_bool, check_floating, check_tensor
from pyro_opu.distributions.normal_logits import moderated

__all__ = ["inverse_laplace_bridge", "laplace_bridge", "probit_predictive"]


def laplace_bridge(
    mean: Tensor, covariance: Tensor, *, project: bool = True, normalize: bool = False
) -> Tensor:
    r"""Dirichlet parameter for the softmax of Gaussian logits :math:`z \sim N(\mu, \Sigma)`.

    .. math:: \alpha_k = \frac{1}{\Sigma_{kk}}
              \Bigl(1 - \frac{2}{C} + \frac{e^{\mu_k}}{C^2}\sum_l e^{-\mu_l}\Bigr)

    The formula is for logits that sum to zero. Softmax does not see the sum, so with ``project``
    the Gaussian is replaced by that of :math:`Pz`, :math:`P = I - 11^\top\!/C`, of the same
    distribution on the simplex. For most Gaussians even the mean is off: for independent logits of
    variance 0.01 and standard normal mean by 0.001 in total variation for C = 2 and 0.26 for C =
    10, where :func:`probit_predictive` is within 0.001.

    With ``normalize`` the Gaussian is rescaled first, for the mean of wide Gaussians, where the
    plain bridge is too confident ("bridge_norm" of laplace-torch); the spread then says little.

    .. math:: \mu \leftarrow \mu / \sqrt{c}, \quad \Sigma \leftarrow \Sigma / c, \qquad
              c = \frac{1}{C} \sum_k \Sigma_{kk} \Big/ \sqrt{C / 2}

    Args:
        mean: :math:`\mu`, ``(*B, C)``, C >= 2.
        covariance: :math:`\Sigma`, ``(*B, C, C)``, symmetric, or its diagonal ``(*B, C)``;
            variances must be positive.
        project: ``False`` takes the variances as they are, for logits that sum to zero already,
            such as the diagonal that :func:`inverse_laplace_bridge` gives.
        normalize: Rescale as above, after the projection (laplace-torch: after its conditioning).

    Returns:
        :math:`\alpha`, ``(*B, C)``, positive; beyond the dtype its largest number divided by C.

    Raises:
        ValueError: shapes that do not belong together, fewer than two classes, values not finite,
            variances not positive, or a covariance that is not symmetric.
        TypeError: an argument that is not a tensor, or a covariance of integers.

    Example:
        >>> laplace_bridge(torch.tensor([2.0, 0.0, -2.0]), torch.tensor([0.5, 0.5, 0.5]))
        tensor([21.9957,  3.8415,  1.3846])

    References:
        MacKay: Choice of basis for Laplace approximation (1998). Eq. 5 of Hobbhahn, Kristiadi,
        Hennig: Fast predictive uncertainty for classification with Bayesian deep networks (2020),
        https://arxiv.org/abs/2003.01227. Daxberger et al.: Laplace redux (2021).
    """
    check_bool("project", project)
    check_bool("normalize", normalize)
    variance = _variance(mean, covariance)
    classes, largest = mean.shape[-1], torch.finfo(mean.dtype).max
    if project and variance is covariance:
        average = variance.mean(-1, keepdim=True)
        variance = torch.add(average / classes, variance, alpha=1.0 - 2.0 / classes)
    elif project:
        shared = covariance.mean((-2, -1)).unsqueeze(-1) - 2.0 * covariance.mean(-1)
        variance = variance + shared
    advice = "Add a small jitter to the diagonal."
    expected = "leave a positive variance to every logit after projection"
    _check_positive("covariance", variance, expected, advice)
    if normalize:
        scale = variance.mean(-1, keepdim=True) / math.sqrt(classes / 2.0)
        mean, variance = mean / scale.sqrt(), variance / scale
    # exp(mu_k) sum_l exp(-mu_l) is one over the softmax of -mu. In place where the graph allows.
    log_ratio = torch.rsub(torch.log_softmax(-mean, -1), -2.0 * math.log(classes))
    ratio = log_ratio.clamp_(max=math.log(largest) - 1.0).exp_()
    return (ratio + (1.0 - 2.0 / classes)).div_(variance).clamp_(max=largest / classes)


def inverse_laplace_bridge(alpha: Tensor, *, full: bool = False) -> tuple[Tensor, Tensor]:
    r"""Gaussian logits, summing to zero, for a Dirichlet.

    .. math:: \mu_k = \log\alpha_k - \frac1C\sum_l\log\alpha_l, \qquad
              \Sigma_{kl} = \frac{\delta_{kl}}{\alpha_k} - \frac1C
              \Bigl[\frac1{\alpha_k} + \frac1{\alpha_l} - \frac1C\sum_u\frac1{\alpha_u}\Bigr]

    :func:`laplace_bridge` returns ``alpha`` from these (from the diagonal with ``project=False``).

    Args:
        alpha: ``(*B, C)``, C >= 2, positive and finite.
        full: Return the whole covariance, not its diagonal.

    Returns:
        The mean ``(*B, C)`` and the variances ``(*B, C)``, or with ``full`` the covariance
        ``(*B, C, C)``, of rank C - 1.

    Raises:
        ValueError: if ``alpha`` is not ``(*B, C)`` with C >= 2, positive and finite.
        TypeError: it is not a tensor.

    Example:
        >>> mean, covariance = inverse_laplace_bridge(torch.tensor([4.0, 2.0]), full=True)
        >>> mean
        tensor([ 0.3466, -0.3466])
        >>> covariance
        tensor([[ 0.1875, -0.1875],
                [-0.1875,  0.1875]])

    References:
        Eqs. 6 and 7 of Hobbhahn, Kristiadi, Hennig (2020).
    """
    check_bool("full", full)
    _check_mean(alpha, "alpha")
    _check_positive("alpha", alpha, "be positive", "Clamp it above zero.")
    classes = alpha.shape[-1]
    log_alpha, inverse = alpha.log(), alpha.reciprocal()
    mean = log_alpha.sub_(log_alpha.mean(-1, keepdim=True))
    average = inverse.mean(-1, keepdim=True)
    if not full:
        return mean, torch.add(average / classes, inverse, alpha=1.0 - 2.0 / classes)
    pair = inverse.unsqueeze(-1) + inverse.unsqueeze(-2) - average.unsqueeze(-1)
    return mean, torch.diag_embed(inverse) - pair / classes


def probit_predictive(mean: Tensor, covariance: Tensor) -> Tensor:
    r"""Mean of the softmax of Gaussian logits, by MacKay's probit approximation.

    .. math:: \mathrm{E}\,\mathrm{softmax}(z) \approx
              \mathrm{softmax}\Bigl(\mu_k\big/\sqrt{1 + \tfrac{\pi}{8}\Sigma_{kk}}\Bigr)

    For two classes :math:`\mathrm{sigmoid}\bigl((\mu_0-\mu_1)/\sqrt{1+\tfrac\pi8 v}\bigr)` with the
    variance of the difference, :math:`v = \Sigma_{00} + \Sigma_{11} - 2\Sigma_{01}`, within 0.02 of
    the integral. For more classes it is a mean-field rule of thumb on the diagonal alone.

    With a ``mean`` ``(*B, C)`` and a ``covariance`` ``(*B, C, C)`` or its diagonal ``(*B, C)`` the
    result is ``(*B, C)``. Arguments and errors are those of :func:`~pyro_opu.laplace_bridge`, but
    variances may be zero.

    Example:
        >>> probit_predictive(torch.tensor([2.0, 0.0]), torch.tensor([4.0, 4.0]))
        tensor([0.7277, 0.2723])

    References:
        MacKay: The evidence framework applied to classification networks (1992), Eq. 12.
        Gibbs: Bayesian Gaussian processes for regression and classification (1997).
    """
    variance = _variance(mean, covariance)
    if mean.shape[-1] > 2:
        return torch.softmax(moderated(mean, variance), -1)
    of_difference = variance.sum(-1)
    if variance is not covariance:
        of_difference = (of_difference - 2.0 * covariance[..., 0, 1]).clamp(min=0.0)
    logit = moderated(mean[..., 0] - mean[..., 1], of_difference)
    return torch.stack((torch.sigmoid(logit), torch.sigmoid(-logit)), -1)


def _variance(mean: Tensor, covariance: Tensor) -> Tensor:
    """Checks both, and returns the variances: ``covariance`` itself where it is a diagonal."""
    _check_mean(mean, "mean")
    check_tensor("covariance", covariance, "(*B, C, C) or (*B, C)")
    full = (*mean.shape, mean.shape[-1])
    if covariance.shape not in (mean.shape, full):
        raise ArgumentError(
            f"`covariance` must have shape {tuple(mean.shape)} (diagonal) or {full} (full) for "
            f"this `mean`; got {tuple(covariance.shape)}. Expand it to the batch shape of `mean`."
        )
    check_floating("covariance", covariance)
    variance = covariance
    if covariance.shape != mean.shape:
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        _check_symmetric(covariance.detach())
        if not torch.isfinite(covariance.detach()).all():
            raise ArgumentError(
                "`covariance` must be finite; got NaN or infinity. Look at what produced it."
            )
    low, high = variance.detach().aminmax() if covariance.numel() else (0, 0)
    if not (low >= 0 and high < torch.inf):  # also where there is NaN
        raise ArgumentError(
            "`covariance` must be finite with variances that are not negative; got variances from "
            f"{low:.3g} to {high:.3g}. Standard deviations or precisions given by mistake?"
        )
    return variance


def _check_mean(mean: Tensor, name: str) -> None:
    shape = check_tensor(name, mean, "(*B, C)").shape
    if not shape or shape[-1] < 2 or not mean.is_floating_point():
        raise ArgumentError(
            f"`{name}` must be real of shape (*B, C) with C >= 2 classes; got {tuple(shape)}, "
            f"{mean.dtype}. For one logit of a binary model pass [z, 0]."
        )
    low, high = mean.detach().aminmax() if mean.numel() else (0, 0)
    if not (low > -torch.inf and high < torch.inf):  # also where there is NaN
        raise ArgumentError(
            f"`{name}` must be finite; got values from {low} to {high}. Look at what produced them."
        )


def _check_symmetric(covariance: Tensor) -> None:
    gap = (covariance - covariance.mT).abs()
    # What two float32 products of the same factors may differ by.
    allowed = 1e-3 * covariance.abs().amax((-2, -1), keepdim=True)
    if not (gap <= allowed).all():  # also where there is NaN
        raise ArgumentError(
            "`covariance` must be a symmetric matrix without NaN; got entries that differ by up to "
            f"{gap.max().item():.3g} from the transpose. Use (S + S.mT) / 2 if that is rounding."
        )


def _check_positive(name: str, values: Tensor, expected: str, advice: str) -> None:
    if values.numel() and not values.detach().amin() > 0:
        raise ArgumentError(f"`{name}` must {expected}; got {values.min().item():.3g}. {advice}")
