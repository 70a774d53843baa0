"""Sentences begin with their subject, and words are the field's: what is not to come back."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyro_opu

HOUSE = Path(pyro_opu.__file__).parent
#: A sentence, or an entry of Args, that begins with a genitive and has no head.
OPENINGS = re.compile(
    r"(?:^|[.!?:]\s+|\n\n\s*|\n\s*[*-] )((?:Of|Those of|That of|As of|Likewise)\b.{0,50})"
)
WORDS = re.compile(
    r"\b(dear|dearer|told|asked twice|whence|thereof|naught|homely|"
    r"(?:a|the|another|any|its|joint) laws?)\b(?! of (?:total|succession))"
)
#: Words of the workshop, which pages explain in the glossary and use nowhere else.
WORKSHOP = re.compile(
    r"\b(attainable|laws?|misfit|plug-in|homely|likewise|worthless|knows? nothing|says? nothing of|"
    r"draws (?:that (?:can be|are) )?held|holds? (?:its|their|the) draws|no matter of|"
    r"in the place of|is what (?:it|they)|so many (?:draws|steps|seconds))\b",
    re.IGNORECASE,
)
#: Messages that a page quotes, and dots in them, which stand for names and numbers.
QUOTED = re.compile(r"```text\n(.*?)```", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


@cache
def said() -> list[tuple[str, str]]:
    """Docstrings and messages of the package, and the text of pages and notebooks."""
    return [*_said()]


def _said() -> Iterator[tuple[str, str]]:
    for path in HOUSE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                given = [v.value if isinstance(v, ast.Constant) else "x" for v in node.values]
                yield f"{path.name}:{node.lineno}", "".join(map(str, given))
            elif (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
            ):
                yield f"{path.name}:{node.lineno}", node.value
    for page in [*(HOUSE.parent / "docs").rglob("*.md"), HOUSE.parent / "README.md"]:
        if "_build" not in page.parts:
            yield page.name, page.read_text()
    for book in (HOUSE.parent / "tutorials").glob("*.ipynb"):
        for cell in json.loads(book.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                yield f"{cell['id']} of {book.name}", "".join(cell["source"])


def test_openings_and_words_that_are_not_to_come_back() -> None:
    found = []
    for where, text in said():
        plain = CODE.sub("x", text)
        found += [f"{where}: {m.strip()}" for m in OPENINGS.findall(plain) + WORDS.findall(plain)]
    assert not found, "\n".join(found)


def test_words_that_only_the_glossary_has() -> None:
    found = {
        where: words
        for where, text in said()
        if where.endswith((".md", ".ipynb")) and where != "glossary.md"
        if (words := WORKSHOP.findall(CODE.sub("x", text)))
    }
    assert found == {}


def unquoted(quote: str, messages: list[str]) -> bool:
    """Whether no message has all parts of a quote, in order."""
    parts = [re.escape(" ".join(part.split())) for part in quote.split("...")]
    wanted = re.compile(".*?".join(parts))
    return not any(wanted.search(message) for message in messages)


def test_messages_that_the_questions_quote_are_in_the_code() -> None:
    messages = [" ".join(text.split()) for where, text in said() if ".py:" in where]
    quotes = QUOTED.findall((HOUSE.parent / "docs" / "faq.md").read_text())
    assert len(quotes) > 25 and unquoted("`source` must return ... a horse", messages)
    assert [quote for quote in quotes if unquoted(quote, messages)] == []
