"""Preferences come from cookies, which may hold any value."""

from __future__ import annotations

from apps.dashboard.preferences import cookies_to_set, preferences_from


def test_unknown_values_are_the_defaults() -> None:
    values = preferences_from({"pw_theme": '"><script>', "pw_density": "compact"})

    assert values == {
        "theme": "auto",
        "density": "compact",
        "refresh": "5",
        "times": "utc",
        "keys": "on",
    }


def test_only_what_is_allowed_becomes_a_cookie() -> None:
    assert cookies_to_set({"theme": "dark", "density": "huge", "admin": "1"}) == {
        "pw_theme": "dark"
    }
