"""The words of the tree: names are nouns of the field, sentences are plain."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.unit.test_architecture import ROOT, tracked

# A participle does not say what a value is: `told` was a JSON body, a percentage, a
# date and a dozen things more.
PARTICIPLES = frozenset(
    {
        *("asked", "found", "fresh", "given", "gone", "held", "kept", "known", "left"),
        *("made", "seen", "sent", "shown", "taken", "told", "wanted"),
    }
)
# What others say, and what the product calls it.
OURS_OF_OTHERS = {
    "dlq": "dead_letter_queue",
    "dlx": "dead_letter_queue",
    "ingest": "capture",
    "nack": "release",
    "purge": "prune",
    "relapse": "recurrence",
    "resubmit": "redrive",
}
# There a broker's own words are right.
OF_BROKERS = (
    *("apps/brokers/adapters/", "apps/brokers/vocabularies/"),
    "sdk/poisonguard/amps",
)
RIDDLES = re.compile(
    r"\b([Ww]hoever|[Nn]obody|[Ss]omebody|[Aa]new|tells? of|says? of|goes again)\b"
)
TAGS = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
# Members of the wire, columns, a form's field and a public method: others see them.
EXEMPT = {
    "apps/api/serializers/moves.py": {"held"},
    "apps/api/serializers/poisons.py": {"shown"},
    "apps/api/serializers/previews.py": {"taken"},
    "apps/api/serializers/problems.py": {"sent"},
    "apps/api/serializers/topics.py": {"held"},
    "apps/dashboard/forms/skips.py": {"seen"},
    "apps/poison/models/skips.py": {"made"},
    "apps/triage/models.py": {"held", "taken"},
    "sdk/poisonguard/bookmarks.py": {"asked"},
}


def sources() -> Iterator[tuple[str, str]]:
    """Give each Python file but migrations, which stay as they were released."""
    for file in tracked(".py"):
        name = str(file.relative_to(ROOT))
        if "/migrations/" not in name:
            yield name, file.read_text()


def names_bound(tree: ast.Module) -> Iterator[str]:
    """Give each name that a file gives to something."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name.lower()
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case _:
                pass


def test_no_name_is_a_bare_participle() -> None:
    riddles = {
        f"{file}: {name}"
        for file, source in sources()
        for name in names_bound(ast.parse(source))
        if name.strip("_") in PARTICIPLES - EXEMPT.get(file, set())
    }

    assert riddles == set()


def test_each_exemption_is_needed() -> None:
    bound = {file: set(names_bound(ast.parse(source))) for file, source in sources()}

    for file, names in EXEMPT.items():
        assert names <= bound[file]


def test_no_module_is_named_by_a_bare_participle() -> None:
    stems = {file: Path(file).stem for file, _ in sources()}

    assert [file for file, stem in stems.items() if stem in PARTICIPLES] == []


def test_no_name_uses_a_word_of_others_for_one_of_ours() -> None:
    others = {
        f"{file}: {name}: say {OURS_OF_OTHERS[part]}"
        for file, source in sources()
        if not file.startswith((*OF_BROKERS, "tests/"))
        for name in names_bound(ast.parse(source))
        for part in name.lower().split("_")
        if part in OURS_OF_OTHERS
    }

    assert others == set()


def test_no_docstring_or_comment_is_a_riddle() -> None:
    riddles = {
        f"{file}: {riddle}"
        for file, source in sources()
        for riddle in riddles_in(sentences(source))
    }

    assert riddles == set()


def test_no_page_is_a_riddle() -> None:
    riddles = {
        f"{page.relative_to(ROOT)}: {riddle}"
        for page in tracked(".html")
        for riddle in riddles_in([TAGS.sub("", page.read_text())])
    }

    assert riddles == set()


def sentences(source: str) -> Iterator[str]:
    """Give the docstrings and the comments of a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def riddles_in(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for match in RIDDLES.finditer(text):
            yield text[max(0, match.start() - 30) : match.end() + 20]
