"""Untrusted text, long names and bytes, so that a person can read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import groupby

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString

# Where a long name may break: behind punctuation, and before a capital.
SEAMS = re.compile(r"(?<=[._:/$@-])(?=\w)|(?<=[a-z0-9])(?=[A-Z])")


def legible(text: object) -> SafeString:
    """Show untrusted text; invisible characters appear as their code points."""
    text = str(text)
    if text.isprintable():  # most texts: without a look at each character
        return escape(text)
    runs = groupby(text, key=_is_visible)
    pieces = (
        _visible_run(run) if is_visible else _code_points(run)
        for is_visible, run in runs
    )
    return format_html_join("", "{}", ((piece,) for piece in pieces))


def breakable(name: object) -> SafeString:
    """Show a long name that may break behind punctuation and before capitals."""
    pieces = ((legible(piece),) for piece in SEAMS.split(str(name)))
    return format_html_join(SafeString("<wbr>"), "{}", pieces)


def as_json(text: str) -> str:
    """Return a text for a Copy button, as JSON: HTML would change NUL and CR."""
    return json.dumps(text)


def hexadecimal(value: bytes) -> str:
    """Format bytes of a message as hexadecimal digits."""
    return bytes(value).hex()


def _is_visible(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def _visible_run(run: Iterable[str]) -> str:
    """Join characters of untrusted text that are all visible, without a change."""
    return "".join(run)


def _code_points(run: Iterable[str]) -> SafeString:
    """Show invisible characters by their code points."""
    marks = " ".join(f"U+{ord(character):04X}" for character in run)
    return format_html('<span class="unseen">{}</span>', marks)
