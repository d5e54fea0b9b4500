"""Testing a broker's URL does not reveal the banner of a foreign service there.

Otherwise the form would read the banners of every service that it can reach.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from apps.brokers import ping_and_discovery
from apps.brokers.models import Broker

SECRET = b"INTERNAL-build-4711"
BANNERS = {
    "ssh": b"SSH-2.0-OpenSSH_9.2 " + SECRET + b"\r\n",
    "smtp": b"220 mail." + SECRET + b" ESMTP\r\n",
    "http": b"HTTP/1.1 403 " + SECRET + b"\r\nServer: " + SECRET + b"\r\n\r\n" + SECRET,
    "json": b'HTTP/1.1 400 x\r\nContent-Length: 40\r\n\r\n{"message":"%b"}     '
    % SECRET,
    "xml": b"HTTP/1.1 400 x\r\nContent-Type: application/xml\r\n\r\n"
    b"<Error><Code>%b</Code><Message>%b</Message></Error>" % (SECRET, SECRET),
    "binary": b"\x00\x01AMQP" + SECRET + b"\xff" * 64,
}
AZURE = "DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=c2VjcmV0"


def broker(kind: str, port: int) -> Broker:
    here = f"127.0.0.1:{port}"
    addresses: dict[str, tuple[str, dict[str, object]]] = {
        "redis_streams": (f"redis://:pass@{here}/0", {}),
        "rabbitmq": (f"amqp://u:pass@{here}/", {}),
        "azure_queue": (f"{AZURE};QueueEndpoint=http://{here}/acme", {}),
        "sqs": ("sqs://key:pass@eu-central-1", {"endpoint_url": f"http://{here}"}),
    }
    url, options = addresses[kind]
    return Broker(name="orders", kind=kind, url=url, options=options)


@contextmanager
def service(banner: bytes) -> Iterator[int]:
    """Listen on a port, and send this to every client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, banner), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=60)


def _serve(listener: socket.socket, banner: bytes) -> None:
    while True:
        try:
            visitor, _ = listener.accept()
        except OSError:
            return  # the test is over
        with visitor, suppress(OSError):
            visitor.settimeout(1)
            visitor.sendall(banner)
            visitor.recv(65_536)


@pytest.mark.parametrize("kind", ["redis_streams", "rabbitmq", "azure_queue", "sqs"])
@pytest.mark.parametrize("said", BANNERS)
def test_the_banner_of_a_foreign_service_is_not_quoted(kind: str, said: str) -> None:
    with service(BANNERS[said]) as port:
        reached = ping_and_discovery.reach(broker=broker(kind, port))

    assert not reached.ok
    assert SECRET.decode() not in reached.detail
    assert "SSH" not in reached.detail
    assert reached.detail
