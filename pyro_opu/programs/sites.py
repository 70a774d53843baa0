"""Reading class log-probabilities off the distribution of an observed Pyro site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Tensor
from torch import distributions as dist
from torch.distributions import Distribution

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.utils.laws import is_known, own_members

_WRAPPERS = (dist.Independent, MaskedDistribution, ExpandedDistribution)
_KINDS = {
    "categorical": dist.Categorical,
    "onehot": dist.OneHotCategorical,
    "multinomial": dist.Multinomial,
    "bernoulli": dist.Bernoulli,
    "binomial": dist.Binomial,
}
#: What an observed site may be, in words.
ALLOWED = "Categorical, OneHotCategorical, Bernoulli, or a one-trial Binomial or Multinomial"


def unwrap(fn: Any) -> Any:
    """The distribution inside ``Independent``, ``Masked`` and ``Expanded`` wrappers."""
    while is_known(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def arguments_of(fn: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors that a distribution, and what it wraps or transforms, were made of."""
    while fn is not None:
        for name in fn.arg_constraints:
            if isinstance(value := vars(fn).get(name), Tensor):
                yield name, value
        fn = getattr(fn, "base_dist", None)


def site_kind(fn: Distribution) -> str | None:
    """One of categorical, onehot, multinomial, bernoulli, binomial; ``None`` for anything else.

    A user's subclass is one of them if it draws as its parent does, or if both its draws and its
    ``log_prob`` are its own, by which its classes are read then.
    """
    base = unwrap(fn)
    kind = next((kind for kind, cls in _KINDS.items() if isinstance(base, cls)), None)
    own = own_members(type(base))
    by_values = "log_prob" in own and bool(own & {"sample", "rsample"}) and kind != "multinomial"
    return kind if not own or by_values else None


def trials_of(fn: Distribution) -> int:
    """The most trials of a row, of a distribution of classes."""
    return int(torch.as_tensor(getattr(unwrap(fn), "total_count", 1)).max())


def class_log_probs(fn: Distribution, rows: int, site: str) -> Tensor:
    """Log class probabilities ``(N, C)`` of an observed site's distribution.

    From the logits if it was given them: near a corner of the simplex probabilities lose digits.
    """
    if site_kind(fn) is None:
        raise ArgumentError(
            f"`source`'s site '{site}' must be {ALLOWED}; got {type(unwrap(fn)).__name__}. "
            "Name the class label's site with site='...'."
        )
    advice = "A model with several labels per input needs one site per label."
    return one_per_row(wrapped_log_probs(fn), rows, f"'{site}' must hold one class label", advice)


def one_per_row(values: Tensor, rows: int, expected: str, advice: str) -> Tensor:
    """What a site of an expected kind says, ``(*batch, K)``, of each row ``(rows, K)``."""
    *batch, outputs = values.shape
    if prod(batch) == rows:
        return values.reshape(rows, outputs)
    if prod(batch) == 1:  # the model does not depend on x: one distribution for all rows
        return values.reshape(1, outputs).expand(rows, outputs)
    raise ArgumentError(
        f"`source`'s site {expected} per input; got batch shape {tuple(batch)} for {rows} inputs. "
        f"{advice}"
    )


def given_parameter(fn: Any) -> tuple[Tensor, bool]:
    """The parameter given to an unwrapped categorical distribution, and whether it is logits."""
    holder = getattr(fn, "_categorical", fn)
    # Either of the two may be cached beside the given one, which is `_param` in all of torch's.
    return holder._param, holder._param is vars(holder).get("logits")


def stand_in(fn: Any) -> Tensor:
    """A value for an observed site, which nothing looks at."""
    kind = site_kind(fn)
    if kind is None:
        return fn.mean
    like = given_parameter(unwrap(fn))[0]
    dtype = torch.long if kind == "categorical" else like.dtype
    return torch.zeros(fn.shape(), dtype=dtype, device=like.device)


def wrapped_log_probs(fn: Any) -> Tensor:
    """Log-probabilities ``(*batch, C)``, wrapper by wrapper."""
    if is_known(fn, ExpandedDistribution):
        inner = wrapped_log_probs(fn.base_dist)
        return inner.expand(*fn.batch_shape, *inner.shape[-1:])
    if is_known(fn, _WRAPPERS):
        return wrapped_log_probs(fn.base_dist)
    if own_members(type(fn)):
        return fn.log_prob(fn.enumerate_support(expand=True)).movedim(0, -1)
    value, is_logits = given_parameter(fn)
    if isinstance(fn, (dist.Bernoulli, dist.Binomial)):
        value = value.expand(fn.batch_shape)
        if is_logits:
            # Of the likelier class, for both. On a processor this takes a tenth of the time of
            # `softplus`, whose log1p is not vectorised; a probability is as exact as its rounding.
            likely = value.abs().sigmoid().log()
            return torch.stack([likely - value.clamp_min(0), likely + value.clamp_max(0)], -1)
        limits = torch.finfo(value.dtype)
        # p = 1 says no more than p > 1 - eps / 2, but a small p is known to all its digits.
        log_no = torch.log1p(-value.clamp_max(1 - limits.eps / 2))
        return torch.stack([log_no, value.clamp_min(limits.tiny).log()], -1)
    if is_logits:
        return value.log_softmax(-1)
    return value.clamp_min(torch.finfo(value.dtype).tiny).log()


def logits_of(output: object) -> Any:
    """What a network returns, or its ``logits`` where it returns them by name."""
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def log_probs_of_output(output: object) -> Tensor:
    """Log-probabilities ``(..., N, C)`` from what a classifier network returns.

    Normalising logits leaves log-probabilities as they are; rows that are non-negative and sum to
    one are probabilities.
    """
    output = logits_of(output)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        found = output.dtype if isinstance(output, Tensor) else type(output).__name__
        raise ArgumentTypeError(
            f"`source`'s network must return a floating tensor of logits (N, C); got {found}. "
            "Wrap it in a module that returns the logits alone; of a pair of mean and log variance "
            'say as_teacher(network, output="mean and log variance").'
        )
    if output.ndim < 2 or output.shape[-1] < 2:
        raise ArgumentError(
            "`source`'s network must return logits of shape (N, C) with at least two classes; got "
            f"{tuple(output.shape)}. For one logit per input say as_teacher(network, "
            'output="labels"), for the mean of a real y output="mean".'
        )
    return normalised(output, are_probs(output))


def are_probs(output: Tensor) -> bool:
    """Whether rows are non-negative and sum to one."""
    tolerance = max(1e-4, 4 * torch.finfo(output.dtype).eps)
    return bool(output.min() >= 0 and (output.sum(-1) - 1).abs().max() < tolerance)


def normalised(output: Tensor, probs: bool) -> Tensor:
    """Log-probabilities of logits, of log-probabilities, or of ``probs``."""
    if probs:
        output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
    return output.log_softmax(-1)
