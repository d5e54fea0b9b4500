"""The address that was checked is dialled, whatever a name says later."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.test import override_settings

from apps.brokers import adapters, hosts, services
from apps.brokers.hosts import NotAllowed, Target
from apps.brokers.models import Broker
from apps.core.errors import Invalid, Unavailable

pytestmark = pytest.mark.django_db

NAME = "broker.example"
PUBLIC, LOOPBACK, METADATA = "203.0.113.9", "127.0.0.1", "169.254.169.254"
AZURE = "DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=c2VjcmV0"
Answer = list[str]


class Canary:
    """A port of this machine that notices whoever connects to it."""

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
def canary() -> Iterator[Canary]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        bird = Canary(listener)
        try:
            yield bird
        finally:
            bird.close()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Give the answers to come for NAME; the last one is given again and again."""
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
def asked(one: Broker) -> Iterator[Callable[[], str]]:
    admin = services.broker_admin_of(one)
    try:
        yield admin.ping
    finally:
        admin.close()


KINDS = ["redis_streams", "rabbitmq", "azure_queue", "sqs"]


@pytest.mark.parametrize("later", [LOOPBACK, METADATA])
@pytest.mark.parametrize("kind", KINDS)
@override_settings(POISONWEB_LOOPBACK_BROKERS=False)
def test_a_name_that_leads_elsewhere_after_its_check_is_not_dialled(
    kind: str, later: str, canary: Canary, resolver: list[Answer]
) -> None:
    resolver[:] = [[PUBLIC], [later]]

    with asked(broker(kind, canary.port)) as ping, pytest.raises(Unavailable) as away:
        ping()

    assert canary.visits == 0
    # The clients of the other two keep the words of the system to themselves.
    if kind in {"redis_streams", "rabbitmq"}:
        assert "leads to" in str(away.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_be_dialled_is_dialled(
    kind: str, canary: Canary, resolver: list[Answer]
) -> None:
    resolver[:] = [[LOOPBACK]]

    with asked(broker(kind, canary.port)) as ping, pytest.raises(Unavailable):
        ping()  # the canary hangs up

    assert canary.visits > 0


@pytest.mark.parametrize("kind", KINDS)
@override_settings(POISONWEB_LOOPBACK_BROKERS=False)
def test_a_name_that_leads_to_this_machine_is_refused_by_its_check(
    kind: str, canary: Canary, resolver: list[Answer]
) -> None:
    resolver[:] = [[LOOPBACK]]

    with pytest.raises(Invalid, match="leads to this machine itself"):
        services.broker_admin_of(broker(kind, canary.port))

    assert canary.visits == 0


def test_of_several_addresses_only_those_allowed_are_dialled(
    canary: Canary, resolver: list[Answer]
) -> None:
    resolver[:] = [[METADATA, LOOPBACK]]

    Target().dial(NAME, canary.port, seconds=5).close()

    resolver[:] = [[METADATA]]
    with pytest.raises(NotAllowed, match="leads to where no broker is"):
        Target().dial(NAME, canary.port, seconds=5)


def test_the_host_of_an_address_in_the_environment_is_not_checked(
    canary: Canary, resolver: list[Answer]
) -> None:
    resolver[:] = [[LOOPBACK]]
    trusted = Target.read(f"redis://{NAME}:{canary.port}", {}, is_trusted=True)

    with override_settings(POISONWEB_LOOPBACK_BROKERS=False):
        trusted.dial(NAME, canary.port, seconds=5).close()
        with pytest.raises(NotAllowed):
            hosts.usual_dial(NAME, canary.port, seconds=5)


def test_each_kind_of_broker_is_held_to_this() -> None:
    dialling = {kind for kind in adapters.KINDS if kind != "memory"}

    assert dialling == set(KINDS)
