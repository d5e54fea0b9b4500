"""Settings of a row that people change, declared once: see `Setting`.

The form, the API and the check of a value all derive from the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from apps.core.errors import Invalid


class Kind(StrEnum):
    """What the value of a setting is; LINES is several texts."""

    TEXT = "text"
    LINES = "lines"
    FLAG = "flag"
    WHOLE = "whole"
    NUMBER = "number"
    WORD = "word"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A setting: `least` and `most` bound a number, `most` the length of a text.

    `group` is the heading of those that belong together. `words` are the values of a
    WORD, each with what it means. An optional number may be None, an optional text
    empty. `help` is plain text.
    """

    name: str
    kind: Kind
    group: StrEnum
    label: str
    help: str
    unit: str = ""
    least: float = 0
    most: float = 0
    words: Mapping[str, str] = field(default_factory=dict)
    is_optional: bool = False


def in_full(number: float) -> str:
    """Write a number as people read it: 31,622,400 and 0.5, without an exponent."""
    return f"{number:,.15g}"


def check_value(setting: Setting, value: Any) -> None:
    """Raise Invalid for a wrong value of a setting of an endpoint or outbox.

    Flags and settings of several lines pass: lines are checked where they are
    declared.
    """
    match setting.kind:
        case Kind.WHOLE | Kind.NUMBER:
            _check_bounds(setting, value)
        case Kind.WORD:
            if value not in setting.words:
                raise Invalid(setting.name, f"use one of {', '.join(setting.words)}")
        case Kind.TEXT:
            _check_text(setting, value)
        case Kind.FLAG | Kind.LINES:
            pass  # a flag is any bool


def _check_bounds(setting: Setting, value: float | None) -> None:
    """Raise Invalid for an endpoint's or outbox's number out of its bounds, or NaN."""
    if value is None:
        if not setting.is_optional:
            raise Invalid(setting.name, "give a number")
    elif not setting.least <= value <= setting.most:
        raise Invalid(
            setting.name,
            f"give a number from {in_full(setting.least)} to {in_full(setting.most)}",
        )


def _check_text(setting: Setting, value: str) -> None:
    """Raise Invalid for an endpoint's or outbox's text that is missing or too long."""
    if not value and not setting.is_optional:
        raise Invalid(setting.name, f"give it: {setting.help}")
    if len(value) > setting.most:
        raise Invalid(setting.name, f"give at most {in_full(setting.most)} characters")
