"""R-hat and effective sample sizes of what a teacher's held draws say of the outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pyro.ops.stats import effective_sample_size as pyro_effective_sample_size
from pyro.ops.stats import gelman_rubin
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_tensor
from pyro_opu.inputs import InputLike, inputs_of
from pyro_opu.metrics.ranks import ranks
from pyro_opu.reports.answers import teacher_of
from pyro_opu.reports.base import Report
from pyro_opu.rng import preserve_rng
from pyro_opu.teachers import Source as TeacherSource
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.utils.tables import cell, table
from pyro_opu.utils.warnings import warn_user

__all__ = ["MixingReport", "MixingWarning", "effective_sample_size", "mixing", "r_hat"]

#: Fewer draws than the first say nothing about mixing; they are cut into blocks that stand for
#: chains, each of which R-hat halves once more.
LEAST_DRAWS, BLOCKS = 40, 4
#: Inputs looked at, at most, and numbers in all draws there.
MOST_INPUTS, MOST_NUMBERS = 128, 2**19
#: Limits of the rule of `mixing`; those of few draws are wider.
R_HAT_LIMIT, LEAST_EFFECTIVE = 1.1, 50
#: A class whose probability moves by less, as a standard deviation, is left out: rounding.
STILL = 1e-6
#: Numbers at once in the effective sample size, whose work grows with the square of the draws.
AT_ONCE = 2**22


class MixingWarning(UserWarning):
    """The draws that are about to be distilled are not those of one posterior."""


def r_hat(draws: Tensor) -> Tensor:
    r"""Rank-normalised split R-hat, the larger of bulk and tail, ``(...)``; NaN where still.

    .. math:: \hat R = \sqrt{\left(\tfrac{n-1}{n} W + B\right) / W}

    with W the mean variance within the half chains of n draws and B the variance of their means,
    of the normal scores of the ranks (bulk), and of those of the distances to the median (tail).
    ``draws`` are ``(chains, draws, ...)``, at least 4 draws.

    Example:
        >>> import torch
        >>> chains = torch.randn(4, 500) + torch.tensor([[0.0], [0.0], [0.0], [5.0]])
        >>> bool(r_hat(chains) > 1.5)
        True

    References:
        Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Rank-normalization, folding, and
        localization: an improved R-hat, Secs. 3 (split chains) and 4 (ranks and folding).
    """
    halves = _halves(draws)
    everything = halves.flatten(0, 1).sort(0).values
    median = (everything[(len(everything) - 1) // 2] + everything[len(everything) // 2]) / 2
    bulk = gelman_rubin(_normal_scores(halves))
    tail = gelman_rubin(_normal_scores((halves - median).abs()))
    return torch.where(tail > bulk, tail, bulk).reshape(draws.shape[2:])


def effective_sample_size(draws: Tensor) -> Tensor:
    """Bulk effective sample size ``(...)``, of the normal scores of the ranks over half chains.

    At most S log10(S), as the estimate of antithetic draws has no bound; NaN where still. ``draws``
    are ``(chains, draws, ...)``, at least 4 draws.

    Example:
        >>> import torch
        >>> bool((effective_sample_size(torch.randn(4, 500)) - 2000).abs() < 500)
        True

    References:
        Vehtari et al. (2021), Sec. 3.2; Geyer (1992) for where the sum of autocorrelations ends.
    """
    scores = _normal_scores(_halves(draws))
    total = scores.shape[0] * scores.shape[1]
    most = total * math.log10(total)
    found = scores.new_full(scores.shape[2:], math.nan)
    moving = scores.flatten(0, 1).std(0) > 0  # Pyro's NaN of a still column spreads to the others
    columns = max(1, AT_ONCE // scores.shape[1] ** 2)
    if moving.any():
        parts = scores[..., moving].split(columns, -1)
        sizes = torch.cat([pyro_effective_sample_size(part) for part in parts])
        found[moving] = torch.where((sizes <= 0) | (sizes > most), most, sizes)
    return found.reshape(draws.shape[2:])


@dataclass(frozen=True, repr=False)
class MixingReport(Report):
    """What `mixing` found; NaN where not checked.

    Attributes:
        mixed: Whether the draws have mixed; ``None`` where that was not checked.
        reason: In words, why.
        num_draws: S.
        num_inputs: Inputs looked at.
        r_hat_median: Over inputs and classes.
        r_hat_90: The 90 % quantile, which is judged.
        r_hat_max: The largest.
        r_hat_limit: What ``r_hat_90`` may be.
        ess_median: Effective draws, the median over inputs and classes, which is judged.
        ess_10: The 10 % quantile.
        ess_min: The smallest.
        ess_limit: What ``ess_median`` must be.
    """

    mixed: bool | None
    reason: str
    num_draws: int | None = None
    num_inputs: int = 0
    r_hat_median: float = math.nan
    r_hat_90: float = math.nan
    r_hat_max: float = math.nan
    r_hat_limit: float = math.nan
    ess_median: float = math.nan
    ess_10: float = math.nan
    ess_min: float = math.nan
    ess_limit: float = math.nan

    def __repr__(self) -> str:
        verdict = {True: "mixed", False: "not mixed", None: "not checked"}[self.mixed]
        if math.isnan(self.r_hat_limit):
            return f"{verdict}: {self.reason}"
        header = [f"{self.num_draws} draws at {self.num_inputs} inputs", "median", "tail", "worst"]
        r_hats = (self.r_hat_median, self.r_hat_90, self.r_hat_max, self.r_hat_limit)
        sizes = (self.ess_median, self.ess_10, self.ess_min, self.ess_limit)
        rows = [
            ["R-hat (tail: 90 %)", *map(cell, r_hats)],
            ["effective draws (tail: 10 %)", *(f"{size:.0f}" for size in sizes)],
        ]
        return table([*header, "limit"], rows) + f"\n{verdict}: {self.reason}"


def mixing(source: TeacherSource, x: InputLike) -> MixingReport:
    r"""R-hat and effective draws of what a teacher's draws say of the outcome, in their order.

    A network's weights have symmetries, so that their own R-hat means nothing; class probabilities
    (or the mean and scale of a real y) have none. The S draws, in order, are cut into 4 blocks that
    stand for chains (posterior samples hold the chains one after another), and R-hat and the bulk
    effective sample size are taken for every class at every input, of ranks. The draws are reported
    where

    * the 90 % quantile of R-hat over inputs and classes is above
      :math:`\max(1.1, \sqrt{(n-1)/n + 2 F / n})`, n = S / 8, with F the 99.9 % quantile of Fisher's
      F(7, 8n - 8): a chain worth half its draws stays below it; or
    * the median of the effective draws is below min(50, S / 4).

    Alarms of this rule in simulations of one Gaussian quantity (all inputs in step, the worst case)
    with autocorrelation :math:`\rho` per step, in % of 2,000 runs:

    ===================  ======  =======  =======  =======  ========
    :math:`\rho` (ESS)   S = 50  S = 100  S = 200  S = 500  S = 1000
    ===================  ======  =======  =======  =======  ========
    0 (S)                   0.1        0        0        0         0
    1/3 (S / 2)             3.2      1.7      0.4        0         0
    1/2 (S / 3)            11.4     10.6      8.3        0         0
    0.8 (S / 9)            64.8     81.4     96.5     26.3       0.8
    0.9 (S / 19)           85.8     98.2      100     94.4      36.2
    0.95 (S / 39)          91.9     99.5      100      100      96.1
    ===================  ======  =======  =======  =======  ========

    It cannot see a mode that no chain has found, nor an order that is not that of the chains
    (``mcmc.get_samples(n)`` shuffles). Draws that are made afresh at every call (a guide,
    dropout, a function) have no order and are not checked, nor are fewer than 40 draws.

    Args:
        source: What :func:`~pyro_opu.distill` takes; a ``Predictive`` with posterior samples or a
            sequence of networks (snapshots of a sampler) is checked.
        x: Inputs ``(N, ...)``, of which the first 128 are used, fewer where there are many draws.

    Returns:
        The report.

    Raises:
        TypeError, ValueError: A wrong type or value of an argument.

    Example:
        >>> import torch
        >>> from pyro_opu.reports.mixing import mixing
        >>> networks = [torch.nn.Linear(2, 3) for _ in range(100)]
        >>> mixing(networks, torch.randn(10, 2)).mixed
        True

    References:
        Vehtari et al. (2021) for the two quantities; blocks, limits and the function space are this
        project's.
    """
    inputs = inputs_of(x, source)
    x, teacher = inputs.tensor, teacher_of(source, inputs.tensor, form=inputs.form)
    exempt = _exempt(teacher)
    if exempt is not None:
        return exempt
    with preserve_rng():
        teacher.draws(x[:1])  # of how many classes
    return _of_teacher(teacher, x)


def draws_mixing(draws: Tensor, quantity: str = "class probabilities") -> MixingReport:
    """`mixing` of given draws ``(S, N, K)`` of this quantity, in order."""
    count, inputs, _ = draws.shape
    draws = draws.double().flatten(1)
    draws = draws[:, draws.std(0) > STILL]
    if draws.shape[1] == 0:
        reason = f"all {count} draws give the same {quantity}; did the chains move?"
        return MixingReport(False, reason, count, inputs)
    length = count // BLOCKS
    chains = draws[count - BLOCKS * length :].reshape(BLOCKS, length, -1)
    r_hats, sizes = r_hat(chains), effective_sample_size(chains)
    r_hat_limit, ess_limit = _limits(count)
    quantiles = torch.tensor([0.5, 0.9, 1.0], dtype=draws.dtype, device=draws.device)
    high = r_hats.quantile(quantiles, interpolation="nearest").tolist()
    low = sizes.quantile((1 - quantiles).clamp_min(0)).tolist()
    mixed = high[1] <= r_hat_limit and low[0] >= ess_limit
    reason = (
        f"R-hat of the {quantity} is {high[1]:.2f} (90 % quantile; limit {r_hat_limit:.2f}), "
        f"and {count} draws are worth {low[0]:.0f} (median; at least {ess_limit:.0f})."
    )
    numbers = (*high, r_hat_limit, *low, ess_limit)
    return MixingReport(mixed, reason, count, inputs, *numbers)


def check_mixing(teacher: BaseTeacher, x: Tensor, draws: Tensor) -> MixingReport:
    """`mixing` before a distillation, with a warning of draws that have not mixed or are alike.

    ``draws`` are the teacher's at held-out inputs ``x``; they are used where they are all that it
    holds, and so in order.
    """
    report = _exempt(teacher)
    if report is None:
        report = _of_teacher(teacher, x, draws if len(draws) == teacher.max_draws else None)
    if report.mixed is None and bool((teacher.outcome.chain(draws).std(0) <= STILL).all()):
        quantity = teacher.outcome.words.quantity
        warn_user(
            f"All {len(draws)} draws of the teacher give the same {quantity}: "
            "there is no epistemic uncertainty to learn. Is its guide a point estimate, such as "
            "AutoDelta? Take AutoNormal, or draws of NUTS.",
            MixingWarning,
        )
    if report.mixed is False:
        warn_user(
            f"The teacher has not mixed, and its student will copy that: {report.reason} Sample "
            "with a longer warm-up, more draws or from better starting points, thin long chains, "
            "and look at mcmc.summary() before distilling.",
            MixingWarning,
        )
    return report


def _of_teacher(teacher: BaseTeacher, x: Tensor, draws: Tensor | None = None) -> MixingReport:
    """The report of held draws in order, at as many inputs as there is room for."""
    assert teacher.max_draws is not None
    room = MOST_NUMBERS // (teacher.max_draws * teacher.num_outputs)
    rows = min(MOST_INPUTS, max(2, room))
    with preserve_rng():
        draws = teacher.draws(x[:rows]) if draws is None else draws[:, :rows]
    return draws_mixing(teacher.outcome.chain(draws), teacher.outcome.words.quantity)


def _exempt(teacher: BaseTeacher) -> MixingReport | None:
    """The report of a teacher whose draws have no order, or are too few."""
    count = teacher.max_draws
    if count is None or not teacher.of_chains:
        return MixingReport(None, "the teacher's draws have no order of a chain.", count)
    if count < LEAST_DRAWS:
        return MixingReport(None, f"{count} draws are too few; {LEAST_DRAWS} are needed.", count)
    return None


def _limits(count: int) -> tuple[float, float]:
    """Limits on R-hat and on the effective draws for so many draws; see `mixing`."""
    from scipy.special import fdtri  # scipy.stats takes a second to import

    sequences, length = 2 * BLOCKS, count // BLOCKS // 2
    quantile = float(fdtri(sequences - 1, sequences * (length - 1), 0.999))
    wide = math.sqrt((length - 1 + 2 * quantile) / length)
    return max(R_HAT_LIMIT, wide), min(LEAST_EFFECTIVE, count / 4)


def _halves(draws: Tensor) -> Tensor:
    """Chains ``(chains, n, ...)`` cut in half, ``(2 chains, n // 2, K)`` in float64."""
    if check_tensor("draws", draws, "(chains, draws, ...)").is_complex():
        raise ArgumentTypeError("`draws` must be real; got complex numbers. Pass their parts.")
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise ArgumentError(
            "`draws` must have shape (chains, draws, ...) with at least 4 draws; got "
            f"{tuple(draws.shape)}. For one chain pass draws[None]."
        )
    if not draws.numel() or not draws.isfinite().all():
        raise ArgumentError(
            "`draws` must be finite, from at least one chain; got "
            f"{int((~draws.isfinite()).sum())} of {draws.numel()} numbers that are not. Look where "
            "the sampler left the finite numbers."
        )
    draws = draws.detach().double().reshape(*draws.shape[:2], -1)
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: Tensor) -> Tensor:
    """Blom's normal quantiles of the ranks among all draws of a column, ties at their mean."""
    values = draws.flatten(0, 1).T.contiguous()
    scores = torch.special.ndtri((ranks(values) - 0.375) / (values.shape[1] + 0.25))
    return scores.T.reshape(draws.shape)
