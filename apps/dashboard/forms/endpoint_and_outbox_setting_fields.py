"""The form fields of settings that are declared once, with what is typed for each.

See `apps.core.declared_settings`. What was typed stays a text until it is parsed, so
that a refused form is shown again as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from django.http import QueryDict

from apps.core.declared_settings import Kind, Setting
from apps.core.errors import Invalid

_LONGEST_NUMBER = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingField:
    """A setting with what is typed for it."""

    setting: Setting
    text: str

    @property
    def is_ticked(self) -> bool:
        return bool(self.text)


def submitted_texts(settings: Iterable[Setting], data: QueryDict) -> dict[str, str]:
    """Read the submitted texts of a settings form, still unchecked."""
    return {setting.name: data.get(setting.name, "") for setting in settings}


def texts_of(settings: Iterable[Setting], values: object) -> dict[str, str]:
    """Write the settings in `values` as texts for a form."""
    return {
        setting.name: _text(setting, getattr(values, setting.name))
        for setting in settings
    }


def sections(
    settings: Iterable[Setting], texts: Mapping[str, str]
) -> Iterator[tuple[StrEnum, list[SettingField]]]:
    """Yield each group of a form's settings with its fields."""
    for group, members in groupby(settings, key=lambda setting: setting.group):
        yield (
            group,
            [SettingField(setting=each, text=texts[each.name]) for each in members],
        )


def parse_settings(
    settings: Iterable[Setting], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Parse a form's settings; raise Invalid for the first wrong value."""
    return {setting.name: _parsed(setting, texts[setting.name]) for setting in settings}


def version_in(data: QueryDict) -> int | None:
    """Return the settings version that a form was made of; None without one."""
    version = data.get("version", "")
    is_number = version.isascii() and version.isdigit()
    return int(version) if is_number and len(version) < _LONGEST_NUMBER else None


def _text(setting: Setting, value: Any) -> str:
    match setting.kind:
        case Kind.LINES:
            return "\n".join(value)
        case Kind.FLAG:
            return "1" if value else ""
        case Kind.NUMBER:
            return "" if value is None else f"{value:.15g}"
        case _:
            return "" if value is None else str(value)


def _parsed(setting: Setting, text: str) -> Any:
    """Parse the text of a setting's field; raise Invalid for a wrong number."""
    match setting.kind:
        case Kind.LINES:
            return tuple(filter(None, map(str.strip, text.splitlines())))
        case Kind.FLAG:
            return bool(text)
        case Kind.WHOLE:
            return _number(setting, text, int, "give a whole number")
        case Kind.NUMBER:
            return _number(setting, text, float, "give a number")
        case _:
            return text.strip()


def _number(
    setting: Setting, text: str, parse: type[int] | type[float], remedy: str
) -> float | None:
    """Parse a setting's number; return None for an empty text.

    Raises Invalid for a text that is no number.
    """
    text = text.strip()
    if not text:
        return None
    try:
        if len(text) <= _LONGEST_NUMBER and text.isascii() and "_" not in text:
            return parse(text)
    except ValueError:
        raise Invalid(setting.name, remedy) from None
    raise Invalid(setting.name, remedy)
