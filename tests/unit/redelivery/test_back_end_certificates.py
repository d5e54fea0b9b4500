"""TLS is verified against the name of the target, at the address that was checked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.test import override_settings

from apps.redelivery.outbound.errors import RequestNotSent
from apps.redelivery.outbound.http_caller import EndpointRequest, HttpCaller
from apps.redelivery.outbound.target_url import EndpointTarget
from tests.unit.redelivery.scripted_back_end import (
    LOOPBACK,
    ScriptedBackEnd,
    answering,
    back_end,
)

NAME = "stock.example"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of NAME that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("certificate") / "server.pem"
    file.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


@pytest.fixture
def server_names() -> list[str | None]:
    return []


@pytest.fixture
def server(
    certificate: Path,
    server_names: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ScriptedBackEnd]:
    """Answer by TLS on this machine, where every name leads."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_servername_callback(lambda _, name, __: server_names.append(name))
    usual = socket.getaddrinfo

    def getaddrinfo(_: str, *rest: int, **options: int) -> object:
        return usual(LOOPBACK, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with (
        back_end(answering(OK), tls=context) as server,
        override_settings(POISONWEB_ENDPOINT_HOSTS=("*",)),
    ):
        yield server


def call(url: str, *, trusts: Path | None = None) -> bytes:
    tls = None if trusts is None else ssl.create_default_context(cafile=trusts)
    target = EndpointTarget.parse(url)
    one = EndpointRequest(method=b"POST", target=target, path=b"/", headers=[])

    async def body() -> bytes:
        async with HttpCaller(tls=tls) as caller:
            async with caller.call(one, seconds=30) as answer:
                await answer.read(10)
            async with caller.call(one, seconds=30) as answer:
                return await answer.read(10)

    return asyncio.run(body())


def test_name_and_port_of_the_target_reach_the_back_end(
    server: ScriptedBackEnd, certificate: Path, server_names: list[str | None]
) -> None:
    assert call(f"https://{NAME}:{server.port}", trusts=certificate) == b"ok"

    assert server_names == [NAME], "the connection is used again"
    host = f"\r\nHost: {NAME}:{server.port}\r\n".encode()
    assert [host in request for request in server.requests] == [True, True]


@pytest.mark.parametrize("host", ["other.example", LOOPBACK, f"www.{NAME}"])
def test_a_certificate_of_another_name_is_refused(
    host: str, server: ScriptedBackEnd, certificate: Path
) -> None:
    with pytest.raises(RequestNotSent, match="certificate verify failed"):
        call(f"https://{host}:{server.port}", trusts=certificate)

    assert server.requests == []


def test_a_certificate_that_this_machine_does_not_know_is_refused(
    server: ScriptedBackEnd,
) -> None:
    with pytest.raises(RequestNotSent, match="certificate verify failed"):
        call(f"https://{NAME}:{server.port}")

    assert server.requests == []
