"""The recipes of CONTRIBUTING.md lead to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = sorted(
    set(re.findall(r"`([\w.<>-]+(?:/[\w.<>-]*)+|[\w-]+\.(?:md|in|toml|yaml))`", TEXT))
)
TARGETS = sorted(set(re.findall(r"`make (\w+)", TEXT)))


@pytest.mark.parametrize("named", NAMED)
def test_every_path_leads_somewhere(named: str) -> None:
    # What one is to make has its name in brackets: the folder around it is there.
    there, _, to_make = named.partition("<")
    folder = there.rpartition("/")[0] if to_make else there

    assert (ROOT / folder).exists()


def test_the_recipes_name_their_files() -> None:
    headings = re.findall(r"^### (.+)$", TEXT, flags=re.MULTILINE)

    assert headings == [
        "Add a broker",
        "Add a page",
        "Add a field to the API",
        "Add a report, or a column of one",
        "Add a migration",
    ]
    assert len(NAMED) > 40


@pytest.mark.parametrize("target", TARGETS)
def test_every_command_of_make_is_one(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
