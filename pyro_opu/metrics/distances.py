r"""Distances between two clouds of draws on the simplex, input by input.

The ground metric is :math:`\|\pi - \pi'\|_1 = \sum_k |\pi_k - \pi'_k| \in [0, 2]`, twice the
total-variation distance between two categorical distributions; it separates over classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_log_probs, check_probs, check_tensor, positive_int
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.utils.chunks import chunks

__all__ = ["energy_distance", "kl_divergence", "kl_from_log", "wasserstein1"]


def energy_distance(p: Tensor, q: Tensor, *, chunk_size: int | None = None) -> Tensor:
    r"""The energy distance between the draws of every input, without bias.

    .. math::
        D(x) = 2\,E\|X - Y\|_1 - E\|X - X'\|_1 - E\|Y - Y'\|_1,
        \qquad X, X' \sim p(\cdot|x),\; Y, Y' \sim q(\cdot|x)

    It is zero when every class has the same marginal distribution under ``p`` and ``q``, and
    positive otherwise. Each expectation is estimated by its U-statistic (no draw is paired with
    itself), so the estimate *can be slightly negative* where the two distributions agree.

    Args:
        p: Draws on the simplex, shape ``(S, N, C)``, ``S >= 2``.
        q: Draws on the simplex, shape ``(S', N, C)``, ``S' >= 2``.
        chunk_size: Inputs handled at one time. By default as many as keep memory bounded.

    Returns:
        The distances, shape ``(N,)``, without gradient.

    Example:
        >>> p = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
        >>> q = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
        >>> energy_distance(p, q)  # 2 * 1 - 2 - 0
        tensor([0.])

    References:
        Székely and Rizzo, *Energy statistics: a class of statistics based on distances*, 2013;
        Gretton et al., *A kernel two-sample test*, 2012, Lemma 6 (the U-statistic).
    """
    _check_pair(p, q)
    for name, draws in (("p", p), ("q", q)):
        if draws.shape[0] < 2:
            raise ArgumentError(
                f"`{name}` must hold at least 2 draws for an unbiased energy distance; got "
                f"{len(draws)}. Ask for more draws, or compare means with `kl_divergence`."
            )
    dtype = _working_dtype(p, q)
    out = p.new_empty(p.shape[1], dtype=dtype)
    for inputs in chunks(p.shape[1], p.shape[0] + q.shape[0], p.shape[2], chunk_size):
        first, second = (draws[:, inputs].to(dtype) for draws in (p, q))
        out[inputs] = Marginals(first).energy_distance(second).to(dtype)
    return out


def wasserstein1(p: Tensor, q: Tensor, *, chunk_size: int | None = None) -> Tensor:
    r"""The exact 1-Wasserstein distance between the draws of every input.

    .. math:: W_1(x) = \min_{\gamma \in \Gamma(p_x, q_x)} E_{(X, Y) \sim \gamma} \|X - Y\|_1

    over the couplings of the two empirical measures. Two classes: :math:`W_1 = 2\int |F - G|`, with
    F and G the distribution functions of one class; any numbers of draws. More classes: the optimal
    assignment, which takes O(S³) on the CPU for every input, and is meant for a few hundred draws
    on some tens of inputs.

    Between two samples of *one* distribution it is not zero but of order ``S**(-1/2)`` for two
    classes, and slower with more: read it beside the distance between two samples of the teacher.
    (`energy_distance` needs no such floor.)

    Args:
        p: Draws on the simplex, shape ``(S, N, C)``.
        q: Draws on the simplex, shape ``(S', N, C)``; ``S' == S`` when ``C > 2``.
        chunk_size: Inputs handled at one time when ``C == 2``, by default to bound memory.

    Returns:
        The distances, shape ``(N,)``, without gradient, each in ``[0, 2]``.

    Example:
        >>> p = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
        >>> q = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
        >>> wasserstein1(p, q)
        tensor([1.])

    References:
        Villani, *Optimal Transport: Old and New*, 2009, Definition 6.1; Remark 6.6 for the line.
    """
    _check_pair(p, q)
    if chunk_size is not None:
        chunk_size = positive_int("chunk_size", chunk_size)
    out = p.new_empty(p.shape[1], dtype=_working_dtype(p, q))
    if p.shape[2] == 2:
        for inputs in chunks(p.shape[1], p.shape[0] + q.shape[0], p.shape[2], chunk_size):
            out[inputs] = 2 * _area_between(p[:, inputs, 0].to(out), q[:, inputs, 0].to(out))
        return out
    if p.shape[0] != q.shape[0]:
        raise ArgumentError(
            f"`p` and `q` must hold the same number of draws when there are more than two classes; "
            f"got {p.shape[0]} and {q.shape[0]}. Drop draws from the larger one, or use "
            "`energy_distance`, which takes any numbers."
        )
    from scipy.optimize import linear_sum_assignment

    for n in range(p.shape[1]):
        cost = torch.cdist(p[:, n].detach().to(out), q[:, n].detach().to(out), p=1).cpu().numpy()
        rows, columns = linear_sum_assignment(cost)
        out[n] = float(cost[rows, columns].mean())
    return out


def kl_divergence(p_mean: Tensor, q_mean: Tensor) -> Tensor:
    r"""The Kullback-Leibler divergence between categorical distributions, nats, ``(N,)``.

    .. math:: \mathrm{KL}(p\,\|\,q) = \sum_k p_k (\log p_k - \log q_k)

    A class with :math:`p_k = 0` adds exactly nothing, whatever :math:`q_k` is; a class with
    :math:`q_k = 0 < p_k` makes the divergence infinite.

    ``p_mean`` and ``q_mean`` are class probabilities ``(N, C)`` (or ``(*B, C)``).

    Example:
        >>> kl_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))  # log 2
        tensor([0.6931])
    """
    _check_same_shape("p_mean", p_mean, "q_mean", q_mean)
    return kl_of_rows(check_probs("p_mean", p_mean), check_probs("q_mean", q_mean))


def kl_of_rows(p_mean: Tensor, q_mean: Tensor) -> Tensor:
    """`kl_divergence` of rows that are known to be probabilities."""
    return (torch.xlogy(p_mean, p_mean) - torch.xlogy(p_mean, q_mean)).sum(-1)


def kl_from_log(log_p: Tensor, log_q: Tensor) -> Tensor:
    r"""`kl_divergence` of log-probabilities, finite where a probability underflows to zero.

    ``log_p`` and ``log_q`` are normalised, ``(N, C)`` (or ``(*B, C)``); minus infinity is a
    probability of zero.

    Example:
        >>> log_p, log_q = torch.tensor([[0.0, -torch.inf]]), torch.tensor([[-200.0, 0.0]])
        >>> kl_from_log(log_p, log_q)  # the probability exp(-200) is zero in float32
        tensor([200.])
    """
    _check_same_shape("log_p", log_p, "log_q", log_q)
    check_log_probs("log_p", log_p)
    check_log_probs("log_q", log_q)
    impossible = log_p == -torch.inf  # 0 log 0 = 0; masked early so that no inf - inf arises
    difference = torch.where(impossible, 0.0, log_p - torch.where(impossible, 0.0, log_q))
    return (log_p.exp() * difference).sum(-1)


def split(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves, another split at every input: then chance in it averages out over inputs."""
    order = torch.rand(draws.shape[:2], device=draws.device).argsort(0)
    first, second = draws.gather(0, order[..., None].expand_as(draws)).chunk(2)
    return first, second


def log_mean_of(draws: Tensor) -> Tensor:
    """Finite logarithm of the mean of draws, in float64: the KL of a sure input is below 1e-7."""
    mean = draws.mean(0, dtype=torch.float64)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log().log_softmax(-1)


def _area_between(p: Tensor, q: Tensor) -> Tensor:
    r""":math:`\int |F - G|` of the distribution functions of draws ``(S, n)`` and ``(S', n)``."""
    pooled, order = torch.cat([p.detach().T, q.detach().T], -1).sort(-1)
    from_p = (order[:, :-1] < len(p)).to(p).cumsum(-1)  # whole numbers, exact in float32
    from_q = torch.arange(1, pooled.shape[-1], device=p.device, dtype=p.dtype) - from_p
    return ((from_p / len(p) - from_q / len(q)).abs() * pooled.diff(dim=-1)).sum(-1)


def _working_dtype(p: Tensor, q: Tensor) -> torch.dtype:
    """The wider of the two, and at least float32."""
    return torch.promote_types(torch.promote_types(p.dtype, q.dtype), torch.float32)


def _check_pair(p: Tensor, q: Tensor) -> None:
    for name, draws in (("p", p), ("q", q)):
        check_tensor(name, draws, "(S, N, C)")
        if draws.ndim != 3 or 0 in draws.shape or not draws.is_floating_point():
            raise ArgumentError(
                f"`{name}` must be floating-point draws of shape (S, N, C); got {draws.dtype} "
                f"{tuple(draws.shape)}. For the draws of one input, add the axis: `draws[:, None]`."
            )
        check_probs(name, draws, "(S, N, C)")
    if p.shape[1:] != q.shape[1:]:
        raise ArgumentError(
            f"`p` and `q` must agree in inputs and classes; got shapes {tuple(p.shape)} and "
            f"{tuple(q.shape)}. Both must be (draws, inputs, classes) for the same inputs."
        )


def _check_same_shape(name: str, rows: Tensor, other: str, others: Tensor) -> None:
    shapes = [
        tuple(check_tensor(*each, "(N, C)").shape) for each in ((name, rows), (other, others))
    ]
    if shapes[0] != shapes[1]:
        raise ArgumentError(
            f"`{name}` and `{other}` must have the same shape (N, C); got {shapes[0]} and "
            f"{shapes[1]}. Give one row of probabilities per input on both sides."
        )
