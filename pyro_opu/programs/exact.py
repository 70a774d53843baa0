"""All draws of a ``Predictive`` at once: what it gives, with nothing learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer import Predictive
from pyro.poutine.runtime import am_i_wrapped
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pyro_opu.checks import positive_int
from pyro_opu.programs.cost import Cost, metered
from pyro_opu.programs.samples import check_unweighed
from pyro_opu.programs.sites import arguments_of, unwrap
from pyro_opu.programs.trace import quiet
from pyro_opu.programs.vmap import Batched, Draws, has_nan, loop
from pyro_opu.programs.vmap_rewrites import QuickOps
from pyro_opu.rng import exclusive, preserve_rng
from pyro_opu.utils.chunks import numbers_at_once

Shape = tuple[int, ...]
#: Numbers in the widest tensor of a draw above which a processor convolves faster one by one.
WIDE_CONVOLUTION = 2**16
#: Draws with attention of which fewer fit in a block run one by one, by torch's fused kernels.
FEWEST_ATTENDED = 5
#: Draws that are compared with the loop, and draws of the two runs whose tensors are measured.
COMPARED, MEASURED = 2, (2, 3)


def batched(predictive: Predictive, *, chunk_size: int | None = None) -> BatchedPredictive:
    r"""Make a :class:`pyro.infer.Predictive` that evaluates its draws together, not in a loop.

    Nothing is learned: ``batched(predictive)(x)`` has the sites, shapes and dtypes of
    ``predictive(x)`` under the same posterior draws, joint over the inputs. What a draw determines
    (its latents, deterministic sites, class probabilities) is equal to rounding; what the model
    samples afresh, such as labels, has the same distribution. The model runs under
    :func:`torch.vmap`, without Pyro's validation. The first call compares it with the loop; a model
    that ``vmap`` cannot run is looped over, and a warning says why.

    Args:
        predictive: From posterior samples, a guide or the prior; it is not changed. ``parallel`` is
            not looked at: every draw sees the model as it is written.
        chunk_size: Numbers in the widest tensor of one evaluation, which bounds memory beside the
            samples and the results: draws are evaluated in blocks of as many as that allows. By
            default 2 million on a processor and 67 million on a GPU.

    Returns:
        A ``Predictive``, called as the one it replaces, with all of its arguments.

    Raises:
        TypeError: ``predictive`` is not a ``Predictive``, or one with weights.
        ValueError: ``chunk_size`` is not a positive integer.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import Predictive
        >>> from pyro_opu import batched
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     with pyro.plate("data", len(x)):
        ...         probs = pyro.deterministic("probs", torch.sigmoid(x @ w))
        ...         pyro.sample("obs", dist.Bernoulli(probs), obs=y)
        >>> predictive = batched(Predictive(model, {"w": torch.randn(300, 2)}))
        >>> {site: tuple(draws.shape) for site, draws in predictive(torch.randn(5, 2)).items()}
        {'obs': (300, 5), 'probs': (300, 5)}
    """
    check_unweighed("predictive", predictive)
    if not isinstance(predictive, Predictive):
        raise TypeError(
            f"`predictive` must be a pyro.infer.Predictive; got {type(predictive).__name__}. For "
            "another posterior take pyro_opu.as_teacher(source).probs(x)."
        )
    return BatchedPredictive(predictive, chunk_size)


class BatchedPredictive(Predictive):
    """The ``Predictive`` that :func:`~pyro_opu.batched` makes; its arguments are those.

    Under handlers of the caller it is the loop of ``Predictive``, into which they can look.
    """

    def __init__(self, predictive: Predictive, chunk_size: int | None = None) -> None:
        super().__init__(
            predictive.model,
            dict(predictive.posterior_samples),
            predictive.guide,
            predictive.num_samples,
            predictive.return_sites,
            predictive.parallel,
        )
        if chunk_size is not None:
            chunk_size = positive_int("chunk_size", chunk_size, advice="Leave it out.")
        self.chunk_size = chunk_size
        self._of_guide, self._of_model = Batched("the guide"), Batched("the model")
        #: Of a draw, and what was in it, by the shapes of the arguments.
        self._widths: dict[Any, tuple[int, QuickOps]] = {}

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the predictive distribution: what ``Predictive`` gives, key by key."""
        with exclusive():
            return self._forward(args, kwargs)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        if am_i_wrapped():
            return super().forward(*args, **kwargs)
        model = _Runs(partial(self.model, *args, **kwargs))
        guide = None if self.guide is None else _Runs(partial(self.guide, *args, **kwargs))
        shapes = self._asked(model)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        found: dict[str, Tensor] = {}
        with quiet():
            size, ops = self._draws_at_once(model, guide, shapes, tensors)
        with quiet(), ops:
            for start in range(0, self.num_samples, size):
                block = slice(start, start + size)
                for name, values in self._values(model, guide, shapes, block).items():
                    if start == 0:
                        found[name] = values.new_empty(self.num_samples, *shapes[name])
                    found[name][block] = values.reshape(len(values), *shapes[name])
        return {name: found[name] for name in shapes}

    def _asked(self, model: _Runs) -> dict[str, Shape]:
        """Shapes of what a call gives, chosen and ordered as ``Predictive`` does."""
        sites = self.return_sites
        if not sites:
            left = () if sites is None or self.guide is not None else self.posterior_samples
            return {name: shape for name, shape in model.shapes.items() if name not in left}
        shapes = {name: shape for name, shape in model.shapes.items() if name in sites}
        if "_RETURN" in sites:
            if model.returned is None:
                raise TypeError(
                    "`return_sites` asks for '_RETURN', so the model must return a tensor. Return "
                    "one, or ask for sites by their names."
                )
            shapes["_RETURN"] = model.returned
        return shapes

    def _values(
        self, model: _Runs, guide: _Runs | None, names: Iterable[str], block: slice
    ) -> Draws:
        """Values of sites under these draws, ``(s, ...)`` each; held ones need no run."""
        known = self._latents(guide, block)
        values = {name: known[name] for name in names if name in known}
        fresh = [name for name in names if name not in known]
        return values | self._of_model(partial(model.values, fresh), known) if fresh else values

    def _latents(self, guide: _Runs | None, block: slice) -> Draws:
        """Draws of the latents ``(s, ...)``, and a counter, as there may be none."""
        draws = {"": torch.arange(self.num_samples)[block]}
        if guide is None:
            return draws | {name: value[block] for name, value in self.posterior_samples.items()}
        if not guide.shapes:
            return draws
        drawn = self._of_guide(partial(guide.values, guide.shapes), draws)
        return draws | {k: v.reshape(len(v), *guide.shapes[k]) for k, v in drawn.items()}

    def _draws_at_once(
        self,
        model: _Runs,
        guide: _Runs | None,
        names: Iterable[str],
        tensors: list[Tensor],
    ) -> tuple[int, AbstractContextManager[Any]]:
        """Draws of a block, by the widest tensor of one, and what they run under.

        The first call compares with the loop.
        """
        if self.num_samples == 1 or all(name in self.posterior_samples for name in names):
            return self.num_samples, QuickOps()
        asked = tuple((tensor.shape, tensor.device) for tensor in tensors)
        if asked not in self._widths:
            with preserve_rng(), QuickOps() as ops:
                if not self._widths:
                    if guide is not None and guide.shapes:
                        _compare(self._of_guide, guide, {"": torch.arange(COMPARED)})
                    _compare(self._of_model, model, self._latents(guide, slice(COMPARED)))
                meters = []
                for count in MEASURED:
                    with metered() as meter:
                        self._values(model, guide, names, slice(count))
                    meters.append(meter)
            cost = Cost.of(torch.Size(), meters[0], meters[1], 1)
            self._widths[asked] = cost.width, ops
        width, ops = self._widths[asked]
        tensors = [*tensors, *self.posterior_samples.values()]
        on_gpus = [tensor.device for tensor in tensors if tensor.is_cuda]
        device = on_gpus[0] if on_gpus else torch.device("cpu")
        if ops.convolved and not on_gpus and width > WIDE_CONVOLUTION:
            return 1, QuickOps()
        most = max(1, (self.chunk_size or numbers_at_once(device)) // width)
        if ops.attended and most < FEWEST_ATTENDED:
            return 1, nullcontext()
        return math.ceil(self.num_samples / math.ceil(self.num_samples / most)), QuickOps()


class _Runs:
    """Runs of a model or guide under one call's arguments, and what the first of them tells.

    Attributes:
        shapes: Of its sites for one draw, as ``Predictive`` gives and orders them.
        returned: Shape of its value, ``None`` where that is no tensor.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run
        trace = poutine.trace(run).get_trace()
        nodes: list[Any] = [n for n in trace.nodes.values() if n["type"] == "sample"]
        dims = [each.dim for n in nodes for each in n["cond_indep_stack"] if each.vectorized]
        plates = -min(dims, default=0)
        self.shapes: dict[str, Shape] = {}
        for node in sorted(nodes, key=lambda node: bool(node["is_observed"])):
            if not site_is_subsample(node):
                ones = (1,) * (plates - len(node["fn"].batch_shape))
                self.shapes[node["name"]] = ones + tuple(node["value"].shape)
        value = trace.nodes["_RETURN"]["value"]
        self.returned = tuple(value.shape) if isinstance(value, Tensor) else None

    def nodes(self, latents: Draws) -> Any:
        """What one run tells with these latents fixed."""
        return poutine.trace(poutine.condition(self.run, data=latents)).get_trace().nodes

    def values(self, names: Iterable[str], latents: Draws) -> Draws:
        """Values of sites in one run."""
        nodes = self.nodes(latents)
        return {name: nodes[name]["value"] for name in names}

    def tensors(self, latents: Draws) -> Draws:
        """Values of all sites in one run, and the arguments of their distributions."""
        found: Draws = {}
        for name, node in self.nodes(latents).items():
            if name in self.shapes:
                found[name] = node["value"]
                if not isinstance(unwrap(node["fn"]), Delta):  # whose argument is the value
                    found |= {f"{name} {arg}": value for arg, value in arguments_of(node["fn"])}
        return found


def _compare(batched: Batched, runs: _Runs, known: Draws) -> None:
    """Let ``vmap`` do for a few draws what the loop does, given all that the loop draws."""
    first = runs.nodes({name: value[0] for name, value in known.items()})
    drawn = loop(partial(runs.values, runs.shapes), known)
    free = [k for k in drawn if k not in known and not isinstance(unwrap(first[k]["fn"]), Delta)]
    batched(runs.tensors, {**known, **{name: drawn[name] for name in free}})
    if batched.use_vmap:
        sampled = batched(partial(runs.values, runs.shapes), known)
        if batched.use_vmap and has_nan(sampled) > has_nan(drawn):
            batched.give_up("a site that it samples is NaN")
