r"""Uncertainty of a distribution on the simplex: closed forms, and the same from draws.

A *source* is a Dirichlet of batch shape ``(N,)``, another distribution on the simplex
(:mod:`pyro_opu.distributions`), or draws ``(S, N, C)`` of points of the simplex. Every measure
takes a source and returns one number per input, ``(N,)``, evaluated in float64 and rounded once to
the dtype of the source (float32 for half precision). On a Dirichlet the values are exact and
differentiable. On draws they are estimates over S, which each docstring states; measures of spread
need two draws.

The decomposition is that of Depeweg et al.: Decomposition of uncertainty in Bayesian deep learning
(2018), on a Dirichlet that of Malinin, Gales: Predictive uncertainty estimation via prior networks
(2018), section 4; its variance is in Kotz, Balakrishnan, Johnson: Continuous multivariate
distributions (2000), chapter 49.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, overload

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentTypeError, check_tensor
from pyro_opu.distributions import Answer, RealAnswer, SimplexDistribution
from pyro_opu.distributions.dirichlet import check_dirichlet
from pyro_opu.distributions.measures import DrawMeasures, Measures
from pyro_opu.rng import full_precision
from pyro_opu.utils.chunks import joined
from pyro_opu.utils.printing import Printed, averages

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "RegressionUncertainty",
    "Uncertainty",
    "aleatoric_uncertainty",
    "concentration",
    "differential_entropy",
    "entropy",
    "epistemic_uncertainty",
    "expected_pairwise_kl",
    "max_probability",
    "moment_concentration",
    "mutual_information",
    "total_uncertainty",
    "uncertainty",
    "variance",
]

Source = torch.distributions.Dirichlet | SimplexDistribution | Tensor


class Rows(NamedTuple):
    """Measures of a block of rows: their kind, and a function of names that gives values."""

    kind: str
    read: Callable[[Sequence[str]], Mapping[str, Tensor]]


class _Blocks:
    """What fills a table: the measures of its rows, block by block, in the modes of the call."""

    def __init__(self, blocks: Sequence[Rows], novelty: Callable[[], Tensor] | None) -> None:
        self.blocks, self.novelty = blocks, novelty
        self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @full_precision()
    def __call__(self, names: Sequence[str]) -> dict[str, Tensor]:
        if self.modes == (torch.is_grad_enabled(), torch.is_inference_mode_enabled()):
            return self._read(names)
        grad, inference = self.modes
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            return self._read(names)

    def _read(self, names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if "novelty" in names and self.novelty is not None:
            found["novelty"] = self.novelty()
        if measures := [name for name in names if name != "novelty"]:
            parts = [block.read(measures) for block in self.blocks]
            found |= {name: joined([part[name] for part in parts], 0) for name in measures}
        return found


class _Table(Printed):
    """Fields of a frozen dataclass, also found by name: ``u["total"]`` and ``dict(u)`` work.

    A table may be made of :class:`_Blocks`: a field is computed when it is first read, and kept.
    """

    __slots__ = ("_blocks",)
    aliases: ClassVar[tuple[str, ...]] = ()
    _blocks: _Blocks

    @classmethod
    def of_blocks(cls, blocks: _Blocks) -> Self:
        """A table whose measures, and novelty if there is one, are computed when they are read."""
        table = object.__new__(cls)
        object.__setattr__(table, "_blocks", blocks)
        lacks = ("quantiles",) if blocks.novelty else ("novelty", "quantiles")
        table.__dict__.update(dict.fromkeys(lacks))
        return table

    def __getattr__(self, name: str) -> Tensor:
        if name not in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__.update(self._blocks([name]))
        value: Tensor = self.__dict__[name]
        return value

    def keys(self) -> tuple[str, ...]:
        """Names of the fields."""
        names = (each.name for each in fields(self))  # type: ignore[arg-type]
        return tuple(name for name in names if self.__dict__.get(name, name) is not None)

    def __getitem__(self, name: str) -> Tensor:
        if name not in (*self.keys(), *self.aliases):
            raise KeyError(f"`name` is no measure {name!r}; there are {', '.join(self.keys())}")
        value: Tensor = getattr(self, name)
        return value

    def to_dict(self) -> dict[str, Tensor]:
        """The fields as a plain dictionary; what has not been read is computed together."""
        if unread := [name for name in self.keys() if name not in self.__dict__]:
            self.__dict__.update(self._blocks(unread))
        return {name: self.__dict__[name] for name in self.keys()}

    def __getstate__(self) -> dict[str, Any]:
        """Values alone are copied and pickled."""
        return self.__dict__ | self.to_dict()

    def __repr__(self) -> str:
        shape = self["total"].shape  # not that of class probabilities, whose average says nothing
        shown = {name: value for name, value in self.to_dict().items() if value.shape == shape}
        return f"{type(self).__name__}(shape {tuple(shape)}, means: {averages(shown)})"


def _none() -> None:
    """The value of a field that a table lacks; a default would hide that it may be read later."""


@dataclass(frozen=True, eq=False, repr=False)
class Uncertainty(_Table):
    """The mean and every measure of one source, by the functions of these names in `pyro_opu`.

    Measures are ``(N,)``.

    A closed form is computed when it is first read, so that ``u.epistemic`` alone costs what that
    does; ``to_dict`` computes together what is left. ``u["total"]`` and ``dict(u)`` work too;
    ``entropy`` is ``total``, ``mutual_information`` is ``epistemic``. Entropies, informations and
    divergences are in nats.

    Attributes:
        mean: Class probabilities ``(N, C)``.
        total: Entropy of the mean.
        aleatoric: Expected entropy.
        epistemic: ``total - aleatoric``.
        expected_pairwise_kl: Divergence between two draws.
        variance: Summed over classes.
        max_probability: Largest component of the mean.
        differential_entropy: Entropy of the density on the simplex.
        concentration: Sum of the Dirichlet's parameters.
        novelty: How far an input lies outside what a student was taught; of ``fast.uncertainty(x)``
            alone, and no key where there is none (:meth:`.OnePassPredictive.novelty`). It looks at
            x once more, which must be as it was.
        quantiles: ``(Q, N, C)`` of class probabilities over the draws; of
            ``exact(...).uncertainty(x)`` alone, where they are asked for.
    """

    aliases = ("entropy", "mutual_information")
    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    expected_pairwise_kl: Tensor
    variance: Tensor
    max_probability: Tensor
    differential_entropy: Tensor
    concentration: Tensor
    novelty: Tensor | None = field(default_factory=_none)
    quantiles: Tensor | None = field(default_factory=_none)

    entropy = property(attrgetter("total"), doc="The usual name of ``total``.")
    mutual_information = property(attrgetter("epistemic"), doc="Another name of ``epistemic``.")


@dataclass(frozen=True, eq=False, repr=False)
class RegressionUncertainty(_Table):
    """Mean and variances of y at every input, ``(N,)`` each; ``u["total"]`` works too.

    Attributes:
        mean: The mean of y, ``(N,)``, in its units.
        total: Variance of y, ``aleatoric + epistemic``, ``(N,)``, in units of y squared.
        aleatoric: Mean variance of the noise, ``(N,)``: what remains if the parameters were known.
        epistemic: Variance of the mean between posterior draws, ``(N,)``: what more data would
            take away.
        novelty: See ``Uncertainty``.
        quantiles: ``(Q, N)`` of the mean over the draws, as there.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    novelty: Tensor | None = field(default_factory=_none)
    quantiles: Tensor | None = field(default_factory=_none)


#: Tables by the ``kind`` of the measures that fill them.
_TABLES: dict[str, Any] = {"classes": Uncertainty, "real": RegressionUncertainty}


def _checked(source: Source | RealAnswer) -> Answer:
    if isinstance(source, torch.distributions.Dirichlet):
        return check_dirichlet("source", source)
    if isinstance(source, Answer):
        return source
    raise ArgumentTypeError(
        "`source` must be a Dirichlet or a tensor of draws (S, N, C); got "
        f"{type(source).__name__}. For a student pass student.dirichlet(x), for a teacher "
        "teacher.probs(x)."
    )


def _measure(source: Source, name: str) -> Tensor:
    if isinstance(source, Tensor):
        return DrawMeasures(source).rounded([name])[name]
    return _checked(source).measures().rounded([name])[name]


@overload
def uncertainty(source: Source) -> Uncertainty: ...
@overload
def uncertainty(source: RealAnswer) -> RegressionUncertainty: ...
def uncertainty(source: Source | RealAnswer) -> Uncertainty | RegressionUncertainty:
    """Every measure at once, of class probabilities or of a real y.

    Args:
        source: A Dirichlet of batch shape ``(N,)``, another distribution on the simplex, draws
            ``(S, N, C)``, S >= 2, or what a regression student answers with.

    Returns:
        An :class:`~pyro_opu.metrics.uncertainty.Uncertainty` of ``(N,)`` tensors, or the
        :class:`~pyro_opu.metrics.uncertainty.RegressionUncertainty` of a real y.

    Raises:
        ValueError: Draws are not ``(S, N, C)``, not on the simplex, NaN, or fewer than 2.
        TypeError: ``source`` is neither a distribution on the simplex nor a tensor.

    Example:
        >>> u = uncertainty(torch.distributions.Dirichlet(torch.tensor([[90.0, 10.0], [0.9, 0.1]])))
        >>> u.total  # the same mean, the same total
        tensor([0.3251, 0.3251])
        >>> u.epistemic  # but little of it, or most of it, would go with more data
        tensor([0.0049, 0.1805])
    """
    if isinstance(source, Tensor):
        return table_of(DrawMeasures(source))
    return table_by_blocks([rows_of(_checked(source), alone=True)])


def table_of(measures: Measures) -> Any:
    """All measures of one source, rounded, as a table."""
    table = _TABLES[measures.kind]
    return table(**measures.rounded(_names(table)))


def rows_of(answer: Answer, *, alone: bool) -> Rows:
    """What a table reads of an answer.

    Beside other blocks nothing is kept but the answer, of which measures that are closed forms are
    computed when they are asked for, and others at once.
    """
    if answer.closed_form and not alone:
        kind = answer.measures().kind
        return Rows(kind, lambda names: answer.measures().rounded(names))
    measures = answer.measures()
    if alone:
        return Rows(measures.kind, measures.rounded)
    found = measures.rounded(_names(_TABLES[measures.kind]))
    return Rows(measures.kind, lambda names: found)


def table_by_blocks(blocks: Sequence[Rows], novelty: Callable[[], Tensor] | None = None) -> Any:
    """A table of successive rows, whose fields are computed when they are read."""
    return _TABLES[blocks[0].kind].of_blocks(_Blocks(blocks, novelty))


@cache
def _names(table: Any) -> tuple[str, ...]:
    """Measures that a table always has."""
    return tuple(each.name for each in fields(table) if each.default_factory is MISSING)


def total_uncertainty(source: Source) -> Tensor:
    r"""Entropy of the mean, :math:`H[\mathrm{E}\pi] = -\sum_k m_k\log m_k`, nats, ``(N,)``.

    ``source`` and errors are those of :func:`~pyro_opu.uncertainty`; one draw is enough.

    Example:
        >>> total_uncertainty(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931])
    """
    return _measure(source, "total")


entropy = total_uncertainty


def aleatoric_uncertainty(source: Source) -> Tensor:
    r"""Expected entropy, what remains once the parameters are known, nats, ``(N,)``.

    :math:`\mathrm{E}\,H[\pi] = \psi(\alpha_0 + 1) - \sum_k m_k\,\psi(\alpha_k + 1)`. On draws: the
    average of their entropies, with 0 log 0 = 0; one draw is enough. ``source`` and errors are
    those of :func:`~pyro_opu.uncertainty`.

    Example:
        >>> aleatoric_uncertainty(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.])
    """
    return _measure(source, "aleatoric")


def epistemic_uncertainty(source: Source) -> Tensor:
    r"""Mutual information of label and parameters, nats, ``(N,)``; never below zero.

    :math:`H[\mathrm{E}\pi] - \mathrm{E}\,H[\pi] = \sum_k m_k\,\delta(\alpha_k) - \delta(\alpha_0)`,
    with :math:`\delta(a) = \psi(a + 1) - \log a = \tfrac{1}{2a} - \tfrac{1}{12a^2} + \dots`, in
    which nothing cancels: it tends to :math:`(C-1)/(2\alpha_0)` at large concentration, to
    :math:`H[m]` at small. On draws: the plug-in difference, low by about 1/S of it in expectation.
    ``source`` and errors are those of :func:`~pyro_opu.uncertainty`.

    Example:
        >>> epistemic_uncertainty(torch.distributions.Dirichlet(torch.tensor([5e7, 5e7])))
        tensor(5.0000e-09)
    """
    return _measure(source, "epistemic")


mutual_information = epistemic_uncertainty


def expected_pairwise_kl(source: Source) -> Tensor:
    r"""Expected divergence between two independent draws, nats, ``(N,)``.

    :math:`\mathrm{E}\,KL(\pi\,\|\,\pi') = (C - 1)/\alpha_0`. On draws: the average over pairs of
    different draws (unbiased), with probabilities raised to the smallest normal number of their
    dtype, so that in float32 no pair counts for more than 87. ``source`` and errors are those of
    :func:`~pyro_opu.uncertainty`.

    Example:
        >>> expected_pairwise_kl(torch.distributions.Dirichlet(torch.tensor([2.0, 3.0, 5.0])))
        tensor(0.2000)
    """
    return _measure(source, "expected_pairwise_kl")


def variance(source: Source) -> Tensor:
    r"""Variance summed over classes, :math:`(1-\sum_k m_k^2)/(\alpha_0+1)`, ``(N,)``.

    On draws: the unbiased sample variance. ``source`` and errors are those of
    :func:`~pyro_opu.uncertainty`.

    Example:
        >>> variance(torch.distributions.Dirichlet(torch.tensor([1.0, 1.0])))
        tensor(0.1667)
    """
    return _measure(source, "variance")


def max_probability(source: Source) -> Tensor:
    r"""Largest component of the mean, :math:`\max_k m_k`, ``(N,)``: large where certain.

    ``source`` and errors are those of :func:`~pyro_opu.uncertainty`; one draw is enough.

    Example:
        >>> max_probability(torch.distributions.Dirichlet(torch.tensor([1.0, 3.0])))
        tensor(0.7500)
    """
    return _measure(source, "max_probability")


def differential_entropy(source: Source) -> Tensor:
    r"""Entropy of the density on the simplex, nats, ``(N,)``: negative without bound where certain.

    :math:`\log B(\alpha) + (\alpha_0-C)\,\psi(\alpha_0) - \sum_k(\alpha_k-1)\,\psi(\alpha_k)`. On
    draws: that of the Dirichlet with the same moments; minus infinity when the draws are all
    equal, all corners, or without one of the classes. ``source`` and errors are those of
    :func:`~pyro_opu.uncertainty`.

    Example:
        >>> differential_entropy(torch.distributions.Dirichlet(torch.ones(3)))  # log of 1/2
        tensor(-0.6931)
    """
    return _measure(source, "differential_entropy")


def concentration(source: Source) -> Tensor:
    r"""Concentration :math:`\alpha_0 = \sum_k\alpha_k`, ``(N,)``, large where certain.

    On draws: :func:`~pyro_opu.metrics.uncertainty.moment_concentration`. ``source`` and errors are
    those of :func:`~pyro_opu.uncertainty`.

    Example:
        >>> concentration(torch.distributions.Dirichlet(torch.tensor([1.0, 3.0])))
        tensor(4.)
    """
    return _measure(source, "concentration")


def moment_concentration(draws: Tensor) -> Tensor:
    r"""Concentration of the Dirichlet with the mean and summed variance of draws, ``(N,)``.

    :math:`\alpha_0 = B / A`, with A the summed sample variance and :math:`B = 1 -
    \mathrm{mean}_s\,\pi_s\cdot\pi_s`, unbiased for :math:`(1-\sum m^2)/(\alpha_0+1)` and for
    :math:`\alpha_0` times that. It is 0 when all draws are corners, infinite when all are equal.

    Args:
        draws: Points of the simplex, ``(S, N, C)``, S >= 2.

    Example:
        >>> moment_concentration(torch.tensor([[[0.6, 0.4]], [[0.4, 0.6]]]))
        tensor([12.0000])
    """
    advice = "For the concentration of a Dirichlet use concentration(dirichlet)."
    return concentration(check_tensor("draws", draws, "(S, N, C)", advice))
