"""What a request about brokers and topics asks for, parsed once at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from django.http import QueryDict

from apps.api.parameters import TEXT_LIMIT, members_of, refuse_unknown, text
from apps.brokers import policies
from apps.brokers.models import Broker, Topic
from apps.brokers.policies import Policies
from apps.capture.models import Mode
from apps.core.errors import Absent, Invalid
from apps.team.rights import Principal

OF_A_BROKER = {"name", "kind", "url", "options"}
OF_A_LANE = {"mode", "tee_queue", "paused"}
# An owner or a runbook may be taken away by telling none.
MAY_BE_NULL = {"owner": "", "runbook": "", "options": {}, "dead_letter_queue": ""}


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
        return cls(
            name=_required("name", told),
            kind=_required("kind", told),
            url=_url(told.get("url")),
            options=_options(told.get("options")) or {},
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
            name=_required("name", told) if "name" in told else None,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneChange:
    """What a lane shall do; None stays as it is."""

    mode: Mode | None
    tee_queue: str
    paused: bool | None

    @classmethod
    def parse(cls, told: Mapping[str, object]) -> Self:
        paused = told.get("paused")
        if not isinstance(paused, bool | None):
            raise Invalid("paused", "send true or false")
        tee_queue = text("tee_queue", told.get("tee_queue")) or ""
        mode = told.get("mode")
        if mode is not None and mode not in list(Mode):
            raise Invalid("mode", f"use one of {', '.join(Mode)}")
        if tee_queue and mode is None:
            raise Invalid("tee_queue", "send the mode with it")
        return cls(
            mode=None if mode is None else Mode(str(mode)),
            tee_queue=tee_queue,
            paused=paused,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicChange:
    """What is asked of one topic, by its name: its policies, and its lane.

    `broker` is a name, and `native_name` the broker's own for the topic.
    """

    name: str
    broker: str | None
    native_name: str | None
    policies: Mapping[str, object]
    lane: LaneChange
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        """Read a change: the topic is there, on the broker that it is on."""
        return cls._read(members_of(data), known={"name", "reason"})

    @classmethod
    def parse_new(cls, data: object) -> Self:
        """Read a topic that shall be known, and on which broker it is."""
        known = {"name", "broker", "native_name", "reason"}
        told = members_of(data)
        _required("broker", told)
        return cls._read(told, known=known)

    @classmethod
    def _read(cls, told: Mapping[str, object], *, known: set[str]) -> Self:
        refuse_unknown(told, {*known, *policies.NAMES, *OF_A_LANE})
        wanted = {name: told[name] for name in policies.NAMES if name in told}
        for name, nothing in MAY_BE_NULL.items():
            if name in wanted and wanted[name] is None:
                wanted[name] = nothing
        Policies().changed(wanted)  # raises Invalid before anything is done
        return cls(
            name=_required("name", told),
            broker=text("broker", told.get("broker")),
            native_name=text("native_name", told.get("native_name")),
            policies=wanted,
            lane=LaneChange.parse(told),
            reason=text("reason", told.get("reason")) or "",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRemoval:
    name: str
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        refuse_unknown(told, {"name", "reason"})
        return cls(
            name=_required("name", told),
            reason=text("reason", told.get("reason")) or "",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicsWanted:
    """Which topics, by their own name or their broker's; None is all of them."""

    topic: str | None
    broker: str | None

    @classmethod
    def parse(cls, told: QueryDict) -> Self:
        return cls(
            topic=text("topic", told.get("topic")),
            broker=text("broker", told.get("broker")),
        )


def topic_named(name: str, principal: Principal) -> Topic:
    """Find a topic that this principal may see; raises Absent otherwise."""
    visible = Topic.objects.matching(principal.topics)
    topic = visible.select_related("broker", "lane").filter(name=name).first()
    if topic is None:
        raise Absent(f"There is no topic {name} here.")
    return topic


def broker_named(name: str) -> Broker:
    broker = Broker.objects.filter(name=name).first()
    if broker is None:
        raise Invalid("broker", f"there is no broker {name} here")
    return broker


def _required(field: str, told: Mapping[str, object]) -> str:
    value = text(field, told.get(field))
    if value is None:
        raise Invalid(field, f"send 1 to {TEXT_LIMIT} characters")
    return value


def _url(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid("url", "send the broker's address, or env:NAME")
    return value


def _options(value: object) -> Mapping[str, object] | None:
    if value is None:
        return None
    read = Policies().changed({"options": value})
    return read.options
