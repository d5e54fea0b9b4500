"""Moments and ages as text."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.dashboard.presentation.moments import in_words, relative


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (59, "now"), (60, "1m"), (7200, "2h"), (1e6, "11d")],
)
def test_tells_an_age_in_its_largest_unit(seconds: float, text: str) -> None:
    assert relative(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(("age", "text"), [("now", "just now"), ("3h", "3h ago")])
def test_an_age_in_a_sentence_is_said_in_words(age: str, text: str) -> None:
    assert in_words(age) == text
