"""A row of a table, picked by an index of the inputs, as a product with columns of 0 and 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.guides.recording import Recorded, Step

__all__ = ["with_products"]

#: Rows of a table at most.
MOST_ROWS = 1024


def with_products(found: Recorded, x: Tensor) -> Recorded:
    r"""The same steps, in which :math:`T_{g(x)}` is :math:`\mathbb{1}[g(x) = k]_k\, T`.

    The answer is then seen to be linear in the 0 and 1, where it is linear in the row: such as the
    logit of a regression whose intercept varies between groups. Of tables ``(K,)`` or ``(K, F)``
    that do not depend on the inputs, at an index ``(N,)``.
    """
    steps: list[Step] = []
    weights, place = dict(found.weights), dict[int, int]()

    def moved(value: dict[str, Any]) -> dict[str, Any]:
        return {"step": place[value["step"]]} if "step" in value else value

    def add(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        steps.append(Step(name, list(args), kwargs))
        return {"step": len(steps) - 1}

    for number, step in enumerate(found.steps):
        size, lookup = _looked_up(found, step, x), step.map(moved)
        if size:
            table, index = _table_and_index(lookup)
            weights[f"rows{size}"] = torch.arange(size, device=x.device)
            column = add("unsqueeze.default", index, -1)
            equal = add("eq.Tensor", column, {"weight": f"rows{size}"})
            ones = add("_to_copy.default", equal, dtype={"dtype": "float32"})
            add("matmul.default", ones, table)
        else:
            steps.append(lookup)
        place[number] = len(steps) - 1
    return Recorded(steps, weights, found.trained)


def _table_and_index(step: Step) -> tuple[Any, Any]:
    """Arguments of a step that picks rows of a table; of another one ``None``."""
    match step.name, step.args:
        case "index.Tensor", [table, [dict() as index]]:
            return table, index
        case "embedding.default", [table, index, *_]:
            return table, index
        case "index_select.default", [table, 0, index]:
            return table, index
    return None, None


def _looked_up(found: Recorded, step: Step, x: Tensor) -> int:
    """Rows of the table from which a step picks one for every input; 0 where it does not."""
    table, index = _table_and_index(step)
    if table is None or "step" not in index or "x" in table:
        return 0
    whole, picked = (_value(found, each, x) for each in (table, index))
    fixed = "step" not in table or not found.until(table["step"]).reads_inputs()
    fits = whole.ndim in (1, 2) and picked.shape == (len(x),) and not picked.is_floating_point()
    return len(whole) if fixed and fits and len(whole) <= MOST_ROWS else 0


def _value(found: Recorded, value: dict[str, Any], x: Tensor) -> Tensor:
    if "weight" in value:
        return found.weights[value["weight"]]
    return found.until(value["step"]).run(x)
