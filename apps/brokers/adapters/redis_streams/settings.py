"""Settings of a topic of Redis Streams, and the encoding of its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.address_policy import Dial, usual_dial
from apps.core.errors import Invalid

SUFFIX = "-poison"
# The consumer that claims a message of another group while we dead-letter it.
FENCE = b"poisonweb"


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisSettings:
    """The address of one topic and its options; a publisher needs no topic."""

    url: str = field(repr=False)
    topic: str = ""
    dead_letter_queue: str = ""
    body_field: str = "body"
    max_dequeue_count: int = 5
    visibility_timeout: float = 60.0
    reads_itself: bool = False
    dial: Dial = field(default=usual_dial, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.body_field:
            raise Invalid("body_field", "name the field that holds the body.")
        if self.topic and not self.dead_letter_queue and self.topic.endswith(SUFFIX):
            remedy = f"{self.topic} looks like one itself: name it expressly."
            raise Invalid("dead_letter_queue", remedy)
        is_same = self.topic == self.dead_letter_queue
        if self.topic and is_same and not self.reads_itself:
            raise Invalid("dead_letter_queue", "must be another stream than the topic.")

    @classmethod
    def from_options(cls, options: Mapping[str, object], **settings: Any) -> Self:
        """Build the settings of a Redis broker or topic from its options.

        `body_field` is the only free option; raises Invalid for another one.
        """
        unknown = set(options) - {"body_field"}
        if unknown:
            hint = 'the only option of redis_streams is "body_field".'
            raise Invalid("options", f"{', '.join(sorted(unknown))} is unknown: {hint}")
        body_field = options.get("body_field", "body")
        if not isinstance(body_field, str):
            raise Invalid("options", "body_field must be text.")
        return cls(body_field=body_field, **settings)

    @property
    def stream(self) -> bytes:
        """Return the key of the topic's stream."""
        return key(self.topic)

    @property
    def queue(self) -> bytes:
        """Return the key of the dead-letter queue, by its suffix if none is named."""
        return key(self.dead_letter_queue or self.topic + SUFFIX)


def settings_of(
    broker: BrokerSettings, topic: TopicSettings | None = None
) -> RedisSettings:
    """Build the settings of a Redis broker, or of one of its topics; raise Invalid."""
    if topic is None:
        return RedisSettings.from_options(
            broker.options, url=broker.url, dial=broker.target.dial
        )
    return RedisSettings.from_options(
        {**broker.options, **topic.options},
        url=broker.url,
        dial=broker.target.dial,
        topic=topic.topic,
        dead_letter_queue=topic.dead_letter_queue,
        max_dequeue_count=topic.max_dequeue_count,
        visibility_timeout=topic.visibility_timeout,
        reads_itself=topic.reads_itself,
    )


def key(name: str) -> bytes:
    """Encode a stream's name as a key of Redis; reverses `text`."""
    return name.encode("utf-8", "surrogatepass")


def text(value: bytes) -> str:
    """Decode a key or value of Redis for people; odd bytes are replaced."""
    return value.decode("utf-8", "replace")
