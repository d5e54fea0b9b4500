"""No regular expression of the product takes longer than linear, whatever the text.

All of them are found by themselves: those that a module keeps, with the methods that it
calls on them, and those written in a call of `re`. Hostile texts are made of the very
pieces that a pattern looks for, since a text that almost matches costs the most.
"""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import permutations, product
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined] # no stubs
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"apps": ROOT, "poisonweb": ROOT, "spark": ROOT, "poisonguard": ROOT / "sdk"}
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "split", "sub")
# Representatives of the classes that patterns name, and what often stands between.
USUAL = ("a", "0", "A", "é", " ", "\n", ".", '"', "\\", "-", ":", ",", "/", "x.", "0:")
MOST_UNITS = 24
SOAK = bool(os.environ.get("SOAK"))
SCREEN, SHORT, LONG = 1_000, *((100_000, 1_000_000) if SOAK else (20_000, 200_000))
MOST_TIMES = 15.0
# A megabyte's result takes memory that is new to the process, a tenth of it does not.
# Who is quadratic takes a hundred times as long, so it shows all the same.
MEMORY_SECONDS = 0.02
# What takes that long for 10,000 characters is not linear; what takes less than this
# for the short text cannot be measured.
QUADRATIC_SECONDS, WORTH_SECONDS = 0.1, 0.002
WORST = 3
# What a query may be long, which is checked before; see `MAX_LENGTH` of
# `apps.poison.query_language`.
BOUNDED = dict.fromkeys(
    ("apps.poison.query_language._TOKEN", "apps.poison.query_language._QUOTED"), 2_000
)
BOUNDED_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A pattern and one method that the product calls on it."""

    where: str
    pattern: re.Pattern[Any]
    method: str

    def __str__(self) -> str:
        return f"{self.where}.{self.method}"

    def seconds(self, text: str) -> float:
        """Return the processor time of a search through the whole text."""
        subject: Any = text
        if isinstance(self.pattern.pattern, bytes):
            subject = text.encode("latin-1", "replace")
        call: Callable[..., Any] = getattr(self.pattern, self.method)
        arguments = (
            (lambda match: match[0], subject) if self.method == "sub" else (subject,)
        )
        began = time.process_time()
        result = call(*arguments)
        if self.method == "finditer":
            for _ in result:
                pass
        return time.process_time() - began


def uses() -> Iterator[Use]:
    for module, source in sources():
        yield from uses_in(module, source)


def sources() -> Iterator[tuple[str, str]]:
    for package, root in FOLDERS.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if "migrations" not in parts:
                name = ".".join(parts)
                yield name.removesuffix(".__init__"), path.read_text()


def uses_in(module: str, source: str) -> Iterator[Use]:
    # Others are not loaded: the web's own module changes the settings of its process.
    if not re.search("^import re$", source, re.MULTILINE):
        return
    patterns = {
        name: value
        for name, value in vars(import_module(module)).items()
        if isinstance(value, re.Pattern)
    }
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        method = {"subn": "sub"}.get(node.attr, node.attr)
        if node.value.id in patterns and method in METHODS:
            name = node.value.id
            yield Use(where=f"{module}.{name}", pattern=patterns[name], method=method)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (use := inline(module, node)):
            yield use


def inline(module: str, call: ast.Call) -> Use | None:
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="re"), attr=method),
            args=[ast.Constant(value=str() | bytes() as text), *_],
        ) if method in METHODS:
            where = f"{module}:{call.lineno}"
            return Use(where=where, pattern=re.compile(text), method=method)
    return None


def literals(pattern: re.Pattern[Any]) -> list[str]:
    """Return the runs of characters that a pattern names."""
    runs = [""]
    for node in nodes(parser.parse(pattern.pattern, pattern.flags)):
        is_literal = isinstance(node, tuple) and node[0] is codes.LITERAL
        if is_literal:
            runs[-1] += chr(node[1])
        elif runs[-1]:
            runs.append("")
    return sorted({run for run in runs if run})


def nodes(tree: Any) -> Iterator[Any]:
    """Walk what `re` parsed; what is no literal character ends a run."""
    for item in tree:
        yield item
        if isinstance(item, parser.SubPattern | list) or (
            isinstance(item, tuple) and item[0] is not codes.LITERAL
        ):
            yield from nodes(item)


def texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Yield how a hostile text begins, and what it repeats."""
    runs = literals(pattern)
    units = list(dict.fromkeys([*USUAL, *runs, *(run[0] for run in runs)]))[:MOST_UNITS]
    yield from product(["", *runs], units)
    yield from (("", a + b) for a, b in permutations(units, 2))


def text(start: str, unit: str, size: int) -> str:
    return start + unit * (size // len(unit))


USES = {str(use): use for use in uses()}


@pytest.mark.parametrize("name", USES)
def test_a_hostile_text_ten_times_as_long_takes_at_most_15_times_as_long(
    name: str,
) -> None:
    use = USES[name]
    if longest := BOUNDED.get(use.where):
        slowest = max(least(use, text(*each, longest)) for each in texts(use.pattern))
        assert slowest < BOUNDED_SECONDS
        return

    took = {each: use.seconds(text(*each, SCREEN)) for each in texts(use.pattern)}

    for each in sorted(took, key=lambda each: took[each], reverse=True)[:WORST]:
        longer = least(use, text(*each, 10 * SCREEN))
        assert longer < QUADRATIC_SECONDS, f"{each}: {longer:.2f} s for {10 * SCREEN}"
        short, long = least(use, text(*each, SHORT)), least(use, text(*each, LONG))
        if short > WORTH_SECONDS:
            most = MOST_TIMES * short + MEMORY_SECONDS
            assert long <= most, f"{each}: {short:.4f} s, {long:.4f} s"


def least(use: Use, text: str) -> float:
    return min(use.seconds(text) for _ in range(3))


def test_a_pattern_that_starts_again_at_each_quote_is_noticed() -> None:
    quadratic = re.compile(r'"(?:[^"\\]|\\.)*"')
    use = Use(where="here", pattern=quadratic, method="findall")

    assert ("", '\\"') in texts(quadratic)
    assert use.seconds(text("", '\\"', 10 * SCREEN)) > QUADRATIC_SECONDS


def test_every_pattern_that_a_module_makes_has_a_use_that_is_found() -> None:
    """One that is handed to a function, or imported, is not: call it at its place."""
    used = {use.where for use in USES.values()}

    assert sorted(set(module_patterns()) - used) == []


def module_patterns() -> Iterator[str]:
    """Name the patterns that the modules of the product make for themselves."""
    for module, source in sources():
        for node in ast.parse(source).body:
            if makes_pattern(node):
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                targets = (
                    node.targets if isinstance(node, ast.Assign) else [node.target]
                )
                yield from (f"{module}.{ast.unparse(target)}" for target in targets)


def makes_pattern(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return value is not None and any(
        isinstance(part, ast.Attribute) and ast.unparse(part) == "re.compile"
        for part in ast.walk(value)
    )


@pytest.mark.parametrize(
    "line", ["A = re.compile(b)", "A: P = re.compile(b)", "A = [re.compile(b), 1]"]
)
def test_a_pattern_that_a_module_makes_is_noticed(line: str) -> None:
    [node] = ast.parse(line).body

    assert makes_pattern(node)


def test_patterns_are_found_in_every_package() -> None:
    packages = {use.where.partition(".")[0] for use in USES.values()}

    assert packages == {"apps", "poisonguard", "poisonweb", "spark"}
    assert "apps.dashboard.presentation.message_body._TOKEN.findall" in USES
