"""The OpenAPI schema as its page shows it: calls and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a value may be; `shape` names the shape that describes it further."""

    text: str
    shape: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    name: str
    kind: Kind
    required: bool
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    status: str
    description: str
    kind: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    name: str
    method: str
    path: str
    summary: str
    description: str
    parameters: Sequence[Field]
    body: Kind | None
    answers: Sequence[Answer]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    name: str
    description: str
    fields: Sequence[Field]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    calls: Sequence[Call]
    shapes: Sequence[Shape]


def of(schema: Schema) -> Reference:
    shapes = schema["components"]["schemas"].items()
    return Reference(
        calls=list(_calls(schema)),
        shapes=[_shape(name, told) for name, told in shapes],
    )


def _calls(schema: Schema) -> Iterator[Call]:
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            body = told.get("requestBody")
            yield Call(
                name=told["operationId"],
                method=method.upper(),
                path=path,
                summary=told.get("summary", ""),
                description=told.get("description", "").replace("`", ""),
                parameters=[_parameter(each) for each in told.get("parameters", ())],
                body=_content(body) if body else None,
                answers=[_answer(*each) for each in told["responses"].items()],
            )


def _parameter(told: Schema) -> Field:
    return Field(
        name=told["name"],
        kind=_kind(told["schema"]),
        required=told.get("required", False),
        description=told.get("description", f"in the {told['in']}"),
    )


def _answer(status: str, told: Schema) -> Answer:
    return Answer(
        status=status, description=told.get("description", ""), kind=_content(told)
    )


def _content(told: Schema) -> Kind:
    return next(_kind(media["schema"]) for media in told["content"].values())


def _shape(name: str, told: Schema) -> Shape:
    """Read a component: an object with its members, or a set of words."""
    required = told.get("required", ())
    description = told.get("description") or " | ".join(told.get("enum", ()))
    fields = [
        Field(
            name=field,
            kind=_kind(property_),
            required=field in required,
            description=property_.get("description", ""),
        )
        for field, property_ in told.get("properties", {}).items()
    ]
    return Shape(name=name, description=description, fields=fields)


def _kind(told: Schema) -> Kind:
    for several in ("oneOf", "anyOf", "allOf"):
        if several in told:
            return _either([_kind(each) for each in told[several]])
    if "$ref" in told:
        name = told["$ref"].rpartition("/")[2]
        return Kind(text=name, shape=name)
    if "enum" in told:
        return Kind(text=" | ".join(str(each) for each in told["enum"]))
    if told.get("type") == "array":
        of_what = _kind(told["items"])
        return Kind(text=f"list of {of_what.text}", shape=of_what.shape)
    return Kind(text=_plain(told))


def _either(kinds: Sequence[Kind]) -> Kind:
    return Kind(
        text=" | ".join(kind.text for kind in kinds),
        shape=next((kind.shape for kind in kinds if kind.shape), None),
    )


def _plain(told: Schema) -> str:
    types = told.get("type", "anything")
    names = " | ".join(types) if isinstance(types, list) else str(types)
    return f"{names} ({told['format']})" if "format" in told else names
