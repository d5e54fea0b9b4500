"""The address of a RabbitMQ and the queues of a topic, parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.address_policy import Dial, usual_dial
from apps.brokers.errors import QueueMissing
from apps.core.errors import Invalid

SUFFIX = "-dead"
# AMQP's limit for the name of a queue, in bytes.
LONGEST_NAME = 255

_PORTS = {"amqp": 5672, "amqps": 5671}
_MANAGEMENT_PORTS = {"amqp": 15672, "amqps": 15671}
_MANAGEMENT_SCHEMES = {"amqp": "http", "amqps": "https"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RabbitAddress:
    """A server, one of its virtual hosts, and our user there.

    `management_url` is an option, or else the usual address of the management plugin.
    """

    host: str
    port: int
    tls: bool
    user: str
    password: str = field(repr=False)
    vhost: str
    management_url: str
    has_management_url: bool
    dial: Dial = field(default=usual_dial, repr=False, compare=False)

    @property
    def server(self) -> str:
        """Name the RabbitMQ server for texts, without its password."""
        return f"RabbitMQ at {self.host}:{self.port}"

    @classmethod
    def of(cls, settings: BrokerSettings) -> Self:
        """Parse a RabbitMQ address and options; raise Invalid."""
        # Errors of the URL parser quote the text, which may hold a secret.
        try:
            parts = urlsplit(settings.url)
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise _unusable_error() from None
        if (
            not parts.hostname
            or parts.query
            or parts.fragment
            or _has_several_parts(parts.path)
        ):
            raise _unusable_error()
        if parts.scheme not in _PORTS:
            raise _unusable_error()
        return cls(
            host=unquote(parts.hostname),
            port=port,
            tls=parts.scheme == "amqps",
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(parts.path[1:]) or "/",
            management_url=_management_url(
                settings.options, parts.scheme, parts.hostname
            ),
            has_management_url=bool(settings.options.get("management_url")),
            dial=settings.target.dial,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RabbitQueues:
    """The queue of a topic and its dead-letter queue."""

    topic: str
    dead_letters: str

    @classmethod
    def of(cls, settings: TopicSettings) -> Self:
        """Name a topic's RabbitMQ queue and its dead-letter queue; raise Invalid."""
        if settings.options:
            unknown = ", ".join(sorted(settings.options))
            remedy = f"{unknown} is unknown: a topic on RabbitMQ has no options."
            raise Invalid("options", remedy)
        queue = settings.dead_letter_queue
        if not queue and settings.topic.endswith(SUFFIX):
            remedy = f"{settings.topic} looks like one itself: name it expressly."
            raise Invalid("dead_letter_queue", remedy)
        queue = queue or settings.topic + SUFFIX
        if queue == settings.topic and not settings.reads_itself:
            raise Invalid(
                "dead_letter_queue", "must be another queue than the topic's."
            )
        if not is_name(queue):
            raise Invalid("dead_letter_queue", "RabbitMQ's names have 1 to 255 bytes.")
        return cls(topic=settings.topic, dead_letters=queue)


def queue_missing(server: str, queue: str) -> QueueMissing:
    """Build the QueueMissing of a RabbitMQ queue that does not exist."""
    return QueueMissing(f"{server} has no queue {queue}.")


def is_name(text: str) -> bool:
    """Tell whether RabbitMQ takes the text as a name."""
    try:
        return 0 < len(text.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False


def _has_several_parts(path: str) -> bool:
    """Tell whether a RabbitMQ address has several parts in its path.

    A virtual host spells / as %2F.
    """
    return "/" in path[1:]


def _management_url(options: Mapping[str, object], scheme: str, host: str) -> str:
    """Return the URL of the management plugin: the option, or the usual one."""
    unknown = sorted(set(options) - {"management_url"})
    if unknown:
        hint = 'the only option of rabbitmq is "management_url".'
        raise Invalid("options", f"{', '.join(unknown)} is unknown: {hint}")
    printed_host = f"[{host}]" if ":" in host else host
    usual = (
        f"{_MANAGEMENT_SCHEMES[scheme]}://{printed_host}:{_MANAGEMENT_PORTS[scheme]}"
    )
    url = options.get("management_url") or usual
    if not isinstance(url, str) or not _is_plain_url(url):
        remedy = "management_url must be http(s)://host[:port][/path], with no user."
        raise Invalid("options", remedy)
    return url.rstrip("/")


def _is_plain_url(url: str) -> bool:
    """Tell whether RabbitMQ's option is an HTTP URL with no user, query or fragment."""
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        return False
    bare = not (parts.username or parts.password or parts.query or parts.fragment)
    return (
        usable and bare and parts.scheme in {"http", "https"} and bool(parts.hostname)
    )


def _unusable_error() -> Invalid:
    """Build the error of a RabbitMQ address that cannot be used."""
    remedy = (
        "write amqp://user:password@host[:port][/vhost], or amqps:// for TLS; "
        "percent-encode what is special in a password or a virtual host."
    )
    return Invalid("url", remedy)
