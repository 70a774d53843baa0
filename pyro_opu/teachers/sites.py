"""Reading class log-probabilities off the distribution of an observed Pyro site."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.nn.functional import logsigmoid

_WRAPPERS = (Independent, MaskedDistribution, ExpandedDistribution)
_KINDS = {
    "categorical": dist.Categorical,
    "onehot": torch.distributions.OneHotCategorical,
    "multinomial": torch.distributions.Multinomial,
    "bernoulli": torch.distributions.Bernoulli,
    "binomial": torch.distributions.Binomial,
}


def unwrap(fn: Distribution) -> Distribution:
    """The distribution inside ``Independent``, ``Masked`` and ``Expanded`` wrappers."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def site_kind(fn: Distribution) -> str | None:
    """One of categorical, onehot, multinomial, bernoulli, binomial; ``None`` for anything else."""
    base = unwrap(fn)
    for kind, cls in _KINDS.items():
        if isinstance(base, cls) or (
            kind == "categorical" and isinstance(base, torch.distributions.Categorical)
        ):
            return kind
    return None


def check_one_trial(fn: Distribution, site: str) -> None:
    """Refuse counts: class probabilities describe one trial.

    Raises:
        ValueError: a Binomial or Multinomial with more than one trial.
    """
    trials = getattr(unwrap(fn), "total_count", 1)
    if int(torch.as_tensor(trials).max()) != 1:
        raise ValueError(
            f"site '{site}' must be a one-trial {type(unwrap(fn)).__name__}; got total_count="
            f"{int(torch.as_tensor(trials).max())}. Use Categorical or Bernoulli, one row per trial."
        )


def _batched_log_probs(fn: Distribution) -> Tensor:
    """Log-probabilities ``(*batch, C)``, wrapper by wrapper; a Bernoulli gives [1 - p, p]."""
    if isinstance(fn, ExpandedDistribution):
        inner = _batched_log_probs(fn.base_dist)
        return inner.expand(*fn.batch_shape, *inner.shape[-1:])
    if isinstance(fn, _WRAPPERS):
        return _batched_log_probs(fn.base_dist)
    if site_kind(fn) in ("bernoulli", "binomial"):
        logits = fn.logits.expand(fn.batch_shape)
        return torch.stack([logsigmoid(-logits), logsigmoid(logits)], -1)
    return fn.logits.log_softmax(-1)


def class_log_probs(fn: Distribution, rows: int, site: str) -> Tensor:
    """Log class probabilities ``(N, C)`` of an observed site's distribution.

    Taken from the logits where the distribution has them: near a corner of the simplex the
    probabilities have lost the digits.

    Raises:
        ValueError: the site is not categorical, or does not hold one label per input.
    """
    if site_kind(fn) is None:
        raise ValueError(
            f"site '{site}' must be Categorical, OneHotCategorical, Bernoulli, or a one-trial "
            f"Binomial or Multinomial; got {type(unwrap(fn)).__name__}. "
            "Name the class label's site with site='...'."
        )
    log_probs = _batched_log_probs(fn)
    labels = log_probs.shape[:-1].numel()
    if labels == rows:
        return log_probs.reshape(rows, log_probs.shape[-1])
    if labels == 1:  # the model does not depend on x: one distribution for all rows
        return log_probs.reshape(1, -1).expand(rows, -1)
    raise ValueError(
        f"site '{site}' must hold one class label per input; got batch shape "
        f"{tuple(log_probs.shape[:-1])} for {rows} inputs. A model with several labels per input "
        "needs one site per label."
    )
