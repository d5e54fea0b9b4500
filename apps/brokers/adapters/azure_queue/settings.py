"""Settings for reading one queue, under their names in Azure Functions.

They may be pasted from a `host.json`. Each applies where it does in the Functions
runtime: `maxDequeueCount`, `batchSize`, `newBatchThreshold` and `visibilityTimeout`
where we dead-letter in its place, `maxPollingInterval` and `messageEncoding` where we
read a poison queue.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.azure_queue.message_text import Encoding
from apps.core.errors import Invalid

SUFFIX = "-poison"
SHORTEST_NAME, LONGEST_NAME = 3, 63
LARGEST_BATCH = 32
LONGEST_TIMEOUT = 7 * 86_400.0
SHORTEST_INTERVAL, USUAL_INTERVAL, LONGEST_INTERVAL = 0.1, 1.0, 3_600.0
# The highest dequeue count in Azure; a higher limit means never.
LARGEST_COUNT = 2**31 - 1
LONGEST_HOST_JSON = 65_536

_NAME = re.compile(r"[a-z0-9]++(?>(?:-[a-z0-9]++)*)")
_TIME_SPAN = re.compile(
    r"(?:(\d{1,3})\.)?(\d{1,2}):(\d{2}):(\d{2}(?:\.\d{1,7})?)", re.ASCII
)
# An unclosed string or comment extends to the end of the text: searching its end again
# from each character would take more than linear time.
_STRING = r'"(?>(?:[^"\\]++|\\.)*)"?'
_COMMENT = re.compile(
    rf"({_STRING})|//[^\n]*|/\*(?>(?:[^*]++|\*(?!/))*)(?:\*/|(?P<unclosed>\Z))",
    re.DOTALL,
)
_LAST_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureQueueSettings:
    """One topic's queue and its poison queue; times in seconds.

    `hidden_for` is how long others do not see what we read of the poison queue;
    `visibility_timeout` is how long a failed message waits in its own queue. A message
    without a mark is written in `usual_encoding`.
    """

    topic: str
    poison_queue: str
    hidden_for: int = 60
    max_dequeue_count: int = 5
    visibility_timeout: float = 0.0
    batch_size: int = 16
    new_batch_threshold: int = 8
    max_polling_interval: float = USUAL_INTERVAL
    message_encoding: Encoding = Encoding.BASE64
    usual_encoding: Encoding = Encoding.BASE64

    @classmethod
    def of_topic(cls, broker: BrokerSettings, topic: TopicSettings) -> Self:
        """Build the settings of a topic and its poison queue; raise Invalid."""
        usual = usual_encoding(broker)
        options = _parse_all(topic.options, where="options")
        values = {_field_name(name): value for name, value in options.items()}
        values.setdefault("max_dequeue_count", topic.max_dequeue_count)
        values.setdefault("message_encoding", usual)
        return cls(
            topic=queue_name(topic.topic, field="topic"),
            poison_queue=_queue_read(topic),
            hidden_for=_whole_seconds(topic.visibility_timeout),
            usual_encoding=usual,
            **values,
        )


def settings_from_host_json(text: str) -> dict[str, object]:
    """Return the queue settings of a `host.json` as options of a topic.

    Comments are allowed, and so is the fragment without the outer braces, as it is
    often printed. Times come back as `hh:mm:ss`; missing settings stay out.
    """
    section: Any = _parse_host_json(text)
    path = "host.json"
    remedy = _missing_section_remedy(section)
    for name in ("extensions", "queues"):
        path = f"{path}.{name}"
        section = section.get(name)
        if not isinstance(section, dict):
            raise Invalid(path, remedy)
    checked = _parse_all(section, where=path)
    return {name: _as_written(value) for name, value in checked.items()}


def _queue_read(topic: TopicSettings) -> str:
    """Return the queue that the lane reads; raise Invalid for an impossible name."""
    if topic.reads_itself and topic.dead_letter_queue == topic.topic:
        return queue_name(topic.topic, field="topic")
    return poison_queue(topic.topic, topic.dead_letter_queue)


def poison_queue(topic: str, named: str) -> str:
    """Return a topic's poison queue; raise `Invalid` for an impossible name.

    The Functions runtime silently uses none where the name would be too long, or the
    queue is a poison queue itself.
    """
    field = "dead_letter_queue"
    if named and named == topic:
        raise Invalid(field, "must be another queue than the topic.")
    if not named and topic.endswith(SUFFIX):
        remedy = f"{topic} looks like one itself: name it expressly, or none."
        raise Invalid(field, remedy)
    queue = named or topic + SUFFIX
    if queue.endswith(SUFFIX * 2):
        raise Invalid(field, f"{queue} would be the poison of a poison queue.")
    if not named and len(queue) > LONGEST_NAME:
        longest = LONGEST_NAME - len(SUFFIX)
        remedy = (
            f"a name of {len(topic)} characters leaves no room for {SUFFIX}: at most "
            f"{longest} characters do. Name another queue, or none."
        )
        raise Invalid(field, remedy)
    return queue_name(queue, field=field)


def queue_name(name: str, *, field: str) -> str:
    """Return the name; raise `Invalid` where Azure allows no such queue name."""
    fits = SHORTEST_NAME <= len(name) <= LONGEST_NAME
    if not fits or not _NAME.fullmatch(name):
        remedy = (
            f"{name[:80]!a} is no queue name in Azure: 3 to 63 small letters, "
            "digits and single hyphens, none of them first or last."
        )
        raise Invalid(field, remedy)
    return name


def usual_encoding(broker: BrokerSettings) -> Encoding:
    """Read a broker's only option, `messageEncoding`: how it writes message text."""
    unknown = set(broker.options) - {"messageEncoding"}
    if unknown:
        remedy = f"{_join_names(unknown)} is unknown: there is only messageEncoding."
        raise Invalid("options", remedy)
    value = broker.options.get("messageEncoding", Encoding.BASE64)
    return _parse_encoding(value, field="options.messageEncoding")


def _parse_all(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Parse a topic's Azure settings; raise Invalid for an unknown or bad one."""
    unknown = set(values) - set(_SETTINGS)
    if unknown:
        names = ", ".join(_SETTINGS)
        raise Invalid(where, f"{_join_names(unknown)} is unknown: there are {names}.")
    return {
        name: _SETTINGS[name](value, field=f"{where}.{name}")
        for name, value in values.items()
    }


def _number_check(lowest: int, highest: int) -> Callable[..., int]:
    """Build a check of Azure's setting that takes whole numbers within the limits."""

    def check(value: object, *, field: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Invalid(field, "is a whole number, without quotes.")
        if not lowest <= value <= highest:
            raise Invalid(field, f"is {value}: use {lowest:,} to {highest:,}.")
        return value

    return check


def _duration_check(shortest: float, longest: float) -> Callable[..., float]:
    """Build a check of Azure's setting that returns seconds within the limits."""

    def check(value: object, *, field: str) -> float:
        seconds = _parse_seconds(value)
        if seconds is None:
            raise Invalid(field, "is hh:mm:ss, or a number of seconds.")
        if not shortest <= seconds <= longest:
            least, most = _time_span(shortest), _time_span(longest)
            raise Invalid(field, f"is {_time_span(seconds)}: use {least} to {most}.")
        return seconds

    return check


def _parse_encoding(value: object, *, field: str) -> Encoding:
    """Return Azure's message encoding of this name; raise Invalid for another."""
    encodings = {encoding.value: encoding for encoding in Encoding}
    if not isinstance(value, str) or value.lower() not in encodings:
        raise Invalid(field, "is base64 or none.")
    return encodings[value.lower()]


_SETTINGS: dict[str, Callable[..., Any]] = {
    "maxDequeueCount": _number_check(1, LARGEST_COUNT),
    "visibilityTimeout": _duration_check(0, LONGEST_TIMEOUT),
    "batchSize": _number_check(1, LARGEST_BATCH),
    "newBatchThreshold": _number_check(0, 1_000),
    "maxPollingInterval": _duration_check(SHORTEST_INTERVAL, LONGEST_INTERVAL),
    "messageEncoding": _parse_encoding,
}


def _field_name(name: str) -> str:
    """Convert the name of a setting to that of a field: camel to snake case."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _parse_seconds(value: object) -> float | None:
    """Parse a setting's seconds, or time span; None for another value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return min(float(value), 1e9) if math.isfinite(value) else None
    match = _TIME_SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    if hours >= 24 or minutes >= 60 or seconds >= 60:
        return None
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _time_span(seconds: float) -> str:
    """Write a setting's seconds as d.hh:mm:ss, as `host.json` of Azure does."""
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    fraction = f"{rest:06.3f}".removesuffix(".000")
    return (f"{days}." if days else "") + f"{hours:02}:{minutes:02}:{fraction}"


def _as_written(value: object) -> object:
    """Return a setting's value as `host.json` of Azure writes it."""
    if isinstance(value, float):
        return _time_span(value)
    return value.value if isinstance(value, Encoding) else value


def _whole_seconds(seconds: float) -> int:
    """Round Azure's visibility timeout up; raise Invalid if it is out of range."""
    if not 0 < seconds <= LONGEST_TIMEOUT:
        longest = f"{LONGEST_TIMEOUT:,.0f} seconds, which is 7 days"
        raise Invalid("visibility_timeout", f"is more than 0 and at most {longest}.")
    return math.ceil(seconds)


def _parse_host_json(text: str) -> dict[str, Any]:
    """Parse a `host.json`, with comments and last commas; raise Invalid."""
    if len(text) > LONGEST_HOST_JSON:
        raise Invalid("host.json", f"has at most {LONGEST_HOST_JSON} characters.")
    bare = _LAST_COMMA.sub(r"\1", _COMMENT.sub(_uncommented, text))
    bare = bare.strip("\ufeff \t\r\n")
    if bare.startswith('"'):
        bare = f"{{{bare}}}"
    try:
        document = json.loads(bare)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", "")
        where = f" in line {line}" if line else ""
        remedy = f"cannot be read as JSON{where}: paste the whole file."
        raise Invalid("host.json", remedy) from None
    if not isinstance(document, dict):
        raise Invalid("host.json", 'is an object: it begins with "{".')
    return document


def _uncommented(match: re.Match[str]) -> str:
    """Replace a comment of `host.json` by nothing; leave a string as it is."""
    # An unclosed comment stays in the text, so json refuses it.
    return "/*" if match["unclosed"] is not None else match[1] or ""


def _missing_section_remedy(whole: Mapping[str, object]) -> str:
    """Say what a `host.json` without the section of queues must hold."""
    if "queues" in whole:
        return (
            'is not there. "queues" alone is of version 1, whose times are in '
            'milliseconds: write it as "extensions": {"queues": {...}}.'
        )
    return 'is no section here: the settings stand in "extensions": {"queues": {...}}.'


def _join_names(names: set[str]) -> str:
    """Join the names of Azure's settings in order for an error."""
    return ", ".join(sorted(ascii(str(name))[:80] for name in names))
