"""Untrusted text and long names on pages."""

from __future__ import annotations

import pytest

from apps.dashboard.presentation.legible_text import breakable, legible


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
