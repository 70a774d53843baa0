"""Maximum mean discrepancy: two clouds of draws compared through a kernel."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pyro_opu.checks import one_of, positive_int
from pyro_opu.distributions import Answer, stratified_draws
from pyro_opu.objectives.base import Objective

Kernel = Literal["laplace", "gaussian"]

#: Draws nearer than this count as equal when the bandwidth is chosen, which is never below it.
RESOLUTION = 1e-3


def _distances(points: Tensor, kernel: Kernel) -> Tensor:
    """All distances ``(N, P, P)`` between points ``(P, N, C)``: l1 for laplace, l2 for gaussian."""
    points = points.transpose(0, 1).contiguous()
    # The quick way, by inner products, has no digits left for points that lie close together.
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(points, points, p=1.0 if kernel == "laplace" else 2.0, compute_mode=exact)


@torch.no_grad()
def median_distance(student: Tensor, teacher: Tensor, kernel: Kernel = "laplace") -> Tensor:
    """Median distance between two different draws of the pooled cloud, per input.

    Pairs nearer than ``RESOLUTION`` are left out: among draws that lie at a few corners most
    distances may be zero, and those between the corners are what the kernel should resolve.

    Args:
        student: Draws ``(S, N, C)``.
        teacher: Draws ``(T, N, C)``.
        kernel: Whose distance.

    Returns:
        ``(N,)``, at least ``RESOLUTION``; without gradient.
    """
    distances = _distances(torch.cat([student, teacher]), kernel)
    count = distances.shape[-1]
    rows, columns = torch.triu_indices(count, count, offset=1, device=distances.device)
    pairs = distances[:, rows, columns]
    apart = pairs.masked_fill(pairs < RESOLUTION, torch.nan)
    return apart.nanmedian(-1).values.nan_to_num(RESOLUTION)


def maximum_mean_discrepancy(
    student: Tensor,
    teacher: Tensor,
    bandwidth: Tensor,
    *,
    kernel: Kernel = "laplace",
    weights: Tensor | None = None,
) -> Tensor:
    r"""Squared maximum mean discrepancy per input, differentiable in ``student`` and ``weights``.

    .. math::
        \mathbb{E}\, k(\pi, \tilde\pi) + \mathbb{E}\, k(\pi', \tilde\pi')
        - 2\, \mathbb{E}\, k(\pi, \pi'), \qquad
        k(\pi, \pi') = e^{-\|\pi - \pi'\|_1 / \sigma} \;\text{ or }\;
        e^{-\|\pi - \pi'\|_2^2 / 2\sigma^2}

    Both kernels are characteristic: unlike the energy distance in the l1 metric, it sees how the
    classes depend on each other, and not the marginal of every class alone.

    Args:
        student: Draws ``(S, N, C)``.
        teacher: Draws ``(T, N, C)``.
        bandwidth: :math:`\sigma`, ``(N,)``.
        kernel: "laplace" or "gaussian".
        weights: Of K strata of S / K student draws each, one after the other, ``(K, N)``, summing
            to one over K; by default one stratum.

    Returns:
        ``(N,)``; no draw is paired with itself, so the estimate has no bias for a given bandwidth
        and can be negative.

    Raises:
        ValueError: fewer than two draws on either side, or in a stratum.

    References:
        Gretton, Borgwardt, Rasch, Schoelkopf and Smola (2012), A kernel two-sample test, eq. 3.
    """
    n, one = len(student), teacher.new_ones(1, teacher.shape[1])
    weights = one if weights is None else weights
    if min(n // len(weights), len(teacher)) < 2:
        raise ValueError(
            "`student` (every stratum of it) and `teacher` must hold at least two draws per input "
            f"each; got {n // len(weights)} and {len(teacher)}. One draw says nothing about the "
            "spread."
        )
    distances = _distances(torch.cat([student, teacher]), kernel) / bandwidth[:, None, None]
    values = (-distances if kernel == "laplace" else -distances.square() / 2).exp()
    mine, theirs = _each(weights, n), _each(one, len(teacher))
    cross = torch.einsum("ns,nst,nt->n", mine, values[:, :n, n:], theirs)
    within = _within(values[:, :n, :n], mine, len(weights)) + _within(values[:, n:, n:], theirs, 1)
    return within - 2 * cross


def _each(weights: Tensor, count: int) -> Tensor:
    """Weights ``(N, count)`` of the draws in strata with weights ``(K, N)``."""
    size = count // len(weights)
    return (weights / size).T.repeat_interleave(size, -1)


def _within(values: Tensor, each: Tensor, strata: int) -> Tensor:
    """Mean of ``values (N, P, P)`` over independent pairs of a cloud, ``(N,)``.

    A draw makes no pair with itself; the other pairs of its stratum stand in for that one.
    """
    size = each.shape[1] // strata
    block = 1 - torch.eye(size, dtype=values.dtype, device=values.device)
    ones = torch.ones_like(block).repeat(strata, strata)
    factor = ones + torch.block_diag(*[block * size / (size - 1) - 1] * strata)
    return torch.einsum("ns,nst,nt->n", each, values * factor, each)


class MaximumMeanDiscrepancy(Objective):
    r"""Squared maximum mean discrepancy between the teacher's draws and draws of the student.

    The bandwidth of every input is the median distance within the pooled cloud
    (:func:`.median_distance`), afresh at every step and held fixed in the gradient. Pooling makes
    it blind to which draw is whose, so that at a student equal to the teacher value and gradient
    are zero on average, exactly (where its draws are one stratum). Elsewhere the loss is the
    discrepancy for the bandwidth at hand: wide while the two are far apart, and then as narrow as
    the teacher's spread, so that inputs count alike however little their draws spread.

    Args:
        kernel: "laplace", of the l1 distance, or "gaussian", of the l2 distance.
        num_samples: Student draws per input.

    Raises:
        ValueError: an unknown kernel, or fewer than two samples.

    Example:
        >>> import torch
        >>> from pyro_opu import PredictiveDirichlet
        >>> _ = torch.manual_seed(0)
        >>> flat = torch.full((1000, 3), 1 / 3)
        >>> student = PredictiveDirichlet(flat.log(), torch.full((1000,), 2.0))
        >>> same = MaximumMeanDiscrepancy()(student, student.sample((20,)), torch.zeros(1000, 1))
        >>> bool(same.abs() < 0.01)
        True

    References:
        Gretton, Borgwardt, Rasch, Schoelkopf and Smola (2012), A kernel two-sample test, eq. 3
        and, for the median, section 8; Li, Swersky and Zemel (2015), Generative moment matching
        networks.
    """

    learning_rate = 3e-5

    def __init__(self, kernel: Kernel = "laplace", num_samples: int = 32) -> None:
        super().__init__()
        one_of("kernel", kernel, ("laplace", "gaussian"))
        positive_int("num_samples", num_samples, 2)
        self.kernel, self.num_samples = kernel, num_samples

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"mmd"}``."""
        samples, weights = stratified_draws(student, self.num_samples)
        width = median_distance(samples, draws, self.kernel)
        value = maximum_mean_discrepancy(samples, draws, width, kernel=self.kernel, weights=weights)
        return {"mmd": value.mean()}
