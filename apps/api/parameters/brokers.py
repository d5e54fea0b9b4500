"""Parse requests that add, change or remove a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from apps.api.parameters.base import members_of, reason, refuse_unknown, required
from apps.brokers import adapters, policies
from apps.brokers.models import BROKER_NAME_LIMIT
from apps.core.errors import Invalid

BROKER_MEMBERS = {"name", "kind", "url", "options"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewBroker:
    name: str
    kind: str
    url: str
    options: Mapping[str, object]

    @classmethod
    def parse(cls, data: object) -> Self:
        members = members_of(data)
        refuse_unknown(members, BROKER_MEMBERS)
        kind = required("kind", members)
        return cls(
            name=required("name", members, limit=BROKER_NAME_LIMIT),
            kind=kind,
            url=_url(members.get("url")),
            options=_options(members.get("options"), kind=kind) or {},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerChange:
    """The change of a broker; None leaves a field as it is."""

    name: str | None
    url: str | None
    options: Mapping[str, object] | None

    @classmethod
    def parse(cls, data: object) -> Self:
        members = members_of(data)
        refuse_unknown(members, BROKER_MEMBERS)
        if "kind" in members:
            raise Invalid("kind", "it stays what it is: add another broker")
        return cls(
            name=required("name", members, limit=BROKER_NAME_LIMIT)
            if "name" in members
            else None,
            url=_url(members["url"]) if "url" in members else None,
            options=_options(members.get("options")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerRemoval:
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        members = members_of(data)
        refuse_unknown(members, {"reason"})
        return cls(reason=reason(members.get("reason")))


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
