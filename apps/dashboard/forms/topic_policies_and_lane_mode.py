"""The forms of a topic's policies and of its lane's mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.http import QueryDict

from apps.brokers import adapters, topic_policies
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import convention_of_topic
from apps.brokers.topic_policies import Policies
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Mode
from apps.core.errors import Invalid
from apps.dashboard.forms.fields import options_as_json, reason_in
from apps.team.rights import Principal

# The policies that every kind of broker has.
PLAIN = (
    *("dead_letter_queue", "retention_days", "requeue_to", "request_endpoints"),
    *("owner", "runbook"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoliciesForm:
    """A topic's policies as typed into the form; those its kind of broker has."""

    values: Mapping[str, str]
    options: str
    host_json: str = ""
    reason: str = ""

    @classmethod
    def read(cls, data: QueryDict, limits: Collection[str]) -> Self:
        """Read the submitted policies of a topic, still unchecked."""
        return cls(
            values={name: data.get(name, "") for name in (*PLAIN, *limits)},
            options=data.get("options", ""),
            host_json=data.get("host_json", ""),
            reason=reason_in(data),
        )

    @classmethod
    def of(cls, current: Policies, limits: Collection[str]) -> Self:
        """Return a form with the current policies of a topic."""
        values = {name: getattr(current, name) for name in (*PLAIN, *limits)}
        return cls(
            values={name: _field_text(value) for name, value in values.items()},
            options=options_as_json(current.options),
        )

    def save(self, topic: Topic, principal: Principal, *, now: datetime) -> Topic:
        """Change a topic's policies as entered; raises Invalid or Unavailable."""
        values: dict[str, object] = {
            **self.values,
            "options": topic_policies.options_from(
                self.options, example=_example_of_options(topic)
            ),
        }
        if self.host_json.strip():
            values = topic_policies.policies_of_host_json(topic, self.host_json, values)
        return topic_policies.set_policies(
            topic=topic,
            policies=Policies.of(topic).changed(values),
            reason=self.reason,
            principal=principal,
            now=now,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeForm:
    """The new mode of a lane, with a reason; `queue` is the one shown on the page."""

    mode: Mode
    tee_queue: str
    reason: str
    queue: str

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse a lane's mode; raises Invalid for an unknown one."""
        mode = data.get("mode", "")
        if mode not in list(Mode):
            raise Invalid("mode", f"use one of {', '.join(Mode)}.")
        return cls(
            mode=Mode(mode),
            tee_queue=data.get("tee_queue", ""),
            reason=reason_in(data),
            queue=data.get("queue", ""),
        )

    def set(self, topic: Topic, principal: Principal, *, now: datetime) -> None:
        """Change the mode of a topic's lane.

        Raises Invalid if the page showed another dead-letter queue, or for any mode but
        observe without a reason.
        """
        if self.queue not in {"", dead_letter_queue_of(topic)}:
            raise Invalid(
                "queue",
                "another person changed the dead-letter queue: check the new one, "
                "then confirm again.",
            )
        if not self.reason.strip() and self.mode is not Mode.OBSERVE:
            raise Invalid("reason", "say why; the audit trail records it.")
        lane_mode_and_pause.set_mode(
            topic=topic,
            mode=self.mode,
            tee_queue=self.tee_queue if self.mode is Mode.TEE else "",
            reason=self.reason,
            principal=principal,
            now=now,
        )


def dead_letter_queue_of(topic: Topic) -> str:
    """Return a topic's dead-letter queue, else its queue by convention; "" without."""
    return topic.dead_letter_queue or convention_of_topic(topic).queue


def _example_of_options(topic: Topic) -> str:
    """Return an example of a topic's options for its kind of broker, or ""."""
    adapter = adapters.KINDS.get(topic.broker.kind) if topic.broker else None
    return adapter.topic_options if adapter else ""


def _field_text(value: object) -> str:
    """Format a topic's policy for a form field: no needless decimals, "" for None."""
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)
