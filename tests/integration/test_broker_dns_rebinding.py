"""Connections go to the checked address, even if the name resolves to another later."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.test import override_settings

from apps.brokers import adapters, address_policy
from apps.brokers.address_policy import NotAllowed, Target
from apps.brokers.models import Broker
from apps.brokers.services import topics_and_routing_publisher
from apps.core.errors import Invalid, Unavailable

pytestmark = pytest.mark.django_db

NAME = "broker.example"
PUBLIC, LOOPBACK, METADATA = "203.0.113.9", "127.0.0.1", "169.254.169.254"
AZURE = "DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=c2VjcmV0"
Answer = list[str]


class CountingPort:
    """A port of this machine that counts the connections to it."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self.visits = 0
        self._listener = listener
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            visitor, _ = self._listener.accept()
            with visitor:
                if visitor.recv(1) == b"!":
                    return
                self.visits += 1  # before it hangs up, which the visitor notices

    def close(self) -> None:
        with socket.create_connection((LOOPBACK, self.port)) as end:
            end.sendall(b"!")
        self._thread.join()


@pytest.fixture
def counting_port() -> Iterator[CountingPort]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = CountingPort(listener)
        try:
            yield port
        finally:
            port.close()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Resolve NAME to these addresses in turn, and to the last one from then on."""
    answers: list[Answer] = []
    usual = socket.getaddrinfo

    def getaddrinfo(host: str, port: int | None, *rest: int, **options: int) -> object:
        if host != NAME:
            return usual(host, port, *rest, **options)
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        return [(family, kind, 6, "", (address, port or 0)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


def broker(kind: str, port: int) -> Broker:
    urls: dict[str, tuple[str, dict[str, object]]] = {
        "redis_streams": (f"redis://:secret@{NAME}:{port}/0", {}),
        "rabbitmq": (f"amqp://u:secret@{NAME}:{port}/", {}),
        "azure_queue": (f"{AZURE};QueueEndpoint=http://{NAME}:{port}/acme", {}),
        "sqs": (
            "sqs://key:secret@eu-central-1",
            {"endpoint_url": f"http://{NAME}:{port}"},
        ),
    }
    url, options = urls[kind]
    return Broker(name="orders", kind=kind, url=url, options=options)


@contextmanager
def pinging(one: Broker) -> Iterator[Callable[[], str]]:
    admin = topics_and_routing_publisher.broker_admin_of(one)
    try:
        yield admin.ping
    finally:
        admin.close()


KINDS = ["redis_streams", "rabbitmq", "azure_queue", "sqs"]


@pytest.mark.parametrize("later", [LOOPBACK, METADATA])
@pytest.mark.parametrize("kind", KINDS)
@override_settings(POISONWEB_LOOPBACK_BROKERS=False)
def test_a_name_that_resolves_elsewhere_after_its_check_is_not_dialled(
    kind: str, later: str, counting_port: CountingPort, resolver: list[Answer]
) -> None:
    resolver[:] = [[PUBLIC], [later]]

    with (
        pinging(broker(kind, counting_port.port)) as ping,
        pytest.raises(Unavailable) as away,
    ):
        ping()

    assert counting_port.visits == 0
    # The clients of the other two do not pass on the system's error text.
    if kind in {"redis_streams", "rabbitmq"}:
        assert "leads to" in str(away.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_be_dialled_is_dialled(
    kind: str, counting_port: CountingPort, resolver: list[Answer]
) -> None:
    resolver[:] = [[LOOPBACK]]

    with pinging(broker(kind, counting_port.port)) as ping, pytest.raises(Unavailable):
        ping()  # the port hangs up

    assert counting_port.visits > 0


@pytest.mark.parametrize("kind", KINDS)
@override_settings(POISONWEB_LOOPBACK_BROKERS=False)
def test_a_name_that_resolves_to_this_machine_is_refused_by_its_check(
    kind: str, counting_port: CountingPort, resolver: list[Answer]
) -> None:
    resolver[:] = [[LOOPBACK]]

    with pytest.raises(Invalid, match="leads to this machine itself"):
        topics_and_routing_publisher.broker_admin_of(broker(kind, counting_port.port))

    assert counting_port.visits == 0


def test_of_several_addresses_only_those_allowed_are_dialled(
    counting_port: CountingPort, resolver: list[Answer]
) -> None:
    resolver[:] = [[METADATA, LOOPBACK]]

    Target().dial(NAME, counting_port.port, seconds=5).close()

    resolver[:] = [[METADATA]]
    with pytest.raises(NotAllowed, match="leads to where no broker is"):
        Target().dial(NAME, counting_port.port, seconds=5)


def test_the_host_of_an_address_in_the_environment_is_not_checked(
    counting_port: CountingPort, resolver: list[Answer]
) -> None:
    resolver[:] = [[LOOPBACK]]
    trusted = Target.of_broker(
        f"redis://{NAME}:{counting_port.port}", {}, is_trusted=True
    )

    with override_settings(POISONWEB_LOOPBACK_BROKERS=False):
        trusted.dial(NAME, counting_port.port, seconds=5).close()
        with pytest.raises(NotAllowed):
            address_policy.usual_dial(NAME, counting_port.port, seconds=5)


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Remove all credentials of this machine from the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    return monkeypatch


AS_THIS_MACHINE = "sqs://eu-central-1"


@pytest.mark.parametrize("url", [AS_THIS_MACHINE, "sqs://@eu-central-1"])
def test_credentials_of_this_machine_go_to_an_endpoint_only_if_the_operator_allows_it(
    counting_port: CountingPort, identity: pytest.MonkeyPatch, url: str
) -> None:
    identity.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHESERVER")
    identity.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    endpoint = f"http://{LOOPBACK}:{counting_port.port}"
    one = Broker(name="orders", kind="sqs", url=url, options={"endpoint_url": endpoint})

    with pytest.raises(Invalid, match="endpoint_url names 127.0.0.1, which is another"):
        topics_and_routing_publisher.broker_admin_of(one)
    refused = counting_port.visits
    named = override_settings(POISONWEB_BROKER_HOSTS=("sqs.*", LOOPBACK))
    with named, pinging(one) as ping, pytest.raises(Unavailable):
        ping()

    assert refused == 0
    assert counting_port.visits > 0


def test_the_role_of_this_machine_is_requested_only_if_the_operator_allows_it(
    counting_port: CountingPort, identity: pytest.MonkeyPatch
) -> None:
    place = f"http://{LOOPBACK}:{counting_port.port}"
    identity.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", place)
    identity.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{place}/keys")
    identity.setenv("BROKER_ORDERS", AS_THIS_MACHINE)

    def visits(url: str, *allowed: str) -> int:
        before = counting_port.visits
        one = Broker(
            name="orders", kind="sqs", url=url, allowed_confirmed=list(allowed)
        )
        with pinging(one) as ping, pytest.raises(Unavailable):
            ping()
        return counting_port.visits - before

    assert visits(AS_THIS_MACHINE) == 0
    assert visits("env:BROKER_ORDERS") > 0
    assert visits(AS_THIS_MACHINE, address_policy.METADATA) > 0


def test_these_tests_cover_every_kind_of_broker_that_dials() -> None:
    dialling = {kind for kind in adapters.KINDS if kind != "memory"}

    assert dialling == set(KINDS)
