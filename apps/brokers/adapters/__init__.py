"""One module for each kind of broker, and the way to it by the kind's name.

A module is imported only when a broker of its kind is spoken to: their clients are
optional extras, and one that is not installed is told in a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from apps.brokers.adapters.adapter import Adapter
from apps.core.errors import Invalid, Unavailable

Pasted = Callable[[str], dict[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of broker, as people know it.

    `client` is the Python module it needs; `url` an example of an address;
    `suffix` what its users put behind a topic's name to name its dead-letter queue.
    `host_json` names the module that reads what can be pasted of a `host.json`.
    """

    name: str
    title: str
    client: str
    url: str
    suffix: str
    host_json: str = ""


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="redis_streams",
            title="Redis Streams",
            client="redis",
            url="redis://:password@host:6379/0",
            suffix="-poison",
        ),
        Kind(
            name="rabbitmq",
            title="RabbitMQ",
            client="pika",
            url="amqp://user:password@host:5672/vhost",
            suffix="-dead",
        ),
        Kind(
            name="azure_queue",
            title="Azure Storage Queues",
            client="urllib3",
            url="DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...",
            suffix="-poison",
            host_json="azure_settings",
        ),
        Kind(
            name="sqs",
            title="Amazon SQS",
            client="boto3",
            url="sqs://access-key:secret-key@eu-central-1",
            suffix="-dlq",
        ),
    )
}


def known(kind: str) -> Kind:
    """Give a kind by its name; raise `Invalid` for one that is none."""
    if kind not in KINDS:
        raise Invalid("kind", f"{kind} is unknown: use one of {', '.join(KINDS)}.")
    return KINDS[kind]


def title_of(kind: str) -> str:
    """Give what people call a kind; one that is none any more by its own name."""
    return KINDS[kind].title if kind in KINDS else kind


@cache
def adapter(kind: str) -> Adapter:
    """Give the adapter of a kind; raise `Unavailable` where its client is missing."""
    found: Adapter = _module(kind).ADAPTER
    return found


def reader_of_host_json(kind: str) -> Pasted | None:
    """Give what makes a topic's options of a `host.json`; None where there is none."""
    named = known(kind).host_json
    if not named:
        return None
    found: Pasted = import_module(f"{__name__}.{named}").settings_from_host_json
    return found


def _module(kind: str) -> ModuleType:
    client = known(kind).client
    try:
        return import_module(f"{__name__}.{kind}")
    except ModuleNotFoundError as missing:
        if not client.startswith(str(missing.name).partition(".")[0]):
            raise
        raise Unavailable(_how_to_install(kind)) from missing


def _how_to_install(kind: str) -> str:
    return (
        f"The client of {KINDS[kind].title} is not installed here: set up with "
        f"`make run BROKERS={kind}`, or `pip install -r "
        f"apps/brokers/requirements/{kind}.txt`."
    )
