"""The OpenAPI schema as the page of the API shows it: calls and shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueKind:
    """The type of a value as text; `shape` names the shape that describes it."""

    text: str
    shape: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    name: str
    kind: ValueKind
    required: bool
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallAnswer:
    status: str
    description: str
    kind: ValueKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A body as text; `label` names what it is an example for."""

    label: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    name: str
    method: str
    path: str
    summary: str
    description: str
    parameters: Sequence[Field]
    body: ValueKind | None
    answers: Sequence[CallAnswer]
    examples: Sequence[Example]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    name: str
    description: str
    fields: Sequence[Field]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    calls: Sequence[Call]
    shapes: Sequence[Shape]


def from_schema(schema: Schema) -> Reference:
    """Read all calls and shapes of the API from the OpenAPI schema."""
    shapes = schema["components"]["schemas"].items()
    return Reference(
        calls=list(_calls(schema)),
        shapes=[_shape(name, spec) for name, spec in shapes],
    )


def _calls(schema: Schema) -> Iterator[Call]:
    """Yield a `Call` of the API's page for each path and method in the schema."""
    for path, methods in schema["paths"].items():
        for method, spec in methods.items():
            body = spec.get("requestBody")
            yield Call(
                name=spec["operationId"],
                method=method.upper(),
                path=path,
                summary=spec.get("summary", ""),
                description=spec.get("description", "").replace("`", ""),
                parameters=[_parameter(each) for each in spec.get("parameters", ())],
                body=_kind_of_body(body) if body else None,
                answers=[_answer(*each) for each in spec["responses"].items()],
                examples=[
                    *(_examples("Send", body) if body else ()),
                    *(
                        example
                        for status, answer in spec["responses"].items()
                        for example in _examples(f"Answer {status}", answer)
                    ),
                ],
            )


def _parameter(spec: Schema) -> Field:
    """Read a parameter of an API call from the OpenAPI schema."""
    return Field(
        name=spec["name"],
        kind=_kind(spec["schema"]),
        required=spec.get("required", False),
        description=spec.get("description", f"in the {spec['in']}"),
    )


def _answer(status: str, spec: Schema) -> CallAnswer:
    """Read an API call's answer from the OpenAPI schema: status, text, kind of body."""
    return CallAnswer(
        status=status,
        description=spec.get("description", ""),
        kind=_kind_of_body(spec),
    )


def _examples(role: str, spec: Schema) -> Iterator[Example]:
    for media in spec["content"].values():
        examples = media.get("examples", {})
        for example in examples.values():
            value, name = example["value"], example.get("summary", "")
            yield Example(
                label=f"{role}: {name}" if len(examples) > 1 else role,
                text=value if isinstance(value, str) else json.dumps(value, indent=2),
            )


def _kind_of_body(spec: Schema) -> ValueKind:
    """Return the kind of value that the OpenAPI schema gives a body.

    It is that of the first media type: all have the same.
    """
    return next(_kind(media["schema"]) for media in spec["content"].values())


def _shape(name: str, spec: Schema) -> Shape:
    """Read an OpenAPI component: an object with its members, or an enumeration."""
    required = spec.get("required", ())
    description = spec.get("description") or " | ".join(spec.get("enum", ()))
    fields = [
        Field(
            name=field,
            kind=_kind(property_),
            required=field in required,
            description=property_.get("description", ""),
        )
        for field, property_ in spec.get("properties", {}).items()
    ]
    return Shape(name=name, description=description, fields=fields)


def _kind(spec: Schema) -> ValueKind:
    """Describe the kind of an API value in words, with a link to its shape."""
    for several in ("oneOf", "anyOf", "allOf"):
        if several in spec:
            return _either([_kind(each) for each in spec[several]])
    if "$ref" in spec:
        name = spec["$ref"].rpartition("/")[2]
        return ValueKind(text=name, shape=name)
    if "enum" in spec:
        return ValueKind(text=" | ".join(str(each) for each in spec["enum"]))
    if spec.get("type") == "array":
        items = _kind(spec["items"])
        return ValueKind(text=f"list of {items.text}", shape=items.shape)
    return ValueKind(text=_type_words(spec))


def _either(kinds: Sequence[ValueKind]) -> ValueKind:
    """Join kinds of API values by "|"; link the first that has a shape."""
    return ValueKind(
        text=" | ".join(kind.text for kind in kinds),
        shape=next((kind.shape for kind in kinds if kind.shape), None),
    )


def _type_words(spec: Schema) -> str:
    """Describe an OpenAPI type and its format in words."""
    types = spec.get("type", "anything")
    names = " | ".join(types) if isinstance(types, list) else str(types)
    return f"{names} ({spec['format']})" if "format" in spec else names
