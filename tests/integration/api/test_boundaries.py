"""Every field of every request at its documented limits, and one beyond.

The fields, their limits and a valid body come from the schema, so that a new field is
tested without a line here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import pytest

from apps.api.examples import requests as examples
from apps.api.views.openapi_reference import schema
from apps.bookmarks import consumer_request_parsing
from apps.redelivery.delivery_filters import PARAMETERS
from poisonguard import contract
from tests.integration.api.calls_with_bodies import Call, Spec, calls, rows_of_examples
from tests.integration.api.schema_checking_client import Caller

pytestmark = pytest.mark.django_db

Path = tuple[str | int, ...]
# A label, a value, and whether it is allowed.
Edge = tuple[str, Any, bool]
# The SDK's contract and the settle wire leave unknown members alone; all others refuse.
OPEN = {"FailureReports", "Confirmations", "CounterReports", "AppliedReports"} | {
    *("Holder", "PositionUpdates"),
}
Refused = Mapping[str, str]
UNKNOWN = "no_such_member"
CALLS = {call.name: call for call in calls()}

# Texts and numbers without a limit of their own, and why they have none.
UNBOUNDED = {
    "FailureReport.body": "POISONWEB_BODY_LIMIT, which an operator sets, bounds it",
    "FailureReport.headers[][]": "the limit of a request bounds them together",
    "Raised.type": "it is cut when it is stored",
    "Raised.message": "it is cut when it is stored",
    "Raised.traceback": "it is cut when it is stored",
    "Matcher.value": "its kind decides what it is",
    **dict.fromkeys(
        (
            *("NewBroker.options", "PatchedBrokerChange.options"),
            *("NewTopic.options", "PatchedTopicChange.options"),
        ),
        "its JSON has OPTIONS_LIMIT characters, and its kind of broker knows its names",
    ),
}
# Fields that name something: within their limits they may be refused as unknown.
NAMES_SOMETHING = {
    "Confirmation.redrive",
    "MoveAsk.other",
    "MoveAsk.move",
    "NewSkip.poison",
    "NewTopic.broker",
    "Ask.target_topic",
    "NewTopic.requeue_to",
    "PatchedTopicChange.requeue_to",
    "Applied.skip",
    "PositionUpdate.client_name",
    "PositionUpdate.sub_id",
    "PositionUpdate.topic",
    *(f"DeliveriesToChoose.{name}" for name in PARAMETERS),
    *("NewOutbox.broker", "PatchedOutboxChange.broker"),
    *(
        f"{shape}.{place}"
        for shape in ("NewEndpoint", "PatchedEndpointChange")
        for place in ("forward_topic", "forward_endpoint", "response_hook")
    ),
}
# Values that are allowed, but not beside the other members of the example.
NEEDED: dict[str, tuple[Any, ...]] = {
    # Nothing else says where to, or which messages.
    "MoveAsk.to": (None,),
    "Ask.q": (None,),
    # Of deliveries only, which no other example names.
    "Ask.verb": ("try_now", "give_up"),
    # They must not be shorter than other times; `forward` needs a place.
    **{
        f"{shape}.{name}": values
        for shape in ("NewEndpoint", "PatchedEndpointChange")
        for name, values in (
            ("longest_interval", (1.0,)),
            ("claim_timeout", (0.1,)),
            ("client_timeout", (0.1,)),
            ("at_end", ("forward",)),
        )
    },
    # Ids must stay as long as rows.
    **{
        f"{shape}.{name}": values
        for shape in ("NewOutbox", "PatchedOutboxChange")
        for name, values in (("sent_rows_days", (3_650,)), ("sent_ids_days", (1,)))
    },
    # The mode is tee.
    "NewTopic.tee_queue": (None, ""),
    "PatchedTopicChange.tee_queue": (None, ""),
}


def letters(size: int) -> str:
    return "a" * size


def form(template: str) -> Callable[[int], str]:
    """Return a maker of texts of this form, which are cut if they are too short."""
    rest = len(template.format(""))
    return lambda size: template.format("a" * (size - rest))[:size]


# Text that has a form; all others may be letters.
TEXTS = {
    "NewBroker.url": form("redis://:{}@127.0.0.1:9"),
    "PatchedBrokerChange.url": form("redis://:{}@127.0.0.1:9"),
    **dict.fromkeys(
        ("NewEndpoint.failure_statuses", "PatchedEndpointChange.failure_statuses"),
        lambda size: "," * size,
    ),
    **dict.fromkeys(
        ("NewEndpoint.target", "PatchedEndpointChange.target"),
        form("https://example.org/{}"),
    ),
    **dict.fromkeys(
        ("NewEndpoint.paths[]", "PatchedEndpointChange.paths[]"), form("/{}")
    ),
    **dict.fromkeys(
        ("NewOutbox.url", "PatchedOutboxChange.url"),
        form("postgresql://a:b@127.0.0.1/{}"),
    ),
    "NewTopic.runbook": form("https://example.org/{}"),
    "PatchedTopicChange.runbook": form("https://example.org/{}"),
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a body: where it is, and its description without references."""

    name: str
    path: Path
    spec: Spec
    is_nullable: bool
    is_required: bool


@dataclass(frozen=True, kw_only=True)
class BoundaryCase:
    """A body to send, with a pointer to what is tested in it.

    A refusal names the pointer, or that of the whole of which this is a part.
    """

    label: str
    body: Any
    is_allowed: bool
    place: str
    whole: str


def resolved(spec: Spec) -> tuple[Spec, bool]:
    """Follow references; tell whether null is allowed, too."""
    types = spec.get("type", ())
    is_nullable = isinstance(types, list) and "null" in types
    for several in ("allOf", "oneOf"):
        options = [each for each in spec.get(several, ()) if each != {"type": "null"}]
        if options:
            (only,) = options
            inner, inner_null = resolved(only)
            return inner, inner_null or {"type": "null"} in spec[several]
    if "$ref" in spec:
        name = spec["$ref"].rpartition("/")[2]
        shape: Spec = schema()["components"]["schemas"][name]
        return {"x-name": name, **shape}, False
    return spec, is_nullable


def type_of(spec: Spec) -> str | None:
    types = spec.get("type")
    if not isinstance(types, list):
        return types
    (only,) = [each for each in types if each != "null"]
    return str(only)


def fields(spec: Spec, path: Path = (), name: str = "") -> Iterator[Field]:
    """List the fields of an object and of what is in it; the whole is the first."""
    shape, _ = resolved(spec)
    if not path:
        yield Field(
            name=shape["x-name"],
            path=path,
            spec=shape,
            is_nullable=False,
            is_required=False,
        )
    owner = shape.get("x-name", name)
    for member, inner in shape.get("properties", {}).items():
        is_required = member in shape.get("required", ())
        yield from _field(inner, (*path, member), f"{owner}.{member}", is_required)


def _field(spec: Spec, path: Path, name: str, is_required: bool) -> Iterator[Field]:
    shape, is_nullable = resolved(spec)
    yield Field(
        name=name,
        path=path,
        spec=shape,
        is_nullable=is_nullable,
        is_required=is_required,
    )
    if type_of(shape) == "array":
        yield from _field(shape["items"], (*path, 0), f"{name}[]", False)
    yield from fields(shape, path, name)


def examples_of(call: Call, field: Field) -> Any:
    """Give the first example that has the field."""
    for body in call.examples.values():
        try:
            if at(body, field.path) is not None:
                return body
        except (KeyError, IndexError, TypeError):
            continue
    raise AssertionError(f"no example of {call.name} has {field.name}")


def at(body: Any, path: Path) -> Any:
    for step in path:
        body = body[step]
    return body


def with_value(body: Any, path: Path, value: Any) -> Any:
    changed = copy.deepcopy(body)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def without(body: Any, path: Path) -> Any:
    changed = copy.deepcopy(body)
    del at(changed, path[:-1])[path[-1]]
    return changed


def pointer(path: Path) -> str:
    steps = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return "".join(f"/{step}" for step in steps)


def cases(call: Call, field: Field) -> Iterator[BoundaryCase]:
    body = examples_of(call, field)
    if field.path:
        yield from _value_cases(field, body)
    if type_of(field.spec) == "object":
        yield from _member_cases(field, body)


def _value_cases(field: Field, body: Any) -> Iterator[BoundaryCase]:
    parent = field.path[:-1]
    neighbours = at(body, parent)
    own = at(body, field.path)
    # A list of numbers or texts may be refused as a whole; both of a pair go together.
    is_plain = isinstance(neighbours, list) and not isinstance(own, dict | list)
    is_half = is_plain and len(neighbours) == 2
    place = pointer(field.path)
    whole = pointer(parent) if is_plain else place
    for label, value, is_allowed in edges(field, own):
        changed = (
            with_value(body, parent, [value, value])
            if is_half and is_allowed
            else with_value(body, field.path, value)
        )
        yield BoundaryCase(
            label=label,
            body=changed,
            is_allowed=is_allowed,
            place=place,
            whole=whole,
        )
    if field.is_required:
        yield BoundaryCase(
            label="left out",
            body=without(body, field.path),
            is_allowed=False,
            place=place,
            whole=whole,
        )


def _member_cases(field: Field, body: Any) -> Iterator[BoundaryCase]:
    """Add a member that is not described; or, where names are free, another name."""
    others = field.spec.get("additionalProperties")
    own = at(body, field.path)
    some = next(iter(own.values()), None)
    members: list[Edge] = [(UNKNOWN, 1, others is not False)]
    if "properties" not in field.spec:
        members = []
    if "propertyNames" in field.spec:
        names = field.spec["propertyNames"]
        members = [(name, some, allowed) for _, name, allowed in text_edges(names)]
    if isinstance(others, dict) and others and own:
        name = next(iter(own))
        inner, is_nullable = resolved(others)
        member = Field(
            name=f"{field.name}.*",
            path=(*field.path, name),
            spec=inner,
            is_nullable=is_nullable,
            is_required=False,
        )
        members += [(name, value, allowed) for _, value, allowed in edges(member, some)]
    for name, value, is_allowed in members:
        path = (*field.path, name)
        yield BoundaryCase(
            label=f"{name[:99]}: {value!r}",
            body=with_value(body, path, value),
            is_allowed=is_allowed,
            place=pointer(path),
            # One of many names may be refused as a fault of the whole.
            whole=pointer(path if "properties" in field.spec else field.path),
        )


WRONG: dict[str, Sequence[Any]] = {
    "string": (1, True, [], {}),
    "integer": ("1", 1.5, True, [], {}),
    "number": ("x", True, [], {}),
    "boolean": ("true", 1, 0, [], {}),
    "array": ("x", 1, {}, True),
    "object": ("x", 1, [], True),
}


def edges(field: Field, value: Any) -> Iterator[Edge]:
    """List values of a field: a label, the value, and whether it is allowed."""
    kind = type_of(field.spec)
    if kind is None:
        return
    yield "null", None, field.is_nullable
    for wrong in WRONG[kind]:
        yield f"another type, {wrong!r}", wrong, False
    if kind == "string":
        yield from text_edges(field.spec, TEXTS.get(field.name, letters))
    if kind in {"integer", "number"}:
        yield from number_edges(field.spec)
    if kind == "array":
        yield from _lists(field.spec, value)
    if kind == "object" and field.spec.get("minProperties"):
        yield "no members", {}, False


def text_edges(spec: Spec, make: Callable[[int], str] = letters) -> Iterator[Edge]:
    if "enum" in spec:
        yield from ((each, each, True) for each in spec["enum"])
        yield "no such value", "no such value", False
        return
    if "format" in spec:
        yield f"no {spec['format']}", "x", False
        return
    least, most = spec.get("minLength", 0), spec.get("maxLength")
    if make is letters:
        yield f"{least} characters", make(least), True
    if least:
        yield f"{least - 1} characters", make(least - 1), False
    if most is not None:
        yield f"{most} characters", make(most), True
        yield f"{most + 1} characters", make(most + 1), False
    if "pattern" in spec:
        yield "text of another form", "?" * least, False


def number_edges(spec: Spec) -> Iterator[Edge]:
    for limit, step in (("minimum", -1), ("maximum", 1)):
        if limit in spec:
            yield f"its {limit}", spec[limit], True
            yield f"one beyond its {limit}", spec[limit] + step, False
        exclusive = f"exclusive{limit.capitalize()}"
        if exclusive in spec:
            yield f"its {exclusive}", spec[exclusive], False


def _lists(spec: Spec, value: Sequence[Any]) -> Iterator[Edge]:
    least, most = spec.get("minItems", 0), spec.get("maxItems")
    if least:
        yield f"{least - 1} items", _long(value, least - 1), False
    if most is not None:
        yield f"{most} items", _long(value, most), True
        yield f"{most + 1} items", _long(value, most + 1), False


def _long(value: Sequence[Any], number: int) -> list[Any]:
    return list(islice(cycle(value), number))


def refusals(call: Call, caller: Caller, rows: Mapping[str, int], body: Any) -> Refused:
    """Send a body; map pointers into it to reasons, of the whole and of its members."""
    reply = call.send(caller, rows, body)
    assert reply.status < 500
    answer = reply.json
    refused = {each["pointer"]: each["detail"] for each in answer.get("errors", ())}
    for container, members in body.items():
        results = answer.get("guards" if container == "guards" else "results", ())
        for index, each in enumerate(results if isinstance(members, list) else ()):
            if each["status"] == "rejected":
                refused[f"/{container}/{index}{each['pointer']}"] = each["detail"]
    return refused


def anywhere(refused: Refused) -> set[tuple[str, str]]:
    """List refusals without the places of members in lists."""
    return {(re.sub(r"/\d+", "/#", place), reason) for place, reason in refused.items()}


def touches(one: str, other: str) -> bool:
    """Tell whether one of two pointers leads to or into the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@pytest.fixture
def rows() -> Mapping[str, int]:
    return rows_of_examples()


@pytest.mark.parametrize("name", CALLS)
def test_each_field_is_taken_at_its_limits_and_refused_with_its_name_beyond(
    caller: Caller, rows: Mapping[str, int], name: str
) -> None:
    call = CALLS[name]
    wrong = [
        f"{field.name}: {fault}"
        for field in fields(call.body)
        for fault in faults(call, field, caller, rows)
    ]

    assert wrong == []


def faults(
    call: Call, field: Field, caller: Caller, rows: Mapping[str, int]
) -> Iterator[str]:
    """Send a field at its limits and beyond; say what was taken or refused wrongly."""
    usual = anywhere(refusals(call, caller, rows, examples_of(call, field)))
    reasons = set[str]()
    for case in sorted(cases(call, field), key=lambda case: case.is_allowed):
        refused = refusals(call, caller, rows, case.body)
        if case.is_allowed and is_needed(field, case):
            continue
        if not case.is_allowed:
            named = {case.place, case.whole} & refused.keys()
            reasons |= {refused[place] for place in named}
            if not named:
                yield f"{case.label} is taken, {refused}"
            continue
        for place, reason in refused.items():
            is_unknown = field.name in NAMES_SOMETHING and reason not in reasons
            is_usual = anywhere({place: reason}) <= usual
            if touches(place, case.place) and not (is_unknown or is_usual):
                yield f"{case.label} is refused, {place}: {reason}"


def is_needed(field: Field, case: BoundaryCase) -> bool:
    values = NEEDED.get(field.name, ())
    return bool(values) and at(case.body, field.path) in values


def test_only_what_consumers_send_may_have_members_that_are_not_described() -> None:
    shapes = [resolved(call.body)[0] for call in CALLS.values()]

    assert {
        shape["x-name"] for shape in shapes if "additionalProperties" not in shape
    } == OPEN


def test_every_field_of_a_request_has_limits_or_a_reason_to_have_none() -> None:
    unlimited = {
        field.name
        for call in CALLS.values()
        for field in fields(call.body)
        if is_unlimited(field.spec)
    }

    assert unlimited == UNBOUNDED.keys()


def is_unlimited(spec: Spec) -> bool:
    kind = type_of(spec)
    if kind == "string":
        return not {"enum", "format", "maxLength"} & spec.keys()
    if kind in {"integer", "number"}:
        has_least = {"minimum", "exclusiveMinimum"} & spec.keys()
        return not (has_least and "maximum" in spec)
    if kind == "object" and "properties" not in spec:
        values, _ = resolved(spec.get("additionalProperties", {}))
        names = spec.get("propertyNames", {})
        return is_unlimited(values) or not {"enum", "maxLength"} & names.keys()
    if kind == "array":
        return "maxItems" not in spec
    return kind is None


class Recorder(dict[str, Any]):
    """An object that remembers which of its members are read."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self.names = set[str]()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


@pytest.mark.parametrize(
    ("shape", "parse", "members"),
    [
        ("FailureReport", contract.parse_failure, examples.FAILURE),
        ("Confirmation", contract.parse_confirmation, examples.CONFIRMATION),
        ("CounterReport", contract.parse_counter, examples.COUNTER),
        ("GuardReport", contract.parse_heartbeat, examples.GUARD),
        ("Applied", contract.parse_applied, examples.APPLIED),
        ("Holder", consumer_request_parsing.Holder.parse, examples.HOLDER),
        (
            "PositionUpdate",
            consumer_request_parsing.PositionUpdate.parse,
            examples.UPDATE,
        ),
    ],
)
def test_what_consumers_send_is_described_member_by_member(
    shape: str, parse: Callable[[Any], object], members: Mapping[str, Any]
) -> None:
    recorder = Recorder(members)

    parse(recorder)

    described = schema()["components"]["schemas"][shape]["properties"]
    assert recorder.names == described.keys()
