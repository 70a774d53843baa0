"""Networks as teachers: Monte Carlo dropout, and ensembles or snapshots of a sampler."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pyro_opu.checks import ArgumentError, instance_of
from pyro_opu.inputs import Form, Unpacked
from pyro_opu.programs.agreement import close
from pyro_opu.programs.cost import Cost, Meter, metered
from pyro_opu.programs.plug_in import CANDIDATES, PlugIn, plug_in_draws
from pyro_opu.programs.posterior import SAID, PosteriorProgram
from pyro_opu.programs.recorder import NotRecorded
from pyro_opu.programs.samples import choose
from pyro_opu.programs.sites import are_probs, log_probs_of_output, logits_of, normalised
from pyro_opu.programs.vmap import Batched, Draws, vectorized
from pyro_opu.rng import evaluating, preserve_rng, seeded
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.classifiers import WithLogits, as_classifier
from pyro_opu.teachers.masks import Thinned
from pyro_opu.teachers.shared import SharedMasks, given_by
from pyro_opu.teachers.training_mode import RandomCalls, compare_spreads
from pyro_opu.utils.chunks import some_rows

#: Products of a draw in its largest layer from which on its dropped units are left out: below it
#: many draws at once are as fast.
THINNED = 2**25
#: Error of logits that are taken for affine, as a share of the largest: rounding.
AFFINE = 1e-4
#: Evaluations of a draw at an input from which on the spread is compared with training mode, which
#: takes a quarter as many.
COMPARED = 4096


class DropoutTeacher(BaseTeacher[Tensor]):
    r"""A network with dropout: draw ``s`` is one set of masks, used for all rows of ``x``.

    .. math::
        \pi_s = \mathrm{softmax}\, f(x;\, \theta \odot m_s), \quad
        m_s \sim \mathrm{Bernoulli}(1 - p)

    What the module draws at random in training mode, whatever mode it is in, is given by the draw:
    dropout, in attention too, stochastic depth, RReLU, Bernoulli, uniform and normal noise. Parts
    that draw nothing run in evaluation mode. A draw is the seed of its masks, so the batched
    evaluation equals the loop, in any chunking. What cannot be given from outside, such as dropout
    inside recurrent layers, is refused by the name of the part, and once it has given 4,096 answers
    the spread is compared with that of passes in training mode.

    Args:
        module: ``x (N, ...) -> logits (N, C)`` (log-probabilities and probabilities do too).

    References:
        Gal and Ghahramani (2016), Dropout as a Bayesian approximation.
    """

    of_classes = False  # whether that is known

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._random: dict[torch.Size, RandomCalls] = {}  # by the shape of an input
        self._compared = False
        self._run = Batched("the dropout network")
        self._thinned: bool | None = None  # whether thinned networks answer alike, once compared

    def _source_text(self) -> str:
        return type(self.module).__name__

    def _unpack_by(self, form: Form) -> None:
        self.module = Unpacked(self.module, form)

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The network under draws of its noise, where logits are affine in that, and without."""
        noisy = self._under_noise(x)
        return [*([] if noisy is None else [noisy]), _plug_in([self.module], x)]

    def _under_noise(self, x: Tensor) -> PlugIn | None:
        """The network as a function of what it draws at random, where its logits are affine in it.

        Others' noise reaches every trunk; they are not recorded twice.
        """
        self._measured(self._pick(x, 2), x)
        found, few = self._random[x.shape[1:]], some_rows(x, 2)
        probs = self._gives_probs(few)

        def log_probs(drawn: Mapping[str, Tensor], x: Tensor) -> Tensor:
            with found.running():
                return normalised(logits_of(self._under(dict(drawn), x)), probs)

        size = plug_in_draws(self._drawn(torch.arange(1), x), None)
        drawn = self._drawn(self._pick(x, size), x)
        draws = {name: value.float() for name, value in drawn.items()}
        middle = {
            name: torch.full_like(value[0], call.middle)
            for (name, value), call in zip(draws.items(), found.calls, strict=True)
        }
        away = {name: draws[name][0] - value for name, value in middle.items()}
        with torch.no_grad():
            less, at, more = (
                log_probs({name: value + times * away[name] for name, value in middle.items()}, few)
                for times in (-1.0, 0.0, 1.0)
            )
        bent = less + more - 2 * at
        bent = bent - bent.mean(-1, keepdim=True)
        affine = bool((bent.abs() <= AFFINE * (1 + at.abs().amax())).all())
        return PlugIn(log_probs, [middle], draws, of_noise=True) if affine else None

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        if not self.of_classes:
            self.module, self.of_classes = as_classifier(self.module, x), True
        return torch.randint(2**62, (num_draws,))

    def _measured(self, draws: Tensor, x: Tensor) -> Cost:
        """Also finds what is random, once."""
        if x.shape[1:] not in self._random:
            self._random[x.shape[1:]] = RandomCalls.of(self.module, x, log_probs_of_output)
        cost = super()._measured(draws, x)
        if cost.operations is None or cost.together or len(draws) == 1:
            return cost
        with preserve_rng():
            self._evaluate(draws[:2], some_rows(x, 2))  # which may be compared with the loop
            with metered() as two:
                self._evaluate(draws[:2], some_rows(x, 2))
        more = cost.under(2, two, two).operations if self._run.use_vmap else cost.operations
        self._cost = replace(cost, operations=more, together=True)
        return self._cost

    def _compare(self, x: Tensor, at_once: int) -> None:
        def probs(num_draws: int, rows: Tensor) -> Tensor:
            seeds = self._pick(rows, num_draws).split(max(1, at_once // len(rows)))
            return torch.cat([self._evaluate(some, rows) for some in seeds]).exp()

        found = self._random[x.shape[1:]]
        with seeded(0):
            compare_spreads(found, probs, log_probs_of_output, x, at_once)

    def _answers(self, draws: Tensor, x: Tensor) -> Iterator[Tensor]:
        """All draws at once where many operations are saved by leaving out dropped units."""
        cost = self._measured(draws, x)
        if not self._compared and self.queries + len(x) * len(draws) >= COMPARED:
            self._compared = True
            self._compare(x, max(1, self._numbers(x) // cost.width))
        if not self._thins(draws, x):
            yield from super()._answers(draws, x)
            return
        self.queries += len(x) * len(draws)
        for block in x.split(max(1, self._numbers(x) // cost.width)):
            yield self._check_output(self._evaluate_thinned(draws, block), len(block))

    def _thins(self, draws: Tensor, x: Tensor) -> bool:
        """Whether thinned networks are faster, and answer as whole ones, compared once."""
        width = self._measured(draws, x).width  # of a map the places, times its channels
        weights = (weight for weight in self.module.parameters() if weight.ndim > 1)
        widest = max(
            (w[0].numel() * (len(w) if w.ndim == 2 else width) for w in weights), default=0
        )
        if x.is_cuda or len(x) * widest < THINNED:
            return False
        if self._thinned is None:
            few = draws[:2], some_rows(x, 2)
            expected = self._evaluate(*few)
            try:
                self._thinned = close(self._evaluate_thinned(*few), expected)
            except Exception:  # noqa: BLE001 - whatever they cannot do, the whole network can
                self._thinned = False
        return self._thinned

    def _evaluate_thinned(self, draws: Tensor, x: Tensor) -> Tensor:
        thinned = Thinned((x, *self.module.parameters(), *self.module.buffers()))
        found = self._random[x.shape[1:]]
        with found.running(), thinned.skipping(self.module):
            answers = [
                thinned.run(self.module, x, given_by(found.calls, found.drawn(seed)))
                for seed in draws.tolist()
            ]
        return log_probs_of_output(torch.stack(answers))

    def _as_program(self, draws: Tensor, x: Tensor) -> PosteriorProgram:
        self._measured(draws, x)
        found = self._random[x.shape[1:]]
        probs = self._gives_probs(some_rows(x, 2))

        def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
            (x,) = inputs
            with found.running():
                answers = vectorized(lambda drawn: logits_of(self._under(drawn, x)), draws)
            return {SAID: normalised(answers, probs)}

        return PosteriorProgram(program, self._drawn(draws, x))

    def _gives_probs(self, x: Tensor) -> bool:
        """Whether the network answers with probabilities."""
        with self._random[x.shape[1:]].running(), SharedMasks():
            return are_probs(logits_of(self.module(x)))

    def _drawn(self, draws: Tensor, x: Tensor) -> Draws:
        """What the draws, seeds, give to the random calls, ``(S, ...)`` of each."""
        found = self._random[x.shape[1:]]
        by_call = enumerate(zip(*(found.drawn(seed) for seed in draws.tolist()), strict=True))
        return {str(call): torch.stack(each).to(x.device) for call, each in by_call}

    def _under(self, drawn: Draws, x: Tensor) -> Any:
        """What the network returns where its random calls are given these."""
        with SharedMasks(given_by(self._random[x.shape[1:]].calls, drawn.values())):
            return self.module(x)

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        with self._random[x.shape[1:]].running():
            drawn = self._drawn(draws, x)
            return log_probs_of_output(self._run(lambda each: self._under(each, x), drawn, x))


class EnsembleTeacher(BaseTeacher[Tensor]):
    r"""A sequence of networks, each one draw: an ensemble, or snapshots of SGLD.

    .. math:: \pi_s = \mathrm{softmax}\, f_s(x)

    Networks of one architecture are evaluated together, through :func:`torch.vmap` over their
    stacked weights; others one after another.

    Args:
        modules: Networks ``x (N, ...) -> logits (N, C)``; they run in evaluation mode.

    References:
        Lakshminarayanan, Pritzel and Blundell (2017), Simple and scalable predictive uncertainty
        estimation using deep ensembles, section 2.4.
    """

    of_chains = True
    of_classes = False  # whether that is known

    def __init__(self, modules: Sequence[nn.Module] | nn.ModuleList) -> None:
        self.modules = list(modules)
        if not self.modules:
            raise ArgumentError(
                "`source` must hold at least two networks; got an empty sequence. Pass the trained "
                "members of the ensemble, or snapshots of a sampler."
            )
        for index, module in enumerate(self.modules):
            advice = "For functions pass one callable (x, num_draws) -> (S, N, C)."
            instance_of(f"source[{index}]", module, nn.Module, "an nn.Module", advice)
        self.max_draws = len(self.modules)
        self._stackable: bool | None = None  # unknown before the first call
        self._run = Batched("the ensemble")
        self._run.use_vmap = True  # its answers are compared with those of all members

    def _source_text(self) -> str:
        return " and ".join(sorted({type(module).__name__ for module in self.modules}))

    def _unpack_by(self, form: Form) -> None:
        self.modules = [Unpacked(module, form) for module in self.modules]

    def look(self, x: Tensor, draws: Tensor | None = None, num_draws: int | None = None) -> None:
        """As the cost is measured all members answer, alone and together."""
        with self._at_call(x, None):
            self._measured(torch.arange(len(self.modules)) if draws is None else draws, x)

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """The members, of one architecture or each of its own."""
        some = self.modules[:CANDIDATES]
        groups = [some] if _alike(self.modules) else [[module] for module in some]
        return [_plug_in(group, x) for group in groups]

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        if not self.of_classes:
            first, self.of_classes = as_classifier(self.modules[0], x), True
            named = first is not self.modules[0]
            self.modules = [WithLogits(each) if named else each for each in self.modules]
        return choose(len(self.modules), num_draws)

    def _meters(self, draws: Tensor, x: Tensor) -> tuple[Meter, Meter, int]:
        """Runs of the first member; before the first answer also of all, alone and together."""
        few = some_rows(x, 2)
        with metered() as three:
            _one_by_one(self.modules[:1], some_rows(x, 3))
        with metered() as two:
            answers = _one_by_one(self.modules[:1], few)
        if self._stackable is None:
            answers = _one_by_one(self.modules[1:], few, answers[0])
            self._stackable = self._can_be_stacked(few, answers)
        self._check_output(answers, 2)
        return two, three, answers.shape[-1]

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        chosen = [self.modules[index] for index in draws.tolist()]
        return self._stacked(chosen, x) if self._stackable else _one_by_one(chosen, x)

    def _can_be_stacked(self, x: Tensor, expected: Tensor) -> bool:
        """Whether all members differ in parameters and buffers only: they answer the same so."""
        if len(self.modules) < 2 or not _alike(self.modules):
            return False
        try:
            stacked = self._stacked(self.modules, x)
        except Exception:  # noqa: BLE001 - cannot be copied or called functionally: the loop can
            return False
        return torch.allclose(stacked, expected, rtol=1e-3, atol=1e-4, equal_nan=True)

    def _as_program(self, draws: Tensor, x: Tensor) -> PosteriorProgram:
        self._measured(draws, x)
        if not self._stackable:
            raise NotRecorded("its networks are not of one architecture")
        chosen = [self.modules[index] for index in draws.tolist()]
        states, skeleton = _states(chosen), _skeleton(chosen)
        with evaluating(chosen[0]):
            probs = are_probs(logits_of(chosen[0](some_rows(x, 2))))

        def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
            def one(state: Draws) -> Any:
                return logits_of(functional_call(skeleton, state, tuple(inputs)))

            return {SAID: normalised(vectorized(one, draws), probs)}

        return PosteriorProgram(program, states)

    def _stacked(self, chosen: list[nn.Module], x: Tensor) -> Tensor:
        skeleton = _skeleton(chosen)

        def one(state: Draws) -> Tensor:
            return functional_call(skeleton, state, (x,))

        return log_probs_of_output(self._run(one, _states(chosen), x))


def _states(chosen: list[nn.Module]) -> Draws:
    """Parameters and buffers of the networks, ``(S, ...)`` each."""
    states = [dict([*m.named_parameters(), *m.named_buffers()]) for m in chosen]
    return {name: torch.stack([state[name] for state in states]).detach() for name in states[0]}


def _skeleton(chosen: list[nn.Module]) -> nn.Module:
    return copy.deepcopy(chosen[0]).to("meta").eval()


def _plug_in(modules: list[nn.Module], x: Tensor) -> PlugIn:
    """Networks of one architecture as functions of their parameters, without dropout."""
    first = modules[0]
    with torch.no_grad(), evaluating(first), SharedMasks():
        probs = are_probs(first(some_rows(x, 2)))

    def log_probs(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        with evaluating(first), SharedMasks():
            return normalised(functional_call(first, dict(weights), (x,)), probs)

    candidates: list[dict[str, Tensor]] = [dict(each.named_parameters()) for each in modules]
    return PlugIn(log_probs, candidates, several=len(modules) > 1)


def _one_by_one(modules: list[nn.Module], x: Tensor, *before: Tensor) -> Tensor:
    """The networks' answers ``(S, N, C)``, after those known before."""
    outputs = list(before)
    for module in modules:
        with evaluating(module):
            outputs.append(log_probs_of_output(module(x)))
    shapes = {tuple(output.shape) for output in outputs}
    if len(shapes) > 1:
        raise ArgumentError(
            "`source`'s networks must agree on the classes; got outputs of shape "
            f"{sorted(shapes)}. Give all the same number of logits."
        )
    return torch.stack(outputs)


def _alike(modules: list[nn.Module]) -> bool:
    """Whether all have the same class, printed form, and names and shapes of their state."""

    def form(module: nn.Module) -> tuple[Any, ...]:
        state = {name: (v.shape, v.dtype, v.device) for name, v in module.state_dict().items()}
        return type(module), repr(module), state

    first = form(modules[0])
    return bool(first[-1]) and all(form(module) == first for module in modules[1:])
