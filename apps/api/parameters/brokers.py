"""A broker as it is asked for, and what shall change of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from apps.api.parameters.base import members_of, refuse_unknown, required, text
from apps.brokers import adapters, policies
from apps.core.errors import Invalid

OF_A_BROKER = {"name", "kind", "url", "options"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewBroker:
    name: str
    kind: str
    url: str
    options: Mapping[str, object]

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        refuse_unknown(told, OF_A_BROKER)
        kind = required("kind", told)
        return cls(
            name=required("name", told),
            kind=kind,
            url=_url(told.get("url")),
            options=_options(told.get("options"), kind=kind) or {},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerChange:
    """What is None stays as it is."""

    name: str | None
    url: str | None
    options: Mapping[str, object] | None

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        refuse_unknown(told, OF_A_BROKER)
        if "kind" in told:
            raise Invalid("kind", "it stays what it is: add another broker")
        return cls(
            name=required("name", told) if "name" in told else None,
            url=_url(told["url"]) if "url" in told else None,
            options=_options(told.get("options")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerRemoval:
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        refuse_unknown(told, {"reason"})
        return cls(reason=text("reason", told.get("reason")) or "")


def _url(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid("url", "send the broker's address, or env:NAME")
    return value


def _options(value: object, *, kind: str = "") -> Mapping[str, object] | None:
    if value is None:
        return None
    adapter = adapters.KINDS.get(kind)
    example = adapter.broker_options if adapter else ""
    return policies.read_options(value, example=example)
