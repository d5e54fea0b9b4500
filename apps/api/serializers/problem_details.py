"""Errors as problems of RFC 9457."""

from __future__ import annotations

from apps.api.serializers.base import AnyField, Number, Schema, Text
from apps.api.serializers.operation_previews import Preview


class FieldError(Schema):
    pointer = Text(help_text="JSON Pointer to the member or parameter")
    detail = Text()


class Problem(Schema):
    """RFC 9457: what went wrong."""

    type = Text(help_text="names the kind of problem; about:blank where HTTP says it")
    title = Text()
    status = Number()
    detail = Text()
    request_id = Text()

    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "errors": FieldError(many=True)}


class StaleProblem(Problem):
    """A 409; `preview` is there when a preview went stale, null if none can be made."""

    preview = Preview(required=False, allow_null=True)
