"""Pills of states."""

from __future__ import annotations

from apps.dashboard.presentation.state_pills import pill


def test_a_state_is_a_word_a_glyph_and_a_colour() -> None:
    assert pill("handled") == (
        '<span class="pill ok"><span aria-hidden="true">✓</span>Handled</span>'
    )


def test_a_state_from_tomorrow_is_shown_by_its_own_word() -> None:
    assert "Snoozed" in pill("snoozed")
