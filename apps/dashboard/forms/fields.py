"""Fields that several forms share, and how a form's first fault is raised."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict

from apps.core.errors import Invalid
from apps.dashboard.paging import MAX_ID


class Ids(forms.TypedMultipleChoiceField):
    """Any number of row numbers; which of them exist is for the selection to say."""

    def __init__(self) -> None:
        super().__init__(coerce=int, required=False)

    def valid_value(self, value: Any) -> bool:
        text = str(value)
        return text.isascii() and text.isdigit() and int(text[:20]) <= MAX_ID


def one_line_break(text: str) -> str:
    """Give a text with one sign for each end of a line: browsers send CRLF."""
    return text.replace("\r\n", "\n")


class ReasonField(forms.CharField):
    def to_python(self, value: Any) -> str:
        return one_line_break(super().to_python(value) or "")


def reason_in(data: QueryDict) -> str:
    """Read the reason that a form sends, as it will be on record."""
    return one_line_break(data.get("reason") or "")


def require_valid(form: forms.Form) -> None:
    """Raise Invalid for the first field that is wrong."""
    if not form.is_valid():
        field, problems = next(iter(form.errors.items()))
        raise Invalid(field, str(problems[0]).rstrip("."))
