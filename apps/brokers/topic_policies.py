"""Policies of a topic: limits, retention, owner and runbook."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Self
from urllib.parse import urlsplit

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import adapters, sealed_addresses
from apps.brokers.adapter_contract import LIMITS
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.duration_parsing import seconds_of
from apps.brokers.models import Topic
from apps.brokers.queue_ownership import one_reader
from apps.brokers.row_locks import lock_topics
from apps.brokers.services.topics_and_routing_publisher import convention_of_topic
from apps.core.errors import Absent, Forbidden, Invalid, Unavailable
from apps.core.text_cleaning import storable
from apps.team.rights import Principal, Scope

log = logging.getLogger(__name__)


# The bounds of the policies; the API's serializers declare the same.
LEAST = 1
MOST_COUNT = 10_000
MOST_DAYS = 36_500
LONGEST_TIMEOUT = 7 * 86_400.0
TEXT_LIMIT = 200
LINK_LIMIT = 2_000
OPTIONS_LIMIT = 10_000
MOST_ENDPOINTS = 50
ENDPOINT_PATTERN_LIMIT = 100
# An endpoint has a topic of this prefix and its name: who sees that sees the endpoint.
ENDPOINT_TOPICS = "gateway/"
# Policies that a kind of broker may restrict.
OF_THE_BROKER = {
    *("dead_letter_queue", "max_dequeue_count", "visibility_timeout", "options"),
    "request_endpoints",
}
# Policies of ours that a `host.json` names differently, for each kind of broker.
OURS_IN_HOST_JSON = {"maxDequeueCount": "max_dequeue_count"}


_BETWEEN = re.compile(r"[\s,]+")
_ENDPOINT_PATTERN = re.compile(rf"[a-z0-9._*-]{{1,{ENDPOINT_PATTERN_LIMIT}}}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policies:
    """The policies of one topic; times in seconds.

    `retention_days` is how long the broker keeps messages; None where it is unknown.
    `requeue_to` names the topic where its messages are sent again; "" for itself.
    `request_endpoints` are patterns of the endpoints that its messages are requests
    for; without one they are no requests.
    """

    dead_letter_queue: str = ""
    max_dequeue_count: int = 5
    visibility_timeout: float = 60.0
    retention_days: int | None = None
    requeue_to: str = ""
    owner: str = ""
    runbook: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    request_endpoints: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(cls, topic: Topic) -> Self:
        """Return the policies of a topic as they are now."""
        return cls(**{name: getattr(topic, name) for name in NAMES})

    def changed(self, data: Mapping[str, object]) -> Self:
        """Copy a topic's policies with these values; raise Invalid naming the field."""
        values = {name: read(name, value) for name, value in data.items()}
        return replace(self, **values)

    def differences(self, other: Self) -> dict[str, list[object]]:
        """Map each policy that differs from the `other` ones to [ours, theirs]."""
        here, there = asdict(self), asdict(other)
        return {
            name: [value, there[name]]
            for name, value in here.items()
            if value != there[name]
        }


def read(name: str, value: object) -> Any:
    """Parse a topic's policy, from JSON or a form; raise Invalid with its name."""
    return _READ[name](name, value)


def set_policies(
    *,
    topic: Topic,
    policies: Policies,
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> Topic:
    """Set the policies of a topic; raise Invalid for values that cannot work."""
    principal.require(Scope.BROKERS_WRITE)
    if not principal.sees(topic.name):
        raise Absent(f"There is no topic {topic.name} here.")
    changes = Policies.of(topic).differences(policies)
    if not changes:
        return topic
    if OF_THE_BROKER & changes.keys():
        _check_set_once(policies)
        _check_requests(topic, policies, principal)
        _check_with_broker(topic, policies)
    values = {name: after for name, (_, after) in changes.items()}
    target = _topic_to_requeue_to(changes, principal)
    queue = values.get("dead_letter_queue")
    if queue is not None:
        require_queue(principal, topic, str(queue))
        values["shares_queue"] = False
    with transaction.atomic():
        lock_topics(topics=[topic.pk, *([target.pk] if target else [])])
        if "requeue_to" in values:
            del values["requeue_to"]
            values["requeue_topic"] = target and _check_one_step(topic, target)
        with one_reader(
            broker=topic.broker,
            queue=str(queue or ""),
            topic=topic.name,
            principal=principal,
        ):
            Topic.objects.filter(pk=topic.pk).update(**values)
        audit.record(
            action=Action.TOPIC_ALTERED,
            subject=f"topic:{topic.name}",
            actor=principal.actor,
            source=principal.source,
            reason=reason,
            now=now,
            detail=changes,
        )
    return Topic.objects.select_related("broker").get(pk=topic.pk)


def _topic_to_requeue_to(
    changes: Mapping[str, list[object]], principal: Principal
) -> Topic | None:
    """Find the topic that a change of `requeue_to` names; None where it names no topic.

    Raises Invalid if there is no such topic, or if it has no broker.
    """
    _, name = changes.get("requeue_to", ("", ""))
    if not name:
        return None
    target = Topic.objects.filter(name=name).first()
    if target is None or not principal.sees(target.name):
        raise Invalid("requeue_to", f"there is no topic {name} here.")
    if target.broker_id is None:
        raise Invalid("requeue_to", f"the topic {name} has no broker.")
    return target


def _check_one_step(topic: Topic, target: Topic) -> Topic:
    """Return the topic to requeue to; raise Invalid if messages would go on from there.

    They go one step, so that a person sees at once where they go. Even where two
    people make a circle at once, each message takes one step of it.
    """
    if target == topic:
        raise Invalid("requeue_to", "leave it empty for the topic itself.")
    if Topic.objects.filter(pk=target.pk).exclude(requeue_topic=None).exists():
        remedy = f"{target.name} is requeued elsewhere itself: name that topic."
        raise Invalid("requeue_to", remedy)
    if earlier := Topic.objects.filter(requeue_topic=topic).first():
        remedy = f"{earlier.name} is requeued to this topic: change that first."
        raise Invalid("requeue_to", remedy)
    return target


def require_queue(principal: Principal, topic: Topic, queue: str) -> None:
    """Raise Forbidden where a limited key names a queue outside its patterns.

    The queue by convention of the broker's kind counts as the topic's own.
    """
    if queue in {"", convention_of_topic(topic).queue} or principal.sees(queue):
        return
    raise Forbidden(
        f"This key is not for the queue {queue}: it may name queues that match its "
        "topics."
    )


def options_from(text: str, *, example: str = "") -> dict[str, object]:
    """Parse a topic's options as people write them: a JSON object, or nothing."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return read_options(value, example=example)


def read_options(value: object, *, example: str = "") -> dict[str, object]:
    """Validate a topic's options, decoded from JSON; the error quotes an `example`."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value):
        such = f"such as {example}, or nothing" if example else "or nothing"
        raise Invalid("options", f"give a JSON object, {such}.")
    if not _is_storable(value):
        remedy = f"give at most {OPTIONS_LIMIT} characters of plain JSON."
        raise Invalid("options", remedy)
    return dict(value)


def limits_of(topic: Topic) -> frozenset[str]:
    """Name the policies that Poisonweb applies to a topic; all without an adapter."""
    if topic.broker is None:
        return LIMITS
    try:
        return adapters.adapter(topic.broker.kind).capabilities.limits
    except Unavailable as client:
        log.info("the limits of %s are not known: %s", topic.name, client)
        return LIMITS


def takes_host_json(topic: Topic) -> bool:
    """Tell whether a topic's kind of broker takes a pasted `host.json`."""
    return _host_json_reader(topic) is not None


def policies_of_host_json(
    topic: Topic, host_json: str, data: Mapping[str, object]
) -> dict[str, object]:
    """Return a topic's policies with the queue settings of a pasted `host.json`.

    Raises Invalid where that is unreadable, or the broker is of another kind.
    """
    read = _host_json_reader(topic)
    if read is None:
        raise Invalid("host_json", "its kind of broker is not set up in one.")
    try:
        pasted_options = read(host_json)
    except Invalid as wrong:
        raise Invalid("host_json", str(wrong)) from None
    policies = {
        ours: pasted_options.pop(name)
        for name, ours in OURS_IN_HOST_JSON.items()
        if name in pasted_options
    }
    options = read_options(data.get("options"))
    return {**data, **policies, "options": {**options, **pasted_options}}


def _host_json_reader(topic: Topic) -> adapters.HostJsonReader | None:
    """Return the parser of a `host.json` for the topic's kind, or None."""
    if topic.broker is None:
        return None
    return adapters.reader_of_host_json(topic.broker.kind)


def _check_set_once(policies: Policies) -> None:
    """Refuse a topic's option that repeats one of its policies."""
    for name, ours in OURS_IN_HOST_JSON.items():
        if name in policies.options:
            remedy = f"{name} is a policy of its own: set {ours}, and leave it out."
            raise Invalid("options", remedy)


def _check_requests(topic: Topic, policies: Policies, principal: Principal) -> None:
    """Check a topic's request policies: it reads itself, calls only visible endpoints.

    Raises Invalid or Forbidden. A `*` of a principal's pattern stands for any text,
    thus also for one that a `*` here stands for.
    """
    if not policies.request_endpoints:
        return
    if topic.broker is None:
        raise Invalid("broker", "say first which broker carries the topic.")
    if policies.dead_letter_queue != topic.native_name:
        raise Invalid(
            "dead_letter_queue",
            f"name {topic.native_name}: the lane of a topic of requests reads the topic"
            " itself.",
        )
    for pattern in policies.request_endpoints:
        if not principal.sees(ENDPOINT_TOPICS + pattern):
            raise Forbidden(f"This key is not for the endpoint {pattern}.")


def _check_with_broker(topic: Topic, policies: Policies) -> None:
    """Let the adapter check a topic's policies: it knows what its kind can do."""
    if topic.broker is None:
        if policies.dead_letter_queue or policies.options:
            raise Invalid("broker", "say first which broker carries the topic.")
        return
    settings = TopicSettings(
        topic=topic.native_name,
        dead_letter_queue=policies.dead_letter_queue,
        max_dequeue_count=policies.max_dequeue_count,
        visibility_timeout=policies.visibility_timeout,
        options=policies.options,
        reads_itself=bool(policies.request_endpoints),
    )
    try:
        url = sealed_addresses.reveal(topic.broker.url)
        broker = BrokerSettings(url=url, options=topic.broker.options)
        adapters.adapter(topic.broker.kind).topic_admin(broker, settings).close()
    except Invalid as wrong:
        raise _with_field_alone(wrong) from None
    except Unavailable as later:
        log.info("policies of %s were not checked: %s", topic.name, later)


def _with_field_alone(wrong: Invalid) -> Invalid:
    """Move an option's name from the field of a topic's Invalid into its remedy."""
    field_, _, option = wrong.field.partition(".")
    return Invalid(field_, f"{option} {wrong.remedy}") if option else wrong


def _parse_count(name: str, value: object) -> int:
    """Parse a policy's whole number from 1 on; raise Invalid with its name."""
    return _parse_whole(name, value, MOST_COUNT)


def _parse_days(name: str, value: object) -> int | None:
    """Parse a policy's number of days, None for an empty one; raise Invalid."""
    if value is None or value == "":
        return None
    return _parse_whole(name, value, MOST_DAYS)


def _parse_whole(name: str, value: object, most: int) -> int:
    """Parse a policy's whole number up to a limit; raise Invalid."""
    text = value.strip() if isinstance(value, str) else value
    # A bool is an int in Python, and int() also accepts digits of other scripts.
    if isinstance(text, str) and text.isascii() and text.isdigit():
        text = int(text[:20])
    if type(text) is not int or not LEAST <= text <= most:
        raise Invalid(name, f"give a whole number from {LEAST} to {most}.")
    return text


def _parse_seconds(name: str, value: object) -> float:
    """Parse a topic policy's seconds, or a time span as hh:mm:ss; raise Invalid."""
    seconds = seconds_of(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Invalid(name, "give seconds, or hh:mm:ss.")
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise Invalid(name, f"give more than 0 and at most {LONGEST_TIMEOUT:.0f} s.")
    return float(seconds)


def _parse_text(name: str, value: object) -> str:
    """Return a policy's text without blanks at its ends; raise Invalid."""
    if not isinstance(value, str) or len(value) > TEXT_LIMIT:
        raise Invalid(name, f"give text of at most {TEXT_LIMIT} characters.")
    if value != storable(value) or not value.isprintable():
        raise Invalid(name, "it holds a character that cannot be seen.")
    return value.strip()


def _parse_queue(name: str, value: object) -> str:
    """Return a dead-letter queue's exact name, "" for a blank one; raise Invalid."""
    # Spaces at either end are part of a queue's name.
    return value if _parse_text(name, value) and isinstance(value, str) else ""


def _parse_link(name: str, value: object) -> str:
    """Return a topic's link if it is safe to follow; raise Invalid for any other.

    No page may run it.
    """
    if value == "":
        return ""
    if not isinstance(value, str) or len(value) > LINK_LIMIT:
        raise Invalid(name, f"give a link of at most {LINK_LIMIT} characters.")
    try:
        parts = urlsplit(value.strip())
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_one = False
    if not is_one or not value.isprintable() or any(map(str.isspace, value.strip())):
        raise Invalid(name, "give a link that begins with https:// or http://")
    return value.strip()


def _parse_endpoints(name: str, value: object) -> list[str]:
    """Parse a topic policy's patterns of endpoints, a list or a text; raise Invalid.

    In a text, blanks or commas stand between the patterns.
    """
    patterns = _BETWEEN.split(value) if isinstance(value, str) else value
    if not isinstance(patterns, list | tuple):
        raise Invalid(name, "give a list of names of endpoints; * stands for any text.")
    written = [pattern for pattern in patterns if pattern != ""]
    if len(written) > MOST_ENDPOINTS:
        raise Invalid(name, f"give at most {MOST_ENDPOINTS} names of endpoints.")
    for pattern in written:
        if not isinstance(pattern, str) or not _ENDPOINT_PATTERN.fullmatch(pattern):
            raise Invalid(
                name,
                "an endpoint has small letters, digits, dots, hyphens and underscores;"
                f" * stands for any text; at most {ENDPOINT_PATTERN_LIMIT} characters.",
            )
    return list(dict.fromkeys(written))


def _is_storable(value: object) -> bool:
    """Tell whether Postgres can store a topic's options, and they are short enough."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    is_text = text == storable(text) and "\\u0000" not in text
    return is_text and len(text) <= OPTIONS_LIMIT


_READ: Mapping[str, Callable[[str, object], object]] = {
    "dead_letter_queue": _parse_queue,
    "max_dequeue_count": _parse_count,
    "visibility_timeout": _parse_seconds,
    "retention_days": _parse_days,
    "requeue_to": _parse_text,
    "owner": _parse_text,
    "runbook": _parse_link,
    "options": lambda _, value: read_options(value),
    "request_endpoints": _parse_endpoints,
}
NAMES = tuple(each.name for each in fields(Policies))
