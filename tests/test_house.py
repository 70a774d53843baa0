"""The rooms of the package: imports run one way, and every module can be reached by its name."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import pyro_opu

HOUSE = Path(pyro_opu.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))
ROOMS = {path.stem if path.is_file() else path.name for path in HOUSE.iterdir()} - {"__init__"}
#: Files at the top level of the package, besides folders.
MOST_FILES = 9
#: Statements of a file, docstrings left out.
MOST_STATEMENTS = 260
#: Share of annotated arguments that may be anything, and calls of isinstance in 1,000 lines.
MOST_ANY, MOST_ISINSTANCE = 0.06, 10.0


def room_of(path: Path) -> str:
    """The folder or file below the top of the package."""
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Rooms that a file imports from, anywhere in it, functions included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "pyro_opu":
            names |= {f"pyro_opu.{each.name}" for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
    parts = [name.split(".") for name in names if name.split(".")[0] == "pyro_opu"]
    found = {part[1] if len(part) > 1 and part[1] in ROOMS else "__init__" for part in parts}
    return found - {room_of(path)}


def test_no_import_runs_back_up() -> None:
    """Rooms lie on floors: none is built on a room that is built on it."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        graph.setdefault(room_of(path), set()).update(imported(path))
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"rooms that import each other: {' <- '.join(error.args[1])}")


def modules_of(path: Path) -> set[str]:
    """Modules of the package that a file imports from, anywhere in it, functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyro_opu"):
            each = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (each & set(MODULES)) or {node.module}
    return found


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


def test_no_two_files_of_a_room_import_each_other() -> None:
    graph = {name: modules_of(path) - {name, "pyro_opu"} for name, path in MODULES.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"files that import each other: {' <- '.join(error.args[1])}")


#: Rooms of the papers' models, samplers and rivals, which ``interop`` alone stands upon.
EXTRAS = {"models", "rivals", "samplers"}
ABOVE = EXTRAS | {"__init__", "__main__", "interop"}


def test_extras_take_only_what_rooms_show_and_nothing_rests_on_them() -> None:
    """They import from a room's own name, as a package of somebody else's would."""
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or (node.module or "")[:9] != "pyro_opu.":
                continue
            _, room, *inside = (node.module or "").split(".")
            hidden = inside or any(alias.name.startswith("_") for alias in node.names)
            if room_of(path) in EXTRAS and room not in EXTRAS and hidden:
                wrong.append(f"{name_of(path)} takes from the inside of {node.module}")
            elif room_of(path) not in ABOVE and room in EXTRAS:
                wrong.append(f"{name_of(path)} rests on {node.module}")
    assert not wrong


def test_no_public_name_hides_a_module() -> None:
    hidden = []
    for path in FILES:
        inside = path.relative_to(HOUSE.parent).with_suffix("").parts
        if inside[-1] in ("__init__", "__main__"):
            continue
        import_module(".".join(inside))
        if not isinstance(getattr(import_module(".".join(inside[:-1])), inside[-1]), ModuleType):
            hidden.append(".".join(inside))
    assert not hidden


def test_errors_of_arguments_are_of_the_package() -> None:
    """Those that name one are ``ArgumentError``s, by which code tells them from a user's."""
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            builtin = ast.unparse(node.func) in ("ValueError", "TypeError")
            if builtin and ast.unparse(node.args[0]).lstrip("f")[1:2] == "`":
                wrong.append(f"{name_of(path)}: {node.lineno}")
    assert not wrong


def names_in(node: ast.AST) -> set[str]:
    """Names in an annotation, or in the value of an alias."""
    inside = (each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute)))
    return {each.id if isinstance(each, ast.Name) else each.attr for each in inside}


def test_arguments_say_what_they_are() -> None:
    """Few annotations of arguments hold ``Any``, or an alias that holds it, in the whole house."""
    trees = [ast.parse(path.read_text()) for path in FILES]
    aliases = {
        each.targets[0].id: names_in(each.value)
        for tree in trees
        for each in tree.body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and re.fullmatch("[A-Z]+[a-z]+[A-Za-z]*", each.targets[0].id)
    }
    loose, before = {"Any"}, set[str]()
    while loose != before:
        before, loose = loose, loose | {name for name, held in aliases.items() if held & loose}
    given = [
        names_in(argument.annotation)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
        for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg)
        if argument is not None and argument.annotation is not None
    ]
    assert sum(bool(names & loose) for names in given) / len(given) <= MOST_ANY


def test_kinds_are_asked_for_rarely() -> None:
    text = "".join(path.read_text() for path in FILES)
    assert 1000 * text.count("isinstance(") / text.count("\n") <= MOST_ISINSTANCE


def test_few_files_lie_beside_the_folders() -> None:
    names = [path.name for path in HOUSE.glob("*.py")]
    assert len(names) <= MOST_FILES, names


def statements(path: Path) -> int:
    """How many statements a file has; docstrings are none."""
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_no_file_is_too_long_to_read() -> None:
    long = {name_of(path): count for path in FILES if (count := statements(path)) > MOST_STATEMENTS}
    assert not long


#: Folders beside the package, each built on those before it alone.
BESIDE = ("pyro_opu", "papers", "benchmarks")


def test_benchmarks_are_built_on_papers_and_neither_carries_the_package() -> None:
    wrong = []
    for number, folder in enumerate(BESIDE):
        for path in sorted((HOUSE.parent / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                named += [each.name for each in node.names] if isinstance(node, ast.Import) else []
                above = {name.partition(".")[0] for name in named} & set(BESIDE[number + 1 :])
                wrong += [f"{path.relative_to(HOUSE.parent)} imports {name}" for name in above]
    assert not wrong


def test_what_ci_runs_by_its_name_is_there() -> None:
    code = (HOUSE.parent / ".ci" / "short_form.py").read_text()
    named = re.findall(r'"((?:tests|benchmarks)/[^"]+)"', code)
    assert len(named) > 10
    for path, _, test in (each.partition("::") for each in named):
        assert (HOUSE.parent / path).exists(), path
        for each in filter(None, test.split("::")):
            assert re.search(rf"(def|class) {each}\b", (HOUSE.parent / path).read_text()), test
