"""The fields that many schemas have, and what they are made from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from poisonguard.contract import Cause

Text = serializers.CharField
Number = serializers.IntegerField
Moment = serializers.DateTimeField
Day = serializers.DateField
Id = serializers.UUIDField
AnyField = serializers.Field[Any, Any, Any, Any]


def choice(name: str, values: Iterable[str]) -> type[Text]:
    """Make the field of a named set of values; one name, one component."""
    schema = {"type": "string", "enum": list(values)}
    field = type(name, (Text,), {})
    extend_schema_field(schema, component_name=name)(field)
    return field


CauseName = choice("Cause", Cause)


# Bases have no docstring: it would be told of each shape made from them.
class Schema(serializers.Serializer[Any]): ...


class Sourced(Schema):
    # Declared late: rest_framework's own classes have taken the name.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": Text(help_text="ui, api or system")}


class List(Schema):
    next = Text(
        allow_null=True, help_text="the cursor of what follows; null at the end"
    )
