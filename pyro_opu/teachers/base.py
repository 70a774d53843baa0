"""What a teacher is: draws of class probabilities from a posterior, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentCallError, ArgumentError, lent, positive_int
from pyro_opu.inputs import PLAIN, Form, form_of
from pyro_opu.parts import Outcome, SiteLayout
from pyro_opu.parts.sites import layouts_of
from pyro_opu.parts.values import read_values
from pyro_opu.programs.agreement import close
from pyro_opu.programs.cost import Cost, Meter, counted, metered
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.programs.posterior import ALONE, PosteriorProgram
from pyro_opu.programs.recorder import NotRecorded
from pyro_opu.programs.signature import ANY
from pyro_opu.programs.vmap_rewrites import MOST_COLUMNS
from pyro_opu.rng import full_precision, preserve_rng, seeded
from pyro_opu.teachers.options import SourceOptions
from pyro_opu.utils.chunks import joined, numbers_at_once, some_rows
from pyro_opu.utils.warnings import warn_user

#: Draws taken by default from a posterior that can give any number of them.
DEFAULT_DRAWS = 500


@runtime_checkable
class Teacher(Protocol):
    r"""A posterior as draws on the simplex, :math:`\pi_s = T(x; \theta_s)`.

    Draws are joint over inputs: draw ``s`` uses one :math:`\theta_s` for all rows of ``x``, where
    the posterior allows it. Anything with these three members is a teacher, and
    :func:`~pyro_opu.as_teacher` makes one from any posterior.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes ``C``."""

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Class probabilities ``(S, N, C)`` at the inputs ``x`` ``(N, ...)``."""

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Their logarithms ``(S, N, C)``, accurate near the corners of the simplex."""


class Picked(Protocol):
    """Chosen draws; a slice of them are some."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Self: ...


D = TypeVar("D", bound=Picked)


class BaseTeacher(Teacher, Generic[D]):
    """Base of all teachers: it picks draws, evaluates them in chunks and checks the results.

    A subclass says how to pick draws (``_pick``) and how to evaluate some of them at some
    inputs (``_evaluate``), or gives all draws at once (``_blocks``). What the K numbers that a draw
    says of an input mean, its outcome knows, once the teacher has seen an input.

    Attributes:
        max_draws: How many draws the posterior holds, or ``None`` where every call draws afresh.
        default_draws: Draws taken when ``num_draws`` is not given.
        chunk_size: Numbers in the widest tensor of one evaluation, which bounds memory; by default
            as many as the device is busy with.
        max_rows: The most inputs of one evaluation, or ``None``.
    """

    #: Whether the draws that it holds may be those of a sampler's chains, in order.
    of_chains: ClassVar[bool] = False
    #: Whether its answers are constant in pieces by their kind, and take any number.
    in_steps: bool = False
    #: Whether it is given the names of categories, and not their numbers.
    reads_names: ClassVar[bool] = False
    max_draws: int | None = None
    #: Whether ``max_draws`` is known only after the first call.
    uncounted = False
    default_draws: int = DEFAULT_DRAWS
    chunk_size: int | None = None
    max_rows: int | None = None
    form: Form = PLAIN  # of the inputs
    options = SourceOptions()  # what was said to ``as_teacher``, which made it
    latents: Mapping[str, str] = {}  # that the posterior lacks, by what becomes of them
    seconds: float = 0.0  # of all calls so far; on a GPU, until they were queued
    queries: int = 0  # evaluations of a draw at an input in all calls so far
    _asked: int = 0
    _summed: int = 0  # the last call in which some rows have been added up
    _cost: Cost | None = None
    _apart: bool | None = None  # whether rows may be asked about in blocks, once that is known
    _outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """What is observed; known once the teacher has seen an input."""
        if self._outcome is None:
            raise unseen("outcome")
        return self._outcome

    @property
    def is_known(self) -> bool:
        """Whether the outcome is."""
        return self._outcome is not None

    @property
    def num_classes(self) -> int:
        """Number of classes ``C``."""
        if self._outcome is None:
            raise unseen("num_classes")
        self._outcome.check_classes("a posterior")
        return self._outcome.num_outputs

    @property
    def num_outputs(self) -> int:
        """Numbers K that a draw says of an input; known once the teacher has seen one."""
        return self.outcome.num_outputs

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the arguments of what is called, ``"**"`` where it takes any; often none."""
        return ()

    @property
    def named_form(self) -> Form:
        """The form of the inputs, called as the arguments are."""
        return self.form.named([name for name in self.argument_names if name != ANY])

    def draws(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """What joint posterior draws say of the inputs, ``(S, N, K)``.

        Class probabilities; or the mean :math:`f_s(x)` of a real y, in its units, and the logarithm
        of the noise's standard deviation, :math:`\\log\\sigma_s(x)`; or those of all sites, side by
        side.
        """
        said = self.streamed(x, num_draws)  # after which the outcome is known
        return self.outcome.plain(said)

    def streamed(self, x: object, num_draws: int | None = None) -> Tensor:
        """All that :meth:`stream` gives, ``(S, N, K)``."""
        return joined(list(self.stream(x, num_draws)), 1)

    def draws_apart(self, x: Tensor, num_draws: int) -> Tensor:
        """:meth:`draws` of a call each, where they are drawn afresh."""
        if self.max_draws is not None:
            return self.draws(x, num_draws)
        return torch.cat([self.draws(x, 1) for _ in range(num_draws)])

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Class probabilities ``(S, N, C)``; see :meth:`log_probs`."""
        return self.log_probs(x, num_draws).exp_()

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        """Log class probabilities ``(S, N, C)`` of joint posterior draws.

        Args:
            x: Inputs ``(N, ...)``, floating and finite.
            num_draws: S, at most as many as the posterior holds; fewer are a random subset without
                replacement. By default all of them.

        Raises:
            TypeError: ``x`` is not a floating tensor; what is observed is no class label.
            ValueError: bad ``x`` or ``num_draws``; the model does not give class probabilities.
        """
        found = self.streamed(x, num_draws)
        self.outcome.check_classes("a posterior")
        return found

    def prepare(self, x: Tensor) -> None:
        """Know the outcome, by a look at two rows under a draw where no one has looked."""
        if self._outcome is None:
            with preserve_rng():
                self.look(x[:2], None, 1)

    def finish(self, x: Tensor, num_draws: int | None = None) -> None:
        """Know all that is to be known: outcome, classes, draws, sites and cost.

        ``num_draws`` are looked at of a teacher that draws afresh; by default all that it gives.
        """
        self.look(x[:2], None, None if self.max_draws else num_draws)

    def layouts(
        self, x: Tensor, return_sites: Collection[str] | None = None
    ) -> tuple[SiteLayout, ...]:
        """The sites that a student of this teacher gives back."""
        self.warn_of_laws()
        return layouts_of(self.outcome, x, return_sites)

    def warn_of_laws(self) -> None:
        """Say what a student will not keep of the distributions that are observed."""

    def codes(self, x: Tensor) -> list[int]:
        """Columns that it reads as codes although they are numbers, beside indices."""
        return []

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """Networks that a student may begin with, none where the posterior is over no network."""
        return []

    def posterior_program(self, x: Tensor, num_draws: int | None = None) -> PosteriorProgram:
        """The answers as a program of (draws, inputs), and draws that are picked now.

        The teacher has seen an input. What the program gives are the numbers of :meth:`stream`.

        Raises:
            NotRecorded: they are no program of tensors, and why.
        """
        if type(self)._pick is BaseTeacher._pick:
            raise NotRecorded(f"{self!r} holds its draws inside: there is no program of them")
        return self._as_program(self._pick(x, self._checked(num_draws)), x)

    def _as_program(self, draws: D, x: Tensor) -> PosteriorProgram:
        """:meth:`posterior_program` under picked draws."""
        raise NotRecorded(f"{self!r} is no program of tensors")

    def _pick(self, x: Tensor, num_draws: int) -> D:
        """Choose ``num_draws`` draws."""
        raise NotImplementedError

    def _evaluate(self, draws: D, x: Tensor) -> Tensor:
        """What the chosen draws say of the inputs, ``(s, n, K)``."""
        raise NotImplementedError

    def _check_output(self, draws: Tensor, rows: int) -> Tensor:
        """Refuse what cannot be draws ``(s, rows, K)``, of classes where nothing else is known."""
        outcome = self._outcome or Outcome.of_teacher(draws.shape[-1])
        sums, self._summed = self._summed != self._asked, self._asked
        checked = outcome.checked(draws, rows, sums)
        self._outcome = outcome
        return checked

    def _read(self, values: object, rows: int) -> Tensor:
        """Draws that a function returned, by which the outcome is known."""
        outcome, draws = read_values(values, rows)
        self._outcome = outcome if self._outcome is None else self._outcome
        return draws

    def __repr__(self) -> str:
        shown = [self._source_text(), self._draws_text(), self._answer_text()]
        return f"{type(self).__name__}({', '.join(text for text in shown if text)})"

    def _source_text(self) -> str:
        """The source, for the printed form."""
        return ""

    def _draws_text(self) -> str:
        if self.max_draws is None:
            return f"fresh draws, {self.default_draws} by default"
        return f"{self.max_draws} draws"

    def _answer_text(self) -> str:
        return "outcome unknown yet" if self._outcome is None else str(self._outcome)

    def unpack_by(self, form: Form) -> None:
        """Give the model its inputs in this form, from one tensor, from now on."""
        if self.form == PLAIN and form != PLAIN:
            if form.implied and not self.reads_names:
                warn_user(
                    f"`x` holds text in {form.implied}, which is numbered by the alphabet, and so "
                    "must be what the model was fitted to. Pass Inputs.of(table) of that table, or "
                    "its inputs.like(x)."
                )
            self.form = form
            self._unpack_by(form)

    def _unpack_by(self, form: Form) -> None:
        """Let the model be called with ``form.call(x)``."""
        raise NotImplementedError

    def packed(self, x: object) -> Tensor:
        """Checked inputs as one tensor of no graph."""
        if self.form == PLAIN:
            self.unpack_by(form_of(x))
        return self.form.pack(x).detach()

    @torch.no_grad()
    def stream(self, x: object, num_draws: int | None = None) -> Iterator[Tensor]:
        """The same draws for successive blocks of inputs, ``(S, n, C)`` each, in bounded memory."""
        x = self.packed(x)
        with self._at_call(x, num_draws):
            for block in self._blocks(x, num_draws):
                yield block.clone() if block.is_inference() else block

    @contextmanager
    def _at_call(self, x: Tensor, num_draws: int | None) -> Iterator[None]:
        """Count and time the call; add to an error which call of which source raised it."""
        self._asked, begun = self._asked + 1, time.perf_counter()
        try:
            yield
        except ArgumentError as error:
            if self._asked == 1 or error.located:
                raise
            text = f"{error} ({self!r} {self._where(x, num_draws)}.)"
            raise type(error)(text, located=True) from error
        except Exception as error:
            if type(error).__module__ != "builtins":  # such as torch.OutOfMemoryError: to be caught
                raise
            reason = (str(error).splitlines() or [""])[0][:300].rstrip(".")
            raise ArgumentCallError(
                f"`source`, a {self!r}, must answer at any number of rows; it raised "
                f"{type(error).__name__}: {reason}, {self._where(x, num_draws)}. {self._advice()}",
                located=True,
            ) from error
        finally:
            self.seconds += time.perf_counter() - begun

    def _where(self, x: Tensor, num_draws: int | None) -> str:
        asked = f"for {num_draws or 'all'} draws at x {tuple(x.shape)} {x.dtype}"
        return f"at call {self._asked}, {asked}"

    def _advice(self) -> str:
        """What to do where the model cannot be run."""
        return self.form.advice or "Try it there by itself."

    def _blocks(self, x: Tensor, num_draws: int | None) -> Iterator[Tensor]:
        """:meth:`stream` at inputs that have been checked."""
        yield from self._answers(self._pick(x, self._checked(num_draws)), x)

    def look(self, x: Tensor, draws: D | None = None, num_draws: int | None = None) -> None:
        """Ask at a few inputs, under all draws, so many or those picked: it is all known then."""
        with self._at_call(x, num_draws):
            for _ in self._blocks(x, num_draws) if draws is None else self._answers(draws, x):
                pass

    def _answers(self, draws: D, x: Tensor) -> Iterator[Tensor]:
        """What picked draws say of the inputs, block by block."""
        cost = self._measured(draws, x)
        width, numbers = cost.width, self._numbers(x)
        at_once = max(1, numbers // width)  # draws times rows
        # Inputs that fill a chunk by themselves keep the machine busy with one draw after another;
        # only thin products are faster for several draws together.
        alone = len(x) >= at_once and width > MOST_COLUMNS
        rows = at_once if alone else max(1, min(at_once // 4, numbers // cost.alone))
        rows = min(rows, self.max_rows or rows)
        if len(x) > rows and not self._says_apart(draws[:1], x):
            rows = len(x)
        self.queries += len(x) * len(draws)
        for block in x.split(rows):
            step = max(1, at_once // len(block))
            with full_precision(), lent(block) as own:
                parts = [
                    self._check_output(self._evaluate(draws[start : start + step], own), len(own))
                    for start in range(0, len(draws), step)
                ]
            yield joined(parts, dim=0)

    def _says_apart(self, draws: D, x: Tensor) -> bool:
        """Whether some rows say together what fewer do, or say something else in every call."""
        if self._apart is None:
            rows = x[:: -(-len(x) // ALONE)].clone()
            parts = []
            for seed, blocks in enumerate([(rows,), (rows,), rows.chunk(2)]):
                with seeded(min(seed, 1)):
                    parts.append(torch.cat([self._evaluate(draws, block) for block in blocks], 1))
            whole, again, apart = parts
            self._apart = close(apart, again) or not close(whole, again)
        return self._apart

    def _numbers(self, x: Tensor) -> int:
        """Numbers in the widest tensor of one evaluation at these inputs."""
        return self.chunk_size or numbers_at_once(x.device)

    @torch.no_grad()
    def operations(self, x: Tensor) -> int | None:
        """Floating-point operations of a draw per input, or ``None`` where that is not known."""
        with counted():
            if self._cost is None or not self._cost.serves(x.shape[1:]):
                with preserve_rng():
                    self._measured(self._pick(x, min(2, self.max_draws or 2)), x)
            assert self._cost is not None
            return self._cost.operations

    def _checked(self, num_draws: int | None) -> int:
        if num_draws is None:
            return self.default_draws if self.max_draws is None else self.max_draws
        num_draws = positive_int(
            "num_draws", num_draws, advice="Leave it out to take all draws of the posterior."
        )
        if self.max_draws is not None and num_draws > self.max_draws:
            raise ArgumentError(
                f"`num_draws` must be at most {self.max_draws}, the draws that the posterior "
                f"holds; got {num_draws}. Ask for fewer, or sample a longer posterior."
            )
        return num_draws

    def _measured(self, draws: D, x: Tensor) -> Cost:
        """Cost of a draw at an input like these, measured once at two and at three rows."""
        if self._cost is None or not self._cost.serves(x.shape[1:]):
            with preserve_rng():
                two, three, outputs = self._meters(draws, x)
            self._cost = Cost.of(x.shape[1:], two, three, outputs)
        return self._cost

    def _meters(self, draws: D, x: Tensor) -> tuple[Meter, Meter, int]:
        """Meters of one draw at two and at three rows, and K."""
        self.queries += 5
        with metered() as three:
            self._evaluate(draws[:1], some_rows(x, 3))
        with metered() as two:
            outputs = self._evaluate(draws[:1], some_rows(x, 2)).shape[-1]
        return two, three, outputs


def unseen(what: str) -> AttributeError:
    """The error for what is asked before the teacher has seen an input."""
    return AttributeError(
        f"{what} is not known before the teacher has seen an input; call .probs(x[:1]) once first."
    )
