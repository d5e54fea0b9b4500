"""The fields and base classes that the serializers share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.audit.services import REASON_LIMIT
from poisonguard.contract import Cause

Text = serializers.CharField
Number = serializers.IntegerField
Moment = serializers.DateTimeField
Day = serializers.DateField
Id = serializers.UUIDField
Reason = partial(Text, required=False, allow_blank=True, max_length=REASON_LIMIT)
AnyField = serializers.Field[Any, Any, Any, Any]


def choice(name: str, values: Iterable[str]) -> type[Text]:
    """Define a field for a named set of values; each name is a component."""
    schema = {"type": "string", "enum": list(values)}
    field = type(name, (Text,), {})
    extend_schema_field(schema, component_name=name)(field)
    return field


CauseName = choice("Cause", Cause)


# Base classes have no docstring: it would describe each schema derived from them.
class Schema(serializers.Serializer[Any]): ...


class Sourced(Schema):
    # Not a class attribute: serializers of rest_framework use this name themselves.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": Text(help_text="ui, api or system")}


class List(Schema):
    next = Text(
        allow_null=True, help_text="the cursor of what follows; null at the end"
    )
