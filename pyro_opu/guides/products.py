"""Recorded steps as products with weights: rows that an index picks, triangular systems."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.guides.recorded import Recorded, Step

__all__ = ["with_products"]

#: Rows of a table at most.
MOST_ROWS = 1024


def with_products(found: Recorded, x: Tensor) -> Recorded:
    r"""The same steps, in which :math:`T_{g(x)}` is :math:`\mathbb{1}[g(x) = k]_k\, T`.

    The answer is then seen to be linear in the 0 and 1, where it is linear in the row: such as the
    logit of a regression whose intercept varies between groups. Tables ``(K,)`` or ``(K, F)``
    that do not depend on the inputs, at an index ``(N,)``.

    A triangular system whose matrix does not depend on the inputs, :math:`B(x)\, U^{-1}`, is a
    product with the inverse, computed in float64; a Cholesky factor of one number is its root, of
    a number that rounding has left negative 0.
    """
    steps: list[Step] = []
    weights, place = dict(found.weights), dict[int, int]()
    factors = dict[int, list[int]]()  # factor and success of a Cholesky factor of numbers
    sure = set[int]()  # what depends on a success alone

    def moved(value: dict[str, Any]) -> dict[str, Any]:
        return {"step": place[value["step"]]} if "step" in value else value

    def add(name: str, *args: object, **kwargs: object) -> dict[str, Any]:
        steps.append(Step(name, list(args), kwargs))
        return {"step": len(steps) - 1}

    def constant(name: str, value: Tensor) -> dict[str, Any]:
        weights[name] = value.to(x.device)
        return {"weight": name}

    for number, step in enumerate(found.steps):
        if step.name == "getitem" and step.args[0].get("step") in factors:
            place[number] = factors[step.args[0]["step"]][step.args[1]]
            sure |= {number} if step.args[1] else set()
            continue
        if sure and {*step.inputs("step")} <= sure and step.inputs("step"):
            sure.add(number)
        elif step.name.startswith("where.") and step.args[0].get("step") in sure:
            taken = step.args[1 if bool(_value(found, step.args[0], x).all()) else 2]
            if isinstance(taken, dict) and "step" in taken:
                place[number] = place[taken["step"]]
                continue
        size, new = _looked_up(found, step, x), step.map(moved)
        if size:
            table, index = _table_and_index(new)
            column = add("unsqueeze.default", index, -1)
            equal = add("eq.Tensor", column, constant(f"rows{size}", torch.arange(size)))
            ones = add("_to_copy.default", equal, dtype={"dtype": "float32"})
            add("matmul.default", ones, table)
        elif size := _solved(found, step, x):
            matrix, other = new.args
            wide = add("_to_copy.default", matrix, dtype={"dtype": "float64"})
            eye = add("type_as.default", constant(f"eye{size}", torch.eye(size)), wide)
            kwargs = {name: value for name, value in new.kwargs.items() if name != "left"}
            inverse = add("linalg_solve_triangular.default", wide, eye, **kwargs)
            inverse = add("type_as.default", inverse, other)
            left = new.kwargs.get("left", True)
            add("matmul.default", *((inverse, other) if left else (other, inverse)))
        elif step.name == "bmm.default" and _varies(found, step).count(True) == 1:
            add("matmul.default", *new.args)
        elif step.name.startswith("linalg_cholesky_ex.") and _is_number(found, step, x):
            root = add("sqrt.default", add("clamp_min.default", new.args[0], 0.0))
            zeros = add("zeros_like.default", root)
            factors[number] = [root["step"], add("squeeze.dims", zeros, [-2, -1])["step"]]
        else:
            steps.append(new)
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


def _solved(found: Recorded, step: Step, x: Tensor) -> int:
    """Rows of the triangular matrix of a system that only on its other side depends on inputs."""
    solves = step.name.startswith("linalg_solve_triangular.")
    if not solves or _varies(found, step) != [False, True]:
        return 0
    matrix = _value(found, step.args[0], x)
    return len(matrix) if matrix.ndim == 2 else 0


def _varies(found: Recorded, step: Step) -> list[bool]:
    """By argument, whether the inputs change it."""
    steps = [each.get("step") if isinstance(each, dict) else None for each in step.args]
    return [each is not None and found.until(each).reads_inputs() for each in steps]


def _is_number(found: Recorded, step: Step, x: Tensor) -> bool:
    """Whether a step is given matrices of one row and one column, other ones for every input."""
    return _varies(found, step)[0] and _value(found, step.args[0], x).shape[-2:] == (1, 1)


def _value(found: Recorded, value: dict[str, Any], x: Tensor) -> Tensor:
    if "weight" in value:
        return found.weights[value["weight"]]
    return found.until(value["step"]).run(x)
