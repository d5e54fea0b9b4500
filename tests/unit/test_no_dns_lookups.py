"""No test asks another machine for a name, or dials one."""

from __future__ import annotations

import socket

import pytest

from tests import no_dns_lookups


@pytest.mark.parametrize("name", ["mq.example", "a.b", b"bytes.example"])
def test_no_name_of_another_machine_is_asked_for(
    name: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[object] = []
    monkeypatch.setattr(no_dns_lookups, "_usual", requests.append)

    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(name, 80)

    assert requests == []


@pytest.mark.parametrize("address", ["203.0.113.7", "169.254.169.254", "0xA9FEA9FE"])
def test_another_machine_is_not_dialled(address: str) -> None:
    with (
        socket.socket() as dialling,
        pytest.raises(UserWarning, match="tried to use socket.socket.connect"),
    ):
        dialling.connect((address, 80))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_dialled(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection((host, port), timeout=5).close()
