"""The forms of brokers, of topics' policies and of lane modes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.http import QueryDict

from apps.brokers import adapters, sealed_addresses, topic_policies
from apps.brokers.models import Broker, Topic
from apps.brokers.older_broker_allow_list import Choice
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import convention_of_topic
from apps.brokers.topic_policies import Policies
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Mode
from apps.core.errors import Invalid, PoisonwebError
from apps.dashboard.forms.fields import reason_in
from apps.team.rights import Principal

LONGEST_NUMBER = 18
# The policies that every kind of broker has.
PLAIN = ("dead_letter_queue", "retention_days", "requeue_to", "owner", "runbook")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerForm:
    """A broker as typed into the form, so that it can be shown again.

    The page shows an address only where it names a variable of the environment. An
    empty `url` keeps the stored one.
    """

    name: str = ""
    kind: str = ""
    url: str = ""
    options: str = ""

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Read the submitted values; nothing is checked yet."""
        return cls(**{name: data.get(name, "") for name in cls.__slots__})

    @classmethod
    def of(cls, broker: Broker) -> Self:
        """Return a form with the values of a broker, except its address."""
        return cls(
            name=broker.name, kind=broker.kind, options=options_as_json(broker.options)
        )

    @property
    def shown_url(self) -> str:
        """Return the entered address to show again; "" if it may hold a secret."""
        is_secret = not self.url.startswith(sealed_addresses.FROM_ENVIRONMENT)
        return "" if is_secret else self.url

    def add(self, principal: Principal, *, now: datetime) -> Broker:
        """Add a broker with these values; raises Invalid for a wrong field."""
        return broker_registration.add(
            name=self.name.strip(),
            kind=self.kind,
            url=self.url.strip(),
            options=self._options(self.kind),
            principal=principal,
            now=now,
        )

    def alter(self, broker: Broker, principal: Principal, *, now: datetime) -> Broker:
        """Change a broker to these values; an empty address leaves its own in place."""
        return broker_registration.alter(
            broker=broker,
            name=self.name.strip(),
            url=self.url.strip() or None,
            options=self._options(broker.kind),
            principal=principal,
            now=now,
        )

    def _options(self, kind: str) -> dict[str, object]:
        """Parse the options, entered as JSON; raises Invalid with an example."""
        adapter = adapters.KINDS.get(kind)
        example = adapter.broker_options if adapter else ""
        return topic_policies.options_from(self.options, example=example)


def chosen_allowances(data: QueryDict) -> list[Choice]:
    """Parse the ticked entries of allow-lists; raises Invalid without any."""
    parted = [value.partition(" ") for value in data.getlist("entries")]
    choices = [
        (int(number), entry)
        for number, _, entry in parted
        if number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER
    ]
    if not choices or len(choices) != len(parted):
        raise Invalid("entries", "tick at least one entry of the allow-list.")
    return choices


@dataclass(frozen=True, kw_only=True, slots=True)
class PoliciesForm:
    """A topic's policies as typed into the form; those its kind of broker has."""

    values: Mapping[str, str]
    options: str
    host_json: str = ""
    reason: str = ""

    @classmethod
    def read(cls, data: QueryDict, limits: Collection[str]) -> Self:
        """Read the submitted values; nothing is checked yet."""
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
        """Change a topic's policies to these values; raises Invalid or Unavailable."""
        values: dict[str, object] = {
            **self.values,
            "options": topic_policies.options_from(
                self.options, example=_example_of_options(topic)
            ),
        }
        if self.host_json.strip():
            values = topic_policies.pasted(topic, self.host_json, values)
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
        """Parse the form; raises Invalid for an unknown mode."""
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
        """Change the mode; raises Invalid where the page showed another queue."""
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
    """Return the queue that the lane reads, or would by convention; "" without one."""
    return topic.dead_letter_queue or convention_of_topic(topic).queue


def field_of(wrong: PoisonwebError | None) -> str:
    """Return the name of the wrong field; "" if the error names no field."""
    # An adapter also names the option: "options body_field".
    return wrong.field.partition(" ")[0] if isinstance(wrong, Invalid) else ""


def options_as_json(options: Mapping[str, object]) -> str:
    """Format options as JSON for a form field; "" without options."""
    return json.dumps(options, ensure_ascii=False, indent=2) if options else ""


def _example_of_options(topic: Topic) -> str:
    """Return an example of a topic's options for its kind of broker, or ""."""
    adapter = adapters.KINDS.get(topic.broker.kind) if topic.broker else None
    return adapter.topic_options if adapter else ""


def _field_text(value: object) -> str:
    """Format a policy for a form field: no decimals of whole numbers, "" for None."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)
