"""A promise of the README or of docs/ names, in docs/promises.md, tests that break it.

A promise is a sentence with one of five words. A sentence is a heading, a row of a
table, a line of code, or what a full stop, a question mark or an exclamation mark ends
in a paragraph or an item of a list.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = ROOT / "docs/promises.md"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page != PROMISES),
    *sorted(ROOT.glob("docs/**/*.yaml")),
]

PROMISING = re.compile(r"\b(?:never|nobody|nothing|always|each)\b", re.IGNORECASE)
ITEM = re.compile(r"^(?:[-*]|\d+\.)\s+")
# The next sentence begins with no small letter: "e.g. this" is not two.
END = re.compile(r"(?<=[.?!])[*_)]*\s+(?![a-z])")


@dataclass(frozen=True)
class Promise:
    """A row of docs/promises.md."""

    page: str
    beginning: str
    tests: tuple[str, ...]


def sentences(text: str) -> Iterator[str]:
    for is_code, lines in groupby(_marked(text), key=lambda line: line[0]):
        if is_code:
            yield from (line for _, line in lines)
        else:
            yield from _prose([line for _, line in lines])


def _marked(text: str) -> Iterator[tuple[bool, str]]:
    """Give each line with whether it is code; the fences are left out."""
    is_code = False
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        else:
            yield is_code, line.strip()


def _prose(lines: list[str]) -> Iterator[str]:
    paragraph = list[str]()
    for line in [*lines, ""]:
        alone = line.startswith(("#", "|"))
        if alone or not line or ITEM.match(line):
            yield from END.split(" ".join(paragraph))
            paragraph = []
        if alone:
            yield " | ".join(cell.strip() for cell in line.strip("#|").split("|"))
        elif line:
            paragraph.append(ITEM.sub("", line, count=1) if not paragraph else line)
    yield from END.split(" ".join(paragraph))


@cache
def promising(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [sentence for sentence in sentences(text) if PROMISING.search(sentence)]


@cache
def promises() -> list[Promise]:
    rows, page = list[Promise](), ""
    for line in PROMISES.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            page = line.removeprefix("## ")
        elif page and line.startswith("| ") and line != "| sentence | tests |":
            beginning, tests = line.strip("| ").split(" | ")
            rows.append(Promise(page, beginning, tuple(re.findall("`(.+?)`", tests))))
    return rows


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_every_promise_of_a_page_is_in_the_table(page: str) -> None:
    beginnings = tuple(row.beginning for row in promises() if row.page == page)

    missing = [s for s in promising(page) if not s.startswith(beginnings)]

    assert missing == [], "reword them, or add them to docs/promises.md with tests"


def test_every_row_of_the_table_is_the_beginning_of_one_promise() -> None:
    unclear = [
        row
        for row in promises()
        if len([s for s in promising(row.page) if s.startswith(row.beginning)]) != 1
    ]

    assert len(promises()) > 50
    assert unclear == []


def test_the_table_is_sorted_by_page() -> None:
    pages = [row.page for row in promises()]

    assert pages == sorted(pages)


def test_every_row_of_the_table_names_tests_that_exist() -> None:
    named = [(row, test.partition("::")) for row in promises() for test in row.tests]

    assert [row for row in promises() if not row.tests] == []
    assert [
        f"{row.page}: {path}::{name}"
        for row, (path, _, name) in named
        if not name.startswith("test_")
        or not (ROOT / path).is_file()
        or name not in functions(path)
    ] == []


@pytest.mark.parametrize(
    ("text", "split"),
    [
        (
            "One. Two!\nThree? *Four.* Five",
            ["One.", "Two!", "Three?", "*Four.", "Five"],
        ),
        ("See e.g. this, 1.5 s at most.", ["See e.g. this, 1.5 s at most."]),
        ("**Age.** It is old.", ["**Age.", "It is old."]),
        ("# A heading\n\n- one\n  more\n- two", ["A heading", "one more", "two"]),
        ("| a. B | c |\n| d | e |", ["a. B | c", "d | e"]),
        ("Text:\n```sh\na # b\nc\n```\nmore", ["Text:", "a # b", "c", "more"]),
    ],
)
def test_a_text_is_split_into_sentences(text: str, split: list[str]) -> None:
    assert [sentence for sentence in sentences(text) if sentence] == split
