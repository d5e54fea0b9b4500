"""The fields of settings that are declared once, see `apps.core.declared_settings`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rest_framework import serializers

from apps.api.serializers.base import (
    AnyField,
    Flag,
    Number,
    PlainText,
    Real,
    choice,
)
from apps.core.declared_settings import Kind, Setting


class Texts(serializers.ListField):
    """A list of texts, which may be empty."""

    default_error_messages: ClassVar = {
        **dict.fromkeys(("not_a_list", "null", "required"), "send a list of texts"),
        "max_length": "send at most {max_length} texts",
    }


class SettingFields:
    """Make the field of each setting; `noun` begins the names of enums: Endpoint.

    `most_lines` bounds the lists of settings that are LINES.
    """

    def __init__(
        self, noun: str, settings: Iterable[Setting], *, most_lines: int = 0
    ) -> None:
        self._settings = tuple(settings)
        self._most_lines = most_lines
        self._words = {
            setting.name: choice(
                noun + setting.name.title().replace("_", ""), setting.words
            )
            for setting in self._settings
            if setting.kind is Kind.WORD
        }

    def __call__(self, **options: Any) -> dict[str, AnyField]:
        """Return a serializer field for each setting, with its help.

        `options` are for all fields.
        """
        return {
            setting.name: self._field(setting, help_text=_help(setting), **options)
            for setting in self._settings
        }

    def _field(self, setting: Setting, **options: Any) -> AnyField:
        match setting.kind:
            case Kind.TEXT:
                return _text(setting, **options)
            case Kind.LINES:
                line = PlainText(max_length=int(setting.most), allow_blank=False)
                return Texts(child=line, max_length=self._most_lines, **options)
            case Kind.FLAG:
                return Flag(**options)
            case Kind.WHOLE:
                return _whole(setting, **options)
            case Kind.NUMBER:
                return _real(setting, **options)
            case Kind.WORD:
                return self._words[setting.name](**options)


def _text(setting: Setting, **options: Any) -> AnyField:
    limits = {"max_length": int(setting.most), "allow_blank": setting.is_optional}
    return PlainText(**limits, **options)


def _whole(setting: Setting, **options: Any) -> AnyField:
    return Number(
        min_value=int(setting.least),
        max_value=int(setting.most),
        allow_null=setting.is_optional,
        **options,
    )


def _real(setting: Setting, **options: Any) -> AnyField:
    return Real(
        least=setting.least,
        most=setting.most,
        allow_null=setting.is_optional,
        **options,
    )


def _help(setting: Setting) -> str:
    unit = f"{setting.unit}: " if setting.unit else ""
    words = "; ".join(f"{word}: {means}" for word, means in setting.words.items())
    return unit + setting.help + (f" ({words})" if words else "")


def read_from_source(
    fields: Mapping[str, AnyField], source: str
) -> dict[str, AnyField]:
    """Let serializer fields be read from the attribute `source`; return them."""
    for name, field in fields.items():
        field.source = f"{source}.{name}"
    return dict(fields)
