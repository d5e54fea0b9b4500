"""Parse the filters of topics, and the changes of a topic and of its lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import (
    TEXT_LIMIT,
    legible,
    members_of,
    reason,
    refuse_unknown,
    required,
    text,
)
from apps.brokers import policies
from apps.brokers.policies import Policies
from apps.capture.models import Mode
from apps.capture.topic_settings import LaneChange, TopicChange
from apps.core.errors import Invalid
from apps.core.text import is_name

LANE_MEMBERS = {"mode", "tee_queue", "paused"}
# Null clears these members: the stored value is the one on the right.
CLEARED_BY_NULL = {"owner": "", "runbook": "", "options": {}, "dead_letter_queue": ""}


def parse_change(data: object) -> TopicChange:
    """Read a change of a registered topic; its broker stays the same."""
    return _change(members_of(data), identity={"name", "reason"})


def parse_new(data: object) -> TopicChange:
    """Read a topic to register, and the broker that carries it."""
    members = members_of(data)
    required("broker", members)
    change = _change(members, identity={"name", "broker", "native_name", "reason"})
    if not is_name(change.name, limit=TEXT_LIMIT):
        remedy = "use characters that can be seen, without a blank at either end"
        raise Invalid("name", remedy)
    return change


def _change(members: Mapping[str, object], *, identity: set[str]) -> TopicChange:
    refuse_unknown(members, {*identity, *policies.NAMES, *LANE_MEMBERS})
    changes = {name: members[name] for name in policies.NAMES if name in members}
    for name, cleared in CLEARED_BY_NULL.items():
        if name in changes and changes[name] is None:
            changes[name] = cleared
    Policies().changed(changes)  # raises Invalid before anything is written
    lane = _lane_change(members)
    if lane.mode is not None and changes.get("dead_letter_queue") == "":
        remedy = "a lane needs one: name it, or leave out the mode"
        raise Invalid("dead_letter_queue", remedy)
    return TopicChange(
        name=required("name", members),
        broker=text("broker", members.get("broker")),
        native_name=legible("native_name", members.get("native_name")),
        policies=changes,
        lane=lane,
        reason=reason(members.get("reason")),
    )


def _lane_change(members: Mapping[str, object]) -> LaneChange:
    paused = members.get("paused")
    if not isinstance(paused, bool | None):
        raise Invalid("paused", "send true or false")
    tee_queue = legible("tee_queue", members.get("tee_queue")) or ""
    mode = members.get("mode")
    if mode is not None and mode not in list(Mode):
        raise Invalid("mode", f"use one of {', '.join(Mode)}")
    if tee_queue and mode is None:
        raise Invalid("tee_queue", "send the mode with it")
    return LaneChange(
        mode=None if mode is None else Mode(str(mode)),
        tee_queue=tee_queue,
        paused=paused,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRemoval:
    name: str
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        members = members_of(data)
        refuse_unknown(members, {"name", "reason"})
        return cls(
            name=required("name", members),
            reason=reason(members.get("reason")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicParams:
    """Filters of the list of topics: a name, and a broker's name; None matches all."""

    topic: str | None
    broker: str | None

    @classmethod
    def parse(cls, params: QueryDict) -> Self:
        return cls(
            topic=text("topic", params.get("topic")),
            broker=text("broker", params.get("broker")),
        )
