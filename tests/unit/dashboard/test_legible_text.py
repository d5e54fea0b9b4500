"""Untrusted text and long names on pages."""

from __future__ import annotations

import json

import pytest

from apps.dashboard.presentation.legible_text import as_json, breakable, legible


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<script>", "&lt;script&gt;"),
        ("a\u202eb", 'a<span class="unseen">U+202E</span>b'),
        ("\x1b\x00", '<span class="unseen">U+001B U+0000</span>'),
        ("two\nlines\t.", "two\nlines\t."),
        ("naïve 漢字 🎉", "naïve 漢字 🎉"),
    ],
)
def test_shows_what_would_hide_in_a_text(text: str, html: str) -> None:
    assert legible(text) == html


def test_a_text_to_copy_is_exact_and_has_no_character_that_html_changes() -> None:
    text = 'a\0b\r\nc\rd</script>"&amp;\u2028\ufeff\u202e\U0001f600'

    to_copy = as_json(text)

    assert json.loads(to_copy) == text
    assert to_copy.isascii()
    assert to_copy.isprintable()


@pytest.mark.parametrize(
    ("name", "html"),
    [
        ("KeyError", "Key<wbr>Error"),
        ("a.b.HTTPError2X", "a.<wbr>b.<wbr>HTTPError2<wbr>X"),
        ("x-died_at:/q", "x-<wbr>died_<wbr>at:/<wbr>q"),
        ("a <b>", "a &lt;b&gt;"),
        ("a\u202eB", 'a<span class="unseen">U+202E</span>B'),
        ("...", "..."),
        ("", ""),
    ],
)
def test_a_long_name_may_break_where_its_words_meet(name: str, html: str) -> None:
    assert breakable(name) == html
