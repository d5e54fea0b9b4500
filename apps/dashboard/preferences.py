"""A person's display preferences, kept in cookies: the server renders them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ONE_YEAR = 365 * 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    name: str
    label: str
    options: tuple[tuple[str, str], ...]  # value and label; the first is the default

    @property
    def cookie(self) -> str:
        """Return the name of the cookie that stores this display preference."""
        return f"pw_{self.name}"

    def value_in(self, cookies: Mapping[str, str]) -> str:
        """Return the preference's value in the cookies; else the default."""
        value = cookies.get(self.cookie, "")
        return value if self.allows(value) else self.options[0][0]

    def allows(self, value: str) -> bool:
        return any(value == option for option, _ in self.options)


PREFERENCES = (
    Preference(
        name="theme",
        label="Theme",
        options=(("auto", "System"), ("light", "Light"), ("dark", "Dark")),
    ),
    Preference(
        name="density",
        label="Rows",
        options=(("normal", "Normal"), ("compact", "Compact")),
    ),
    Preference(
        name="refresh",
        label="Updates",
        options=(("5", "5 s"), ("15", "15 s"), ("60", "60 s"), ("0", "Off")),
    ),
    Preference(
        name="times",
        label="Times",
        options=(("utc", "UTC"), ("local", "Local")),
    ),
    Preference(
        name="keys",
        label="Keys",
        options=(("on", "On"), ("off", "Off")),
    ),
)


def preferences_from(cookies: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each display preference, by name, from the cookies."""
    return {each.name: each.value_in(cookies) for each in PREFERENCES}


def cookies_to_set(form: Mapping[str, str]) -> dict[str, str]:
    """Return the display preferences' cookies that a form sets; skip wrong ones."""
    return {
        each.cookie: form[each.name]
        for each in PREFERENCES
        if each.allows(form.get(each.name, ""))
    }
