"""Coverage of a teacher's draws by the central intervals of an answer's marginals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_opu.checks import ArgumentError, check_probs, in_range
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, check_dirichlet
from pyro_opu.distributions.measures import at_least_float32

__all__ = ["central_coverage", "central_coverage_of_draws"]


def central_coverage(
    dirichlet: PredictiveDirichlet, draws: Tensor, weights: Tensor, levels: Sequence[float]
) -> Tensor:
    r"""Share of draws inside the central intervals of a Dirichlet's Beta marginals.

    .. math::
        c_\ell(x) = \sum_k w_k(x)\, \frac{1}{S} \sum_s
            1\!\left[F_k^{-1}(\tfrac{1-\ell}{2}) \le \pi_{sk}(x) \le F_k^{-1}(\tfrac{1+\ell}{2})
            \right],
        \qquad F_k \text{ of } \mathrm{Beta}(\alpha_k, \alpha_0 - \alpha_k)

    Its expected value is :math:`\ell` when the draws come from the Dirichlet, for any weights
    that do not depend on these draws. Above :math:`\ell` the Dirichlet is too wide, below it too
    narrow or off centre. Weights keep the many classes of a probability near zero from counting.

    Rounding is allowed for, as confident answers are often decided below it. A probability above
    one half is compared through its complement, added up from the other classes. One that the dtype
    cannot tell from zero lies anywhere below the smallest normal number, and counts as inside with
    the probability that :math:`F_k` gives to it there.

    Args:
        dirichlet: The Dirichlet of every input, batch shape ``(N,)``.
        draws: Draws on the simplex, shape ``(S, N, C)``.
        weights: Weight of every class, non-negative with rows that sum to 1, shape ``(N, C)``.
        levels: The nominal probabilities :math:`\ell` of the central intervals, in (0, 1).

    Returns:
        The coverage, shape ``(len(levels), N)``.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> dirichlet = PredictiveDirichlet.from_alpha(torch.tensor([[2.0, 3.0, 5.0]]))
        >>> equal = torch.full((1, 3), 1 / 3)
        >>> covered = central_coverage(dirichlet, dirichlet.sample((9999,)), equal, [0.5, 0.9])
        >>> covered.round(decimals=1)
        tensor([[0.5000],
                [0.9000]])
    """
    dirichlet = check_dirichlet("dirichlet", dirichlet)
    _check(draws, weights, levels, dirichlet.batch_shape + dirichlet.event_shape)
    # Below 1e-300 SciPy has no quantiles; they are zero long before.
    alpha = dirichlet.log_alpha.detach().double().exp().clamp_min(1e-300).cpu()
    # Sums over the other classes: alpha_0 - alpha_k would lose a small remainder.
    beta, rest = _others(alpha), _others(draws)
    upper_half = draws > 0.5
    out = []
    for level in levels:
        near_zero = _inside(alpha, beta, draws, level)
        near_one = _inside(beta, alpha, rest, level)
        inside = torch.where(upper_half, near_one, near_zero)
        out.append((inside.mean(0) * weights).sum(-1))
    return torch.stack(out)


def central_coverage_of_draws(
    answer: Tensor, draws: Tensor, weights: Tensor, levels: Sequence[float]
) -> Tensor:
    """`central_coverage` of an answer known by draws ``(T, N, C)``: by empirical quantiles.

    Rounding is allowed for in the same way: in float32 most draws of a sure answer may be 1.
    """
    _check(draws, weights, levels, answer.shape[1:])
    upper_half = draws > 0.5
    sides = ((answer, draws), (_others(answer), _others(draws)))
    out = []
    for level in levels:
        near_zero, near_one = (_inside_draws(*side, level) for side in sides)
        inside = torch.where(upper_half, near_one, near_zero).to(weights)
        out.append((inside.mean(0) * weights).sum(-1))
    return torch.stack(out)


def _check(draws: Tensor, weights: Tensor, levels: Sequence[float], shape: torch.Size) -> None:
    for name, rows in (("draws", draws), ("weights", weights)):
        if check_probs(name, rows).shape[-2:] != shape or rows.ndim != 3 - (name == "weights"):
            raise ArgumentError(
                f"`{name}` must have {'draws of ' if name == 'draws' else ''}shape "
                f"{tuple(shape)}, the inputs and classes of the answer, on its last axes; got "
                f"{tuple(rows.shape)}. Ask both at the same inputs."
            )
    for level in levels:
        in_range("levels", level, 0, 1, "()")


def _others(values: Tensor) -> Tensor:
    """Sums over the other classes ``(..., C)``, of which none is lost beside the class itself."""
    before, after = values.cumsum(-1), values.flip(-1).cumsum(-1).flip(-1)
    return pad(before[..., :-1], (1, 0)) + pad(after[..., 1:], (0, 1))


def _inside_draws(answer: Tensor, values: Tensor, level: float) -> Tensor:
    """As :func:`_inside`, of the central interval of draws ``(T, N, C)``."""
    tail = (1 - level) / 2
    answer, values = at_least_float32(answer), at_least_float32(values)
    ends = torch.tensor([tail, 1 - tail], dtype=answer.dtype, device=answer.device)
    low, high = torch.quantile(answer, ends, dim=0)
    smallest = 16 * torch.finfo(values.dtype).tiny
    below = (answer < smallest).to(values).mean(0)
    return _shared(values, smallest, below, tail, (values >= low) & (values <= high))


def _inside(a: Tensor, b: Tensor, values: Tensor, level: float) -> Tensor:
    """1 where a value lies in the central interval of Beta(a, b), 0 where not; between at zero."""
    from scipy.special import betainc, betaincinv

    tail = (1 - level) / 2
    low, high = (
        torch.from_numpy(betaincinv(a.numpy(), b.numpy(), p)).to(values) for p in (tail, 1 - tail)
    )
    smallest = 16 * torch.finfo(values.dtype).tiny
    below = torch.from_numpy(betainc(a.numpy(), b.numpy(), smallest))  # F(t)
    return _shared(values, smallest, below, tail, (values >= low) & (values <= high))


def _shared(values: Tensor, smallest: float, below: Tensor, tail: float, inside: Tensor) -> Tensor:
    """1 inside and 0 outside; where a value is below the smallest number the share that is there.

    ``below`` is the probability of the answer there.
    """
    below = below.double()
    share = (below.clamp_max(1 - tail) - tail).clamp_min(0) / below.clamp_min(1e-300)
    return torch.where(values < smallest, share.to(values), inside.to(values))
