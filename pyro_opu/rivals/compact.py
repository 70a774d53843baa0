"""CompactApprox: a few posterior draws whose mean is as near as possible to the mean of all."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_opu.checks import ArgumentError, check_bool, one_of, positive_int
from pyro_opu.distributions import Empirical
from pyro_opu.predictive import OnePassPredictive, read_student, student_of
from pyro_opu.rivals.subsets import METHODS, Method, SubsetTable
from pyro_opu.rng import preserve_rng, seeded
from pyro_opu.teachers import BaseTeacher, HeldTeacher, Source, as_teacher, held_from, hold

__all__ = ["CompactGuide", "compact_approx", "load_compact"]

#: Draws in the pool of a posterior that draws afresh; of large models fewer, such that all their
#: latents are so many numbers (1 GB in float32).
POOL, POOL_NUMBERS = 5000, 2**28
#: Class probabilities of the pool that are held at once (256 MB in float32).
TABLE_NUMBERS = 2**26
#: Before the names of draws among the buffers, which may not be named as they like.
PREFIX = "draws:"


class CompactGuide(nn.Module):
    """A few held draws of a posterior, as equally likely points of the simplex.

    The draws of ``held`` are buffers: posterior samples, seeds of dropout masks, or indices into an
    ensemble or a function's draws. The model or network that evaluates them is no part of the
    module: it is not saved, and ``to`` does not move it.
    """

    def __init__(self, held: HeldTeacher) -> None:
        super().__init__()
        self.teacher = held.teacher
        for name, value in held.tensors.items():
            self.register_buffer(PREFIX + name.replace("%", "%25").replace(".", "%2E"), value)

    takes_one_tensor = True

    def extra_repr(self) -> str:
        return f"{self._held().size} draws of {self.teacher!r}"

    def forward(self, x: Tensor) -> Empirical:
        """The answers of the K draws at inputs ``(N, ...)``."""
        return Empirical(self._held().log_probs(x))

    def _held(self) -> HeldTeacher:
        return held_from(self.teacher, _draws_in(dict(self.named_buffers())))


def compact_approx(
    source: Source,
    x: Tensor,
    *,
    size: int = 50,
    pool: int | None = None,
    method: Method = "greedy",
    tries: int = 100_000,
    seed: int | None = None,
    progress: bool = True,
) -> OnePassPredictive:
    r"""Replace a posterior by the subset of its draws with the nearest mean.

    .. math::
        \min_{A \subset \{1..S\},\, |A| = K} \; \frac1N \sum_n \mathrm{KL}\Big(
        \frac1S \sum_s T(x_n; \theta_s) \,\Big\|\, \frac1K \sum_{s \in A} T(x_n; \theta_s)\Big)

    Only the mean is approximated: the spread of the subset is that of K draws chosen for their
    mean, and an answer costs K evaluations, not one. The divergence is exact for the pool at the
    inputs used, and in part is its noise: judge the result on other inputs.

    Args:
        source: Not a function that draws afresh, and no model with latents local to a row of ``x``.
        x: Inputs ``(N, *input_shape)``; a random part of them where S N C is more than 2^26.
        size: K.
        pool: S, draws to choose from: a random subset of those that are held. By default all that
            are held; 5000 of a posterior that draws afresh, fewer if their latents are more than
            2^28 numbers.
        method: "random", the paper's search, the best of ``tries`` random subsets; or "greedy", one
            draw after another, each the best of a few random candidates, and then swaps, place by
            place, among ever more candidates until none helps.
        tries: Subsets that are judged, at most, smaller ones on the way included.

    Returns:
        The drop-in with a :class:`CompactGuide`; read it from a file by :func:`load_compact`.
        ``fast.report`` has "kl" (nats, at the inputs used), "evaluations" (subsets judged) and the
        "indices" of the chosen draws among those held.

    Example:
        >>> weights = torch.randn(200, 2, 3, generator=torch.Generator().manual_seed(0))
        >>> posterior = lambda x: (x @ weights).softmax(-1)
        >>> x = torch.linspace(-1, 1, 20).reshape(10, 2)
        >>> fast = compact_approx(posterior, x, size=5, tries=500, seed=0, progress=False)
        >>> fast.distribution(x)
        Empirical(N: 10, C: 3)

    References:
        Snelson and Ghahramani (2005), Compact approximations to Bayesian predictive distributions.
        Cui, Yao, Li, Chan and Xue (2019), Sec. 4.2: 50 of 5000 draws, the best of 10^5 random
        subsets. The greedy search is this project's.
    """
    one_of("method", method, METHODS)
    check_bool("progress", progress)
    for name, value in (("size", size), ("tries", tries), ("pool", 1 if pool is None else pool)):
        positive_int(name, value)
    with seeded(seed), torch.no_grad():
        teacher = as_teacher(source)
        x = teacher.packed(x)
        held, places = _pool(teacher, x, pool)
        if size > held.size:
            raise ArgumentError(
                f"`size` must be at most {held.size}, the draws in the pool; got {size}. Choose "
                "fewer, or sample a longer posterior."
            )
        rows = max(1, TABLE_NUMBERS // (held.size * teacher.num_classes))
        some = x if len(x) <= rows else x[torch.randperm(len(x))[:rows].to(x.device)]
        with tqdm(total=tries, desc="subsets", disable=not progress) as bar:
            table = SubsetTable(held, some, bar)
            found = METHODS[method](table, size, tries)
        found = found.sort().values
        report = {
            "method": method,
            "kl": table.divergence(found),
            "evaluations": table.evaluations,
            "indices": places[found].tolist(),
            "size": size,
            "pool": held.size,
            "num_inputs": len(some),
            "seed": seed,
        }
        return student_of(CompactGuide(held.chosen(found)), teacher, x, report=report)


def load_compact(
    path: str | os.PathLike[str],
    source: Source,
    *,
    device: torch.device | str | None = None,
) -> OnePassPredictive:
    """Read what :func:`compact_approx` made and ``save`` wrote.

    The file holds the chosen draws. What evaluates them is a function or a network, which no file
    of tensors can hold, so ``source`` is needed again, with the same weights; of a ``Predictive``
    only the model: ``Predictive(model, num_samples=1)``.

    Args:
        device: Where to put the draws; the CPU by default.
    """
    tensors, _ = read_student(path)
    if not all(name.startswith(PREFIX) for name in tensors):
        raise ArgumentError(
            f"`path` must hold what compact_approx made; {str(path)!r} holds a student with "
            f"{sorted(tensors)[:3]}. Read it by OnePassPredictive.load."
        )
    teacher = as_teacher(source)
    held = held_from(teacher, _draws_in(tensors))
    inputs = teacher.options.inputs
    fast = OnePassPredictive.load(path, guide=CompactGuide(held), inputs=inputs, device=device)
    held.teacher.unpack_by(fast.form)
    _check_fits(fast, source)
    return fast


def _check_fits(fast: OnePassPredictive, source: Source) -> None:
    """Raise unless the source evaluates the draws, to the classes that the file names."""
    parts = source if isinstance(source, (list, tuple)) else [source]
    weights = [p for part in parts if isinstance(part, nn.Module) for p in part.parameters()]
    home = weights[0].device if weights else next(fast.guide.buffers()).device
    x = torch.full((2, *fast.input_shape), 0.5, device=home)
    try:
        with preserve_rng(), torch.no_grad():
            classes = fast.guide(x).event_shape[0]
    except RuntimeError as error:
        raise ArgumentError(
            f"`source` must evaluate the draws in the file; at inputs {tuple(x.shape)} it raised: "
            f"{str(error).splitlines()[0]}. Pass the source that they were chosen from."
        ) from error
    if classes != fast.num_classes:
        raise ArgumentError(
            f"`source` must have the {fast.num_classes} classes of the file; got {classes}. Pass "
            "the source that the draws were chosen from."
        )


def _draws_in(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """The draws by their own names, from the buffers or from a file."""
    return {
        name.removeprefix(PREFIX).replace("%2E", ".").replace("%25", "%"): value
        for name, value in buffers.items()
    }


def _pool(teacher: BaseTeacher, x: Tensor, count: int | None) -> tuple[HeldTeacher, Tensor]:
    """The draws to choose from, and their places among those that the source holds."""
    first = hold(teacher, x, 1)  # a function's draws are counted at the first call
    available = teacher.max_draws
    if available is None:
        if count is None:
            numbers = sum(value.numel() for value in first.tensors.values())
            count = max(1, min(POOL, POOL_NUMBERS // numbers))
        return hold(teacher, x, count), torch.arange(count)
    if count is not None and count > available:
        raise ArgumentError(
            f"`pool` must be at most {available}, the draws that the posterior holds; got {count}. "
            "Leave it out to choose among all of them."
        )
    held = hold(teacher, x)
    if count is None or count == available:
        return held, torch.arange(available)
    places = torch.randperm(available)[:count].sort().values
    return held.chosen(places), places
