"""Strict fields, and the base classes of the serializers: each member is declared once.

A field parses a member of a request, describes it in the OpenAPI schema and renders it
in an answer. It takes only what it describes: "1" is no number, and 1 is no text.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from itertools import islice
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from django.http import QueryDict
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.settings import api_settings

from apps.api.list_in_request_body import members_of
from apps.api.request_exceptions import InvalidMembers
from apps.audit.services import REASON_LIMIT
from apps.core.declared_settings import in_full
from apps.core.errors import Invalid, step
from apps.core.text_cleaning import storable
from poisonguard import contract
from poisonguard.contract import Cause, has_control_character, uuid_of

NAME_LIMIT = contract.NAME_LIMIT
# Of a number in an address.
MOST_DIGITS = 20
# A request can have any number of unknown members.
MOST_FAULTS = 20

# Of a member that may be left out or null, which is the same.
OPTIONAL: dict[str, Any] = {"default": None, "allow_null": True}

AnyField = serializers.Field[Any, Any, Any, Any]
P = ParamSpec("P")
Value = TypeVar("Value")


def _messages(invalid: str, **others: str) -> dict[str, Any]:
    """Return a field's error messages, the same for missing, null or wrong values."""
    return {**dict.fromkeys(("invalid", "null", "required"), invalid), **others}


class Text(serializers.CharField):
    """Text as it was sent: not trimmed, and no number is made text."""

    default_error_messages: ClassVar = _messages(
        "send text",
        blank="send at least one character",
        max_length="send text of at most {max_length} characters",
        unstorable="it holds a character that no stored text has",
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: object) -> Any:
        if not isinstance(data, str):
            self.fail("invalid")
        if self.max_length is not None and len(data) > self.max_length:
            self.fail("max_length", max_length=self.max_length)
        if data != storable(data):
            self.fail("unstorable")
        return data


class Name(Text):
    """A name whose characters are not all blanks."""

    default_error_messages: ClassVar = {
        "control": "it holds a control character or half a surrogate pair: remove it"
    }

    def __init__(self, *, max_length: int = NAME_LIMIT, **options: Any) -> None:
        self.most = max_length
        messages = _messages(f"send a name of 1 to {max_length} characters")
        ours = {"min_length": 1, "error_messages": messages}
        super().__init__(**{**ours, "max_length": max_length, **options})

    def run_validation(self, data: object = serializers.empty) -> Any:
        # Before rest_framework looks whether it is blank, with a message of its own.
        return serializers.Field.run_validation(self, data)

    def to_internal_value(self, data: object) -> str:
        if not isinstance(data, str) or not data.strip() or len(data) > self.most:
            self.fail("invalid")
        if has_control_character(data):
            self.fail("control")
        return data


class Visible(Text):
    """Text that a person enters as a name: all its characters can be seen."""

    default_error_messages: ClassVar = {
        "invisible": "it holds a character that cannot be seen"
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_length": NAME_LIMIT, **options})

    def to_internal_value(self, data: object) -> Any:
        text = super().to_internal_value(data)
        if not text.isprintable():
            self.fail("invisible")
        return text


class ReasonText(Text):
    """The reason of a decision, as the audit trail records it."""

    def __init__(self, **options: Any) -> None:
        ours = {"default": "", "allow_blank": True, "allow_null": True}
        super().__init__(**{**ours, "max_length": REASON_LIMIT, **options})

    def run_validation(self, data: object = serializers.empty) -> Any:
        return super().run_validation(data) or ""

    def to_internal_value(self, data: object) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        # Measured as it is stored: a blank at either end does not count.
        return str(super().to_internal_value(storable(data.strip())))


class Number(serializers.IntegerField):
    """A whole number of JSON."""

    default_error_messages: ClassVar = _messages(
        "send a whole number",
        range="send a whole number from {min_value} to {max_value}",
        min_value="send a whole number of at least {min_value}",
    )

    def to_internal_value(self, data: object) -> int:
        # A bool is an int to Python.
        if type(data) is not int or not self._is_within(data):
            bounds = {"min_value": self.min_value, "max_value": self.max_value}
            if self.min_value is None:
                self.fail("invalid")
            self.fail("min_value" if self.max_value is None else "range", **bounds)
        return data

    def _is_within(self, number: int) -> bool:
        low, high = self.min_value, self.max_value
        return (low is None or low <= number) and (high is None or number <= high)


class NumberOfAddress(Number):
    """A whole number in the query of an address, where all is text."""

    def to_internal_value(self, data: object) -> int:
        is_number = isinstance(data, str) and data.isascii() and data.isdigit()
        number = int(str(data)) if is_number and len(str(data)) < MOST_DIGITS else data
        return super().to_internal_value(number)


class Real(serializers.FloatField):
    """A number of JSON, with or without a fraction."""

    default_error_messages: ClassVar = _messages(
        "send a number", range="send a number from {least} to {most}"
    )

    def __init__(self, *, least: float, most: float, **options: Any) -> None:
        self.least, self.most = least, most
        super().__init__(**options, min_value=least, max_value=most)

    def to_internal_value(self, data: object) -> float:
        # A bool is a number to Python.
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        # Of a NaN, neither comparison is true.
        if not self.least <= data <= self.most:
            self.fail("range", least=in_full(self.least), most=in_full(self.most))
        return float(data)


class Flag(serializers.BooleanField):
    """True or false, and no word or number that means as much."""

    default_error_messages: ClassVar = _messages("send true or false")

    def to_internal_value(self, data: object) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


class Moment(serializers.DateTimeField):
    """A time and its zone; answers give it in UTC."""

    default_error_messages: ClassVar = _messages(
        "send a time and its zone, such as 2026-11-20T09:30Z"
    )

    def to_internal_value(self, value: object) -> datetime:
        try:
            moment = datetime.fromisoformat(value if isinstance(value, str) else "")
            in_utc = moment.astimezone(UTC) if moment.tzinfo else None
        except (ValueError, OverflowError):
            in_utc = None
        if in_utc is None:
            self.fail("invalid")
        return in_utc


class Id(serializers.UUIDField):
    """A UUID in its usual spelling, without braces."""

    default_error_messages: ClassVar = _messages(
        "send a UUID, as 8-4-4-4-12 hexadecimal digits"
    )

    def to_internal_value(self, data: object) -> uuid.UUID:
        parsed = uuid_of(data) if isinstance(data, str) else None
        if parsed is None:
            self.fail("invalid")
        return parsed


class Hex(Text):
    """Bytes of an answer, in hexadecimal."""

    def to_representation(self, value: Any) -> str:
        return bytes(value).hex()


class TextOrNull(Text):
    """Text of an answer: null where it is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_null": True, **options})

    def to_representation(self, value: Any) -> Any:
        return super().to_representation(value) or None


class DayField(serializers.DateField):
    """A day of the calendar; in a query, an empty one is left out."""

    default_error_messages: ClassVar = _messages("send a day such as 2026-11-20")

    def validate_empty_values(self, data: object) -> tuple[bool, Any]:
        return super().validate_empty_values(serializers.empty if data == "" else data)

    def to_internal_value(self, value: object) -> date:
        try:
            return date.fromisoformat(value if isinstance(value, str) else "")
        except ValueError:
            self.fail("invalid")


class PlainText(Text):
    """Text without control characters, such as a name that may be empty."""

    default_error_messages: ClassVar = {
        "control": Name.default_error_messages["control"]
    }

    def __init__(self, **options: Any) -> None:
        ours = {"allow_blank": True, "max_length": NAME_LIMIT}
        super().__init__(**{**ours, **options})

    def to_internal_value(self, data: object) -> Any:
        text = super().to_internal_value(data)
        if has_control_character(text):
            self.fail("control")
        return text


class ByName(serializers.DictField):
    """An object whose members `names` and `child` describe; both are fields."""

    names: ClassVar[AnyField]

    def run_child_validation(self, data: Mapping[str, Any]) -> dict[Any, Any]:
        members = dict[Any, Any]()
        errors = dict[str, Any]()
        for name, value in data.items():
            try:
                member = self.names.run_validation(name)
                members[member] = self.child.run_validation(value)
            except serializers.ValidationError as error:
                errors[name] = error.detail
        if errors:
            raise serializers.ValidationError(errors)
        return members


class Choice(Text):
    """One of a few values, which `choice` sets."""

    values: ClassVar[Iterable[str]]

    def to_internal_value(self, data: object) -> Any:
        value = next((value for value in self.values if value == data), None)
        if value is None:
            self.fail("invalid")
        return value

    def to_representation(self, value: Any) -> Any:
        return value.value if isinstance(value, Enum) else value


def choice(name: str, values: Iterable[str]) -> type[Choice]:
    """Return a class of fields that take only these values, named as in OpenAPI."""
    schema = {"type": "string", "enum": [str(value) for value in values]}
    messages = _messages(f"use one of {', '.join(values)}")
    members = {"values": values, "default_error_messages": messages}
    field = type(name, (Choice,), members)
    extend_schema_field(schema, component_name=name)(field)
    return field


CauseName = choice("Cause", Cause)


def parse_member(
    parse: Callable[P, Value], /, *args: P.args, **kwargs: P.kwargs
) -> Value:
    """Parse a member of a request by its service's rule, and return its value.

    Turns the service's Invalid into a ValidationError with the same remedy.
    """
    try:
        return parse(*args, **kwargs)
    except Invalid as wrong:
        raise serializers.ValidationError(wrong.remedy) from None


# Base classes have no docstring: it would describe each schema derived from them.
class Schema(serializers.Serializer[Any]): ...


class RequestSchema(Schema, Generic[Value]):
    # The body of a request.

    def value_of(self, members: dict[str, Any]) -> Value:
        # A service takes the members by their names, if it has no type for them.
        return cast(Value, members)

    def to_internal_value(self, data: object) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError("send a JSON object")
        members: Mapping[Any, Any] = data
        unknown = [name for name in members if name not in self.fields]
        if unknown:
            # The sender may rely on the effect of such a member.
            remedy = (
                f"there is no such member; there are {', '.join(sorted(self.fields))}"
            )
            raise serializers.ValidationError(
                {storable(str(name), limit=NAME_LIMIT): remedy for name in unknown}
            )
        return self.value_of(super().to_internal_value(members))

    @classmethod
    def parse(cls, data: object) -> Value:
        """Read the body of a request; raise InvalidMembers with all that is wrong."""
        request = cls(data=members_of(data))
        try:
            request.is_valid(raise_exception=True)
        except serializers.ValidationError as wrong:
            raise InvalidMembers(
                list(islice(faults(wrong.detail), MOST_FAULTS))
            ) from None
        value: Value = request.validated_data
        return value


class QuerySchema(RequestSchema[Value]):
    # The query of a request: each member once, as text; others are left alone.

    @classmethod
    def parse_query(cls, params: QueryDict) -> Value:
        fields = cls().fields
        return cls.parse({name: params.get(name) for name in params if name in fields})


def faults(detail: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """List the errors of a ValidationError, each with its JSON Pointer (RFC 6901)."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            is_whole = name == api_settings.NON_FIELD_ERRORS_KEY
            place = pointer if is_whole else f"{pointer}/{step(str(name))}"
            yield from faults(inner, place)
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            yield from faults(
                inner, pointer if isinstance(inner, str) else f"{pointer}/{index}"
            )
    else:
        yield pointer, str(detail)


class Sourced(Schema):
    # Not a class attribute: serializers of rest_framework use this name themselves.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": Text(help_text="ui, api or system")}


class TupleSchema(Schema):
    # Renders a tuple, whose values are in the order of the fields.
    def to_representation(self, instance: Any) -> dict[str, Any]:
        return super().to_representation(dict(zip(self.fields, instance, strict=True)))


def within(member: str, fields: Mapping[str, AnyField]) -> dict[str, AnyField]:
    """Let fields of a serializer be read from a member of each row; return them."""
    for name, field in fields.items():
        is_whole = field.source == "*"
        field.source = member if is_whole else f"{member}.{field.source or name}"
    return dict(fields)


class List(Schema):
    next = Text(
        allow_null=True, help_text="the cursor of what follows; null at the end"
    )
    next_url = Text(
        allow_null=True, help_text="the address of what follows; null at the end"
    )
    previous_url = Text(
        allow_null=True, help_text="the address of what precedes; null at the beginning"
    )
