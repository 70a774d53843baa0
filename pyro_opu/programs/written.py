"""A model at any number of rows beside the model as it is written.

The first resizes plates, leaves labels out, makes one site of an observed one with a mask, and
gives ``None`` to arguments without a value. So the distributions of all its sites are compared with
those that ``Predictive`` finds, given the same values of all that is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.programs.agreement import by_ranks, compare, gaps
from pyro_opu.programs.rows import AnyRows
from pyro_opu.programs.signature import Model
from pyro_opu.programs.sites import arguments_of
from pyro_opu.programs.trace import is_deterministic, quiet, trace_of
from pyro_opu.programs.vmap import Batched, Draws, loop, vectorized
from pyro_opu.rng import preserve_rng
from pyro_opu.utils.chunks import some_rows, spread_rows
from pyro_opu.utils.laws import is_subsample

#: Rows that are compared, and at least.
ROWS, FEWEST = 32, 3


class AsWritten:
    """Runs of both under one draw, given the same values.

    Where the model as it is written takes some of the rows, the other is asked about these.

    Attributes:
        fixed: The values.
        rows: The inputs that the other is asked about.
    """

    def __init__(
        self, model: AnyRows, latents: Draws, x: Tensor, observed: Collection[str]
    ) -> None:
        fixed, rows, picks = dict(latents), x, {}
        written = _sites(model.as_written, latents, x)
        for name, node in written.items():
            if not is_subsample(node):
                drawn = not (node["is_observed"] or is_deterministic(node))
                if drawn or name in model.redrawn - set(observed):
                    fixed[name] = node["value"]
            elif len(node["value"]) < node["fn"].size == len(x):
                picks[name], rows = node["value"], x[node["value"]]
            elif len(node["value"]) < node["fn"].size:
                fixed[name] = node["value"]
        self.fixed, self.rows, self._model = fixed, rows, model
        self._written = partial(_sites, model.as_written, {**fixed, **picks}, x)
        # What else is observed matters where these depend on it; a factor of labels does not.
        own = _sites(model, fixed, rows)
        self._asked = [k for k, node in own.items() if k in observed or not node["is_observed"]]
        self._first = _drawn(own, self._asked), _drawn(written, self._asked)

    def said(self, latents: Draws) -> dict[str, Any]:
        """Distributions by site at any number of rows, given these values."""
        return _drawn(_sites(self._model, latents, self.rows), self._asked)

    def gaps(self) -> dict[str, float]:
        """Sites whose distributions differ, beyond rounding and chance, and by how much."""
        if not gaps(*self._first):
            return {}
        pair = partial(self.said, self.fixed), lambda: _drawn(self._written(), self._asked)
        found = compare(*pair)
        return found.gaps if found.random == "none" else by_ranks(*pair)


def compare_with_written(
    model: AnyRows, latents: Callable[[Tensor], Draws], x: Tensor, observed: Collection[str]
) -> AsWritten | str:
    """Compare at some rows of x, or at as many as plates and labels have; or say why it cannot.

    Args:
        model: The model.
        latents: The draw at inputs.
        x: Inputs ``(N, ...)``.
        observed: Sites that are read.

    Raises:
        ValueError: the distribution of a site is another one.
    """
    tries = [spread(x)]
    tries += [some_rows(x, size) for size in sorted(model.sizes) if size > FEWEST]
    reason = ""
    for rows in tries:
        try:
            runs = AsWritten(model, latents(rows), rows, observed)
            found = runs.gaps()
        except Exception as error:  # noqa: BLE001 - Predictive cannot run it at these rows either
            reason = reason or (str(error).splitlines() or [type(error).__name__])[0]
            continue
        if found:
            name, gap = max(found.items(), key=lambda item: item[1])
            raise ArgumentError(
                f"`source`'s model must say the same when it is asked about {len(rows)} rows as "
                f"when Predictive runs it; the distribution of its site '{name}' differs"
                f"{f' by {gap:.2g}' if math.isfinite(gap) else ' in kind or shape'}. A teacher "
                "gives plates the rows that are asked about, leaves labels out, and gives None to "
                "arguments without a value: let nothing in the model depend on these. "
                "pyro_opu.batched(source) runs it as it is written."
            )
        return runs
    return reason


def compare_together(run: Batched, one: AsWritten, two: AsWritten) -> None:
    """Loop over draws where two of them say something else together, given all that is drawn."""
    same_rows = torch.equal(one.rows, two.rows) and one.fixed.keys() == two.fixed.keys()
    if run.use_vmap is False or not same_rows:
        return
    fixed = {name: torch.stack([value, two.fixed[name]]) for name, value in one.fixed.items()}

    def said(values: Draws) -> Draws:
        fns = one.said(values).items()
        return {f"{site} {name}": value for site, fn in fns for name, value in arguments_of(fn)}

    try:
        with quiet(), preserve_rng():
            together = partial(vectorized, said, fixed, own_tensors=run.own_tensors)
            found = compare(together, partial(loop, said, fixed))
    except Exception:  # noqa: BLE001 - the first answer says so
        return
    if found.gaps and found.random == "none":
        run.give_up("it gives other numbers than the loop")


def spread(x: Tensor, most: int | None = None) -> Tensor:
    """Some of the rows, from the first to the last, repeated where they are very few."""
    size = min(len(x), ROWS, most or ROWS)
    return some_rows(spread_rows(x, size), min(max(FEWEST, size), most or ROWS))


def _sites(model: Model, latents: Draws, x: Tensor) -> dict[str, Any]:
    nodes = trace_of(model, latents, x.clone()).nodes  # a change of inputs is refused elsewhere
    return {name: node for name, node in nodes.items() if node["type"] == "sample"}


def _drawn(sites: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Distributions by site; that of the missing values stands for a site with a mask."""
    nodes = {name: sites[name] for name in names if name in sites}
    for name, node in nodes.items():
        if is_deterministic(node):
            nodes[name] = sites.get(f"{name}_unobserved", node)
    return {
        name: node["fn"]
        for name, node in nodes.items()
        if not (is_deterministic(node) or is_subsample(node))
    }
