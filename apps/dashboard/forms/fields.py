"""Form fields and checks that several forms share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict

from apps.audit.services import REASON_LIMIT
from apps.core.errors import Invalid, PoisonwebError, Refused
from apps.dashboard.keyset_pagination import MAX_ID


class Ids(forms.TypedMultipleChoiceField):
    """A list of row ids; the selection checks later which of them exist."""

    def __init__(self) -> None:
        super().__init__(coerce=int, required=False)

    def valid_value(self, value: Any) -> bool:
        """Tell whether a submitted value could be a row's id, without any choices."""
        text = str(value)
        return text.isascii() and text.isdigit() and int(text[:20]) <= MAX_ID


def one_line_break(text: str) -> str:
    """Replace CRLF in a submitted text, which browsers send, by LF."""
    return text.replace("\r\n", "\n")


class ReasonField(forms.CharField):
    """A reason; the service that records it says where it must not be empty."""

    def __init__(self) -> None:
        super().__init__(required=False, max_length=REASON_LIMIT)

    def to_python(self, value: Any) -> str:
        """Return a submitted reason with LF line breaks, as the audit records it."""
        return one_line_break(super().to_python(value) or "")


def reason_in(data: QueryDict) -> str:
    """Return the reason in a form's data with LF as line break; "" without one."""
    return one_line_break(data.get("reason") or "")


def require_valid(form: forms.Form) -> None:
    """Raise Invalid for the first wrong field of a form."""
    if not form.is_valid():
        field, problems = next(iter(form.errors.items()))
        raise Invalid(field, str(problems[0]).rstrip("."))


def field_of(wrong: PoisonwebError | None) -> str:
    """Return the name of an error's wrong field; "" if it names none."""
    # An adapter also names the option: "options body_field".
    if not isinstance(wrong, Invalid | Refused):
        return ""
    return wrong.field.partition(" ")[0]


def options_as_json(options: Mapping[str, object]) -> str:
    """Format a broker's or topic's options as JSON; "" without options."""
    return json.dumps(options, ensure_ascii=False, indent=2) if options else ""
