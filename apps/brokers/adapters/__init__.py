"""One package for each kind of broker, found by the kind's name.

A package is imported only when a broker of its kind is offered or used: clients are
optional extras, and an error says how to install a missing one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from apps.brokers.adapters.adapter import Adapter
from apps.brokers.address_policy import has_user
from apps.core.errors import Invalid, Unavailable

HostJsonReader = Callable[[str], dict[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerKind:
    """A kind of broker, as people know it.

    `client` is the Python module it needs. `url`, `broker_options` and `topic_options`
    are examples of an address and of options in JSON; "" where a kind has no options.
    `host_json` names the module that reads a pasted `host.json`.
    `sends_password_by_options`: an option names a host that gets the password, in the
    clear over http. `lends_identity`: without a key in its address, calls use the
    rights of this machine, which were never entered here.
    """

    name: str
    title: str
    client: str
    url: str
    broker_options: str = ""
    topic_options: str = ""
    host_json: str = ""
    sends_password_by_options: bool = False
    lends_identity: bool = False

    def calls_as_this_machine(self, url: str) -> bool:
        """Tell whether a broker at this address is called by this machine's own role.

        So where its kind allows that, and the address names no user.
        """
        return self.lends_identity and not has_user(url)


KINDS = {
    kind.name: kind
    for kind in (
        BrokerKind(
            name="redis_streams",
            title="Redis Streams",
            client="redis",
            url="redis://:password@host:6379/0",
            broker_options='{"body_field": "body"}',
            topic_options='{"body_field": "body"}',
        ),
        BrokerKind(
            name="rabbitmq",
            title="RabbitMQ",
            client="pika",
            url="amqp://user:password@host:5672/vhost",
            broker_options='{"management_url": "https://host:15671"}',
            sends_password_by_options=True,
        ),
        BrokerKind(
            name="azure_queue",
            title="Azure Storage Queues",
            client="urllib3",
            url="DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...",
            broker_options='{"messageEncoding": "none"}',
            topic_options='{"maxPollingInterval": "00:00:10"}',
            host_json="azure_queue.settings",
        ),
        BrokerKind(
            name="sqs",
            title="Amazon SQS",
            client="boto3",
            url="sqs://access-key:secret-key@eu-central-1",
            broker_options='{"endpoint_url": "https://host"}',
            topic_options='{"maxPollingInterval": "00:00:15"}',
            lends_identity=True,
        ),
    )
}


def kind_named(kind: str) -> BrokerKind:
    """Return a kind of broker by its name; raise `Invalid` for an unknown one."""
    if kind not in KINDS:
        raise Invalid("kind", f"{kind} is unknown: use one of {', '.join(KINDS)}.")
    return KINDS[kind]


def title_of(kind: str) -> str:
    """Return the title of a kind of broker; the name itself for an unknown one."""
    return KINDS[kind].title if kind in KINDS else kind


@cache
def adapter(kind: str) -> Adapter:
    """Return a broker kind's adapter; raise `Unavailable` without its client."""
    instance: Adapter = _import_adapter(kind).ADAPTER
    return instance


def missing_client(kind: str) -> str:
    """Say how to install a broker kind's client; "" where it can be imported."""
    try:
        adapter(kind)
    except Unavailable as missing:
        return str(missing)
    return ""


def reader_of_host_json(kind: str) -> HostJsonReader | None:
    """Return the function that parses a `host.json` into a topic's options, or None."""
    module_name = kind_named(kind).host_json
    if not module_name:
        return None
    module = import_module(f"{__name__}.{module_name}")
    reader: HostJsonReader = module.settings_from_host_json
    return reader


def _import_adapter(kind: str) -> ModuleType:
    """Import the adapter's module; raise Unavailable without its client."""
    client = kind_named(kind).client
    try:
        return import_module(f"{__name__}.{kind}.adapter")
    except ModuleNotFoundError as missing:
        if not client.startswith(str(missing.name).partition(".")[0]):
            raise
        raise Unavailable(_how_to_install(kind)) from missing


def _how_to_install(kind: str) -> str:
    """Say how to install the client library of a kind of broker."""
    return (
        f"The client of {KINDS[kind].title} is not installed here: run "
        f"pip install -r apps/brokers/requirements/{kind}.txt, then start Poisonweb "
        "again."
    )
