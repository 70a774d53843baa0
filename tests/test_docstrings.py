"""Every public name is documented: arguments, results with shapes, errors, units and sources.

The rules are read off the code. Of a name that ``pyro_opu`` itself exports, the docstring tells
what it takes and returns, and what it or a function that it calls in its own module raises. A name
of one of the rooms has a first line and tells its arguments, or refers to where they are told.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pyro_opu
from pyro_opu.distributions import normal
from pyro_opu.metrics import uncertainty

ROOMS = [
    "teachers",
    "guides",
    "objectives",
    "rivals",
    "samplers",
    "transfer",
    "distributions",
    "plots",
    "export",
    "interop",
    "joint",
]
#: Their equations are definitions, or derived where they stand: no paper is their source.
OURS = {
    "Atoms",
    "Components",
    "DirichletMixture",
    "Jitter",
    "MixtureGuide",
    "MomentMatching",
    "PredictiveDirichlet",
    "PredictiveNormalMixture",
    "PredictiveTeacher",
    "Differences",
    "Stretch",
    "expected_pairwise_kl",
    "total",
}
#: Entropies and divergences.
IN_NATS = [
    "Uncertainty",
    "aleatoric_uncertainty",
    "differential_entropy",
    "entropy",
    "epistemic_uncertainty",
    "expected_pairwise_kl",
    "fidelity",
]
#: Variances and means of a real y.
IN_UNITS_OF_Y = ["Components", "PredictiveNormal", "RegressionUncertainty", "fidelity"]

SECTION = re.compile(r"^([A-Z][a-z]+):\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^[ ]{4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", re.MULTILINE)
#: ``(N, C)``, ``(*B)``, (n, ...), or in words.
SHAPE = re.compile(r"``\([^()]+\)|\(\*?[\w.]+,[^()]*\)|\bshapes?\b|\bscalar\b", re.IGNORECASE)

#: To where the arguments are told.
REFERENCE = re.compile(r":(?:meth|attr|func|class|mod):`")

#: To a function or class that tells them in full, for one that takes the same.
TOLD_THERE = re.compile(r"errors are those of :(?:class|func):`~pyro_opu\.(\w+)`")


def public() -> dict[str, Any]:
    """Every public name once, with the room where it is found first; rooms are none of them."""
    found: dict[str, Any] = {}
    for room in ["", *ROOMS]:
        module = importlib.import_module(f"pyro_opu.{room}".rstrip("."))
        for name in module.__all__:
            thing = getattr(module, name)
            known = any(thing is other for other in found.values())
            if not known and not inspect.ismodule(thing):
                found[f"{room}.{name}".lstrip(".")] = thing
    return found


#: Files of this project; a dataclass's own constructor stands in none.
WRITTEN = {Path(__file__), *Path(pyro_opu.__file__).parent.rglob("*.py")}
PUBLIC = public()
CALLABLES = {k: v for k, v in PUBLIC.items() if inspect.isclass(v) or inspect.isfunction(v)}
#: Names of the top level: their docstrings tell all.
TOP = [name for name in CALLABLES if "." not in name]
METHODS = {
    f"{name}.{member}": (thing, getattr(value, "__func__", value))
    for name, thing in CALLABLES.items()
    if inspect.isclass(thing)
    for member, value in vars(thing).items()
    if not member.startswith("_") and inspect.isfunction(getattr(value, "__func__", value))
}


def sections(thing: Any) -> dict[str, str]:
    """The sections of an object's own docstring by their headings."""
    return dict(SECTION.findall(inspect.cleandoc(thing.__doc__ or "") + "\n"))


def entries(section: str) -> dict[str, str]:
    """What a section says of each name in it."""
    parts = ENTRY.split(section)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return {name.lstrip("*"): text for names, text in named for name in names.split(", ")}


def constructors(thing: type) -> list[Callable[..., Any]]:
    """The constructors that are written out for a class or its bases, nearest first."""
    found = [vars(c).get(n) for c in thing.__mro__ for n in ("__init__", "__post_init__")]
    return [f for f in found if inspect.isfunction(f) and Path(f.__code__.co_filename) in WRITTEN]


def taken(thing: Any) -> dict[str, str]:
    """Parameters of a function, or of a class's constructor, with their annotations."""
    if inspect.isclass(thing) and not (
        constructors(thing) or hasattr(thing, "__dataclass_fields__")
    ):
        return {}
    found = inspect.signature(thing).parameters.values()
    return {p.name: str(p.annotation) for p in found if p.name not in ("self", "cls")}


def body(function: Callable[..., Any]) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))))


def raised_in(function: Callable[..., Any]) -> Iterator[str]:
    """Names of the errors in a body's raise statements; an abstract method's is none."""
    for node in body(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func)
            name = {"ArgumentError": "ValueError", "ArgumentTypeError": "TypeError"}.get(name, name)
            if inspect.isclass(getattr(builtins, name, None)) and name != "NotImplementedError":
                yield name


def called_by(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Functions of the same module that a body calls by their names."""
    module = inspect.getmodule(function)
    for node in body(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            other = getattr(module, node.func.id, None)
            if inspect.isfunction(other) and inspect.getmodule(other) is module:
                yield other


def raised(thing: Any) -> set[str]:
    """Names of the errors that a call raises, itself or by what it calls in its own module."""
    starts = constructors(thing)[:2] if inspect.isclass(thing) else [thing]
    return {name for f in starts for each in (f, *called_by(f)) for name in raised_in(each)}


def complaints(thing: Any) -> list[str]:
    """What a function's or a class's docstring leaves out."""
    if not (thing.__doc__ or "").strip():
        return ["no docstring"]
    has = sections(thing)
    told = {**entries(has.get("Attributes", "")), **entries(has.get("Args", ""))}
    parameters = taken(thing)
    found = [f"Args lacks {name}" for name in parameters if name not in told]
    found += [f"Args has {name}" for name in entries(has.get("Args", "")) if name not in parameters]
    found += [
        f"{name} has no shape"
        for name, kind in parameters.items()
        if "Tensor" in kind
        and "Callable" not in kind
        and name in told
        and not SHAPE.search(told[name])
    ]
    found += [f"Raises lacks {name}" for name in raised(thing) if name not in has.get("Raises", "")]
    return found + ([] if inspect.isclass(thing) else unsaid_result(thing, has))


def unsaid_result(function: Callable[..., Any], has: dict[str, str]) -> list[str]:
    result = str(inspect.signature(function).return_annotation)
    if result == "None":
        return []
    if "Returns" not in has:
        return ["no Returns"]
    shapeless = "Tensor" in result and not SHAPE.search(has["Returns"])
    return ["Returns has no shape"] if shapeless else []


def first_line(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "").partition("\n")[0]


def brief_complaints(thing: Any) -> list[str]:
    """What a docstring leaves out that need not tell every argument, result and error."""
    if not first_line(thing):
        return ["no docstring"]
    has, parameters = sections(thing), taken(thing)
    found = [f"Args has {name}" for name in entries(has.get("Args", "")) if name not in parameters]
    told = "Args" in has or "Attributes" in has or REFERENCE.search(thing.__doc__)
    named = all(f"``{name}``" in thing.__doc__ for name in parameters)
    return found + ([] if told or named else ["no Args and no reference"])


@pytest.mark.parametrize("name", TOP)
def test_arguments_results_and_errors(name: str) -> None:
    thing = CALLABLES[name]
    there = TOLD_THERE.search(" ".join(thing.__doc__.split()))
    if there is None:
        assert complaints(thing) == []
        return
    other = CALLABLES[there[1]]
    assert complaints(other) == [] and taken(thing).keys() <= taken(other).keys()
    assert brief_complaints(thing) == [] and SHAPE.search(thing.__doc__)


@pytest.mark.parametrize("name", [name for name in CALLABLES if name not in TOP])
def test_arguments_or_where_they_are_told(name: str) -> None:
    assert brief_complaints(CALLABLES[name]) == []


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    """A line is enough for a method; the arguments that it tells are its own."""
    owner, method = METHODS[name]
    bases = [getattr(base, method.__name__, None) for base in owner.__mro__[1:]]
    assert any(first_line(each) for each in [method, *bases] if each is not None)
    assert set(entries(sections(method).get("Args", ""))) <= set(taken(method))


def test_equations_have_a_source() -> None:
    equations = {
        name.rpartition(".")[2]: t for name, t in CALLABLES.items() if ".. math::" in t.__doc__
    }
    without = {name for name, thing in equations.items() if "References" not in sections(thing)}
    assert without - OURS == set()


@pytest.mark.parametrize(("unit", "name"), [
    *(("nats", name) for name in IN_NATS),
    *(("units of", name) for name in IN_UNITS_OF_Y),
])  # fmt: skip
def test_units_are_named(unit: str, name: str) -> None:
    everything = {key.rpartition(".")[2]: thing for key, thing in CALLABLES.items()}
    everything |= vars(normal) | vars(uncertainty)
    everything["Uncertainty"] = type(
        pyro_opu.uncertainty(torch.distributions.Dirichlet(torch.ones(2)))
    )
    assert unit in everything[name].__doc__


# What the rules find ---------------------------------------------------------------------------


def check(x: Tensor) -> None:
    if x.ndim != 2:
        raise TypeError("two axes")


def badly_told(x: Tensor, scale: float, other: int) -> Tensor:
    """Says little.

    Args:
        x: The inputs.
        scale: A factor.
        gone: No longer taken.

    Raises:
        ValueError: a bad scale.
    """
    check(x)
    if scale < 0:
        raise ValueError("negative")
    if other:
        raise RuntimeError("other")
    return x


def told_without_shape(x: Tensor) -> Tensor:
    """The same.

    Args:
        x: Inputs ``(N, D)``.

    Returns:
        Something.
    """
    return x


def told_in_a_line(x: Tensor) -> Tensor:
    """Give the inputs back."""
    return x


@dataclass
class Record:
    """A record.

    Attributes:
        size: Its size.
    """

    size: int
    more: float

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("negative")


def test_the_rules_find_what_is_left_out() -> None:
    assert sorted(complaints(badly_told)) == [
        "Args has gone",
        "Args lacks other",
        "Raises lacks RuntimeError",
        "Raises lacks TypeError",
        "no Returns",
        "x has no shape",
    ]
    assert complaints(told_without_shape) == ["Returns has no shape"]
    assert complaints(Record) == ["Args lacks more", "Raises lacks ValueError"]
    assert complaints(type("Bare", (), {})) == ["no docstring"]
    assert brief_complaints(badly_told) == ["Args has gone"]
    assert brief_complaints(check) == ["no docstring"]
    assert brief_complaints(told_in_a_line) == ["no Args and no reference"]
    told_in_a_line.__doc__ += " Arguments as of :func:`badly_told`."
    assert brief_complaints(told_in_a_line) == []
    told_without_shape.__doc__ = told_without_shape.__doc__.replace("Something", "``(N, D)``")
    assert complaints(told_without_shape) == []
