"""Which topics, and what shall change of one and of its lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import (
    TEXT_LIMIT,
    legible,
    members_of,
    refuse_unknown,
    required,
    text,
)
from apps.brokers import policies
from apps.brokers.policies import Policies
from apps.capture.models import Mode
from apps.core.errors import Invalid
from apps.core.text import is_name

OF_A_LANE = {"mode", "tee_queue", "paused"}
# An owner or a runbook may be taken away by telling none.
MAY_BE_NULL = {"owner": "", "runbook": "", "options": {}, "dead_letter_queue": ""}


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
        tee_queue = legible("tee_queue", told.get("tee_queue")) or ""
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
        required("broker", told)
        change = cls._read(told, known=known)
        if not is_name(change.name, limit=TEXT_LIMIT):
            remedy = "use characters that can be seen, without a blank at either end"
            raise Invalid("name", remedy)
        return change

    @classmethod
    def _read(cls, told: Mapping[str, object], *, known: set[str]) -> Self:
        refuse_unknown(told, {*known, *policies.NAMES, *OF_A_LANE})
        wanted = {name: told[name] for name in policies.NAMES if name in told}
        for name, nothing in MAY_BE_NULL.items():
            if name in wanted and wanted[name] is None:
                wanted[name] = nothing
        Policies().changed(wanted)  # raises Invalid before anything is done
        lane = LaneChange.parse(told)
        if lane.mode is not None and wanted.get("dead_letter_queue") == "":
            remedy = "a lane needs one: name it, or leave out the mode"
            raise Invalid("dead_letter_queue", remedy)
        return cls(
            name=required("name", told),
            broker=text("broker", told.get("broker")),
            native_name=legible("native_name", told.get("native_name")),
            policies=wanted,
            lane=lane,
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
            name=required("name", told),
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
