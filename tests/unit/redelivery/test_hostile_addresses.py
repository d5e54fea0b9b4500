"""Addresses that no endpoint may lead to: none of them opens a connection."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.test import override_settings

from apps.core.errors import Invalid
from apps.redelivery.outbound import address_rules
from apps.redelivery.outbound.errors import RequestNotSent
from apps.redelivery.outbound.http_caller import EndpointRequest, HttpCaller
from apps.redelivery.outbound.target_url import EndpointTarget
from tests.unit.redelivery.scripted_back_end import (
    LOOPBACK,
    ScriptedBackEnd,
    answering,
    back_end,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NAME = "stock.example"
PUBLIC, PUBLIC_DNS = "203.0.113.9", "9.9.9.9"
METADATA = "169.254.169.254"

# Refused as they are written; {p} is the port of the listener.
UNREADABLE = [
    # Other notations of 127.0.0.1 and 169.254.169.254.
    *("http://127.1:{p}", "http://127.0.1:{p}", "http://2130706433:{p}"),
    *("http://0x7f000001:{p}", "http://0x7f.0x0.0x0.0x1:{p}", "http://0x7f.1:{p}"),
    *("http://017700000001:{p}", "http://0177.0.0.1:{p}", "http://0177.0.0.01:{p}"),
    *("http://127.0.0.0x1:{p}", "http://00000177.0.0.1:{p}", "http://127.00.00.01:{p}"),
    *("http://2852039166:{p}", "http://0xa9fea9fe:{p}", "http://0251.0376.0251.0376"),
    *("http://169.254.43518:{p}", "http://0xA9.0xFE.0xA9.0xFE", "http://0:{p}"),
    *("http://127.0.0.1.:{p}", "http://localhost.:{p}", "http://127.0.0.1..:{p}"),
    *(
        "http://①②⑦.⓪.⓪.①:{p}",
        "http://127。0。0。1:{p}",
        "http://\uff11\uff12\uff17.0.0.1:{p}",
    ),
    *("http://%31%32%37.0.0.1:{p}", "http://127%2e0%2e0%2e1:{p}"),
    "http://ⓛocalhost:{p}",
    # Another host than the one that is seen.
    *("http://stock.example@127.0.0.1:{p}", "http://stock.example:80@127.0.0.1:{p}"),
    *("http://stock.example%40127.0.0.1:{p}", "http://127.0.0.1:{p}\\@stock.example"),
    *("http://stock.example\\@127.0.0.1:{p}", "http://127.0.0.1:{p}#@stock.example"),
    *("http://127.0.0.1:{p}?@stock.example", "http://stock.example &@127.0.0.1:{p}"),
    *("http://user:pw@127.0.0.1:{p}", "http://@127.0.0.1:{p}", "http://:@[::1]:{p}"),
    *("http://127.0.0.1:{p}\t", "http://127.0.0.1\n:{p}", " http://127.0.0.1:{p}"),
    *("http://127.0.0.1:{p}:80", "http://stock.example:80:{p}", "http:127.0.0.1:{p}"),
    *("http:/127.0.0.1:{p}", "http:///127.0.0.1:{p}", "///127.0.0.1:{p}"),
    *("//127.0.0.1:{p}", "127.0.0.1:{p}", "http:\\\\127.0.0.1:{p}"),
    "http://stock.example,127.0.0.1:{p}",
    # Zones and broken brackets.
    *("http://[::1%25lo]:{p}", "http://[::1%lo]:{p}", "http://[::1%251]:{p}"),
    *("http://[fe80::1%25eth0]:{p}", "http://[::1]x:{p}", "http://::1:{p}"),
    *("http://[::1:{p}", "http://[[::1]]:{p}", "http://[127.0.0.1]:{p}"),
    # Other schemes.
    *("ftp://127.0.0.1:{p}", "gopher://127.0.0.1:{p}/_GET", "file:///etc/passwd"),
    *("file://127.0.0.1:{p}/x", "dict://127.0.0.1:{p}", "ldap://127.0.0.1:{p}"),
    *("ws://127.0.0.1:{p}", "unix:///run/docker.sock", "http+unix://%2frun%2fx"),
    *("jar:http://127.0.0.1:{p}!/", "data:text/plain,x", "javascript:alert(1)"),
    *("redis://127.0.0.1:{p}", "tftp://127.0.0.1:{p}", "httpx://127.0.0.1:{p}"),
]
# Read, and refused since no such address may be dialled.
FORBIDDEN = [
    # This machine.
    *("127.0.0.1", "127.0.0.2", "127.127.127.127", "127.255.255.254", "[::1]"),
    *("localhost", "LOCALHOST", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]"),
    *("0.0.0.0", "0.1.2.3", "[::]"),
    # Private networks.
    *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("100.64.0.1", "100.127.255.255", "198.18.0.1", "198.19.255.255"),
    *("[fc00::1]", "[fd12:3456:789a::1]", "[::ffff:10.0.0.1]", "[::ffff:c0a8:101]"),
    # Link-local, and metadata.
    *("169.254.169.254", "169.254.0.1", "[fe80::1]", "[febf::1]", "[fec0::1]"),
    *("[fd00:ec2::254]", "[fd20:ce::254]", "100.100.100.200", "168.63.129.16"),
    *("192.0.0.192", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]"),
    "[::169.254.169.254]",
    # IPv4 in tunnels and translations: NAT64, 6to4, Teredo.
    *("[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b::10.0.0.1]"),
    *("[64:ff9b:1::127.0.0.1]", "[64:ff9b:1:ffff::a9fe:a9fe]"),
    *("[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2002:a00:1::1]"),
    *("[2001:0:7f00:1::]", "[2001::1]"),
    # Reserved, multicast, and not assigned.
    *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("[ff02::1]", "[ff05::2]", "[100::1]", "[4000::1]", "[5f00::1]", "[fe00::1]"),
]
# What a name resolves to when it is saved, and then for each call.
REBINDING = {
    "to this machine": [[PUBLIC], [LOOPBACK]],
    "to this machine by IPv6": [[PUBLIC], ["::1"]],
    "to this machine, mapped": [[PUBLIC], ["::ffff:127.0.0.1"]],
    "to metadata": [[PUBLIC], [METADATA]],
    "to a private network": [[PUBLIC], ["192.168.0.1"]],
    "to a link-local address with its zone": [[PUBLIC], ["fe80::1%1"]],
    "to several": [[PUBLIC, "2001:db8::1"], [LOOPBACK, "::1", METADATA]],
}

Answers = list[list[str]]


def test_there_are_120_hostile_addresses() -> None:
    assert len({*UNREADABLE, *FORBIDDEN, *REBINDING}) >= 120


@pytest.fixture(scope="module")
def listeners() -> Iterator[list[ScriptedBackEnd]]:
    """Listen on both loopback addresses; no test below may connect to them."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(back_end(answering(OK), host=host))
            for host in (LOOPBACK, "::1")
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Resolve NAME to these addresses in turn, and to the last ones from then on."""
    answers: Answers = []
    usual = socket.getaddrinfo

    def getaddrinfo(host: str, port: int | None, *rest: int, **options: int) -> object:
        if host != NAME:
            return usual(host, port, *rest, **options)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, port or 0, 0, 0) if ":" in address else (address, port or 0),
            )
            for address in answer
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


def call(target: EndpointTarget) -> bytes:
    async def body() -> bytes:
        one = EndpointRequest(method=b"POST", target=target, path=b"/", headers=[])
        async with HttpCaller() as caller, caller.call(one, seconds=30) as answer:
            return await answer.read(10)

    return asyncio.run(body())


def visits(listeners: list[ScriptedBackEnd]) -> int:
    return sum(listener.visits for listener in listeners)


@pytest.mark.parametrize("url", UNREADABLE)
def test_no_hostile_notation_opens_a_connection(
    url: str, listeners: list[ScriptedBackEnd]
) -> None:
    for listener in listeners:
        with (
            override_settings(POISONWEB_ENDPOINT_HOSTS=("*",)),
            pytest.raises(Invalid),
        ):
            call(EndpointTarget.parse(url.format(p=listener.port)))

    assert visits(listeners) == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", FORBIDDEN)
def test_no_hostile_address_opens_a_connection(
    host: str, scheme: str, listeners: list[ScriptedBackEnd]
) -> None:
    for listener in listeners:
        target = EndpointTarget.parse(f"{scheme}://{host}:{listener.port}/x")
        with pytest.raises(Invalid, match="leads (in)?to"):
            address_rules.check_target(target)
        with pytest.raises(RequestNotSent, match="leads (in)?to"):
            call(target)

    assert visits(listeners) == 0


@pytest.mark.parametrize("name", REBINDING)
def test_a_name_that_leads_elsewhere_later_opens_no_connection(
    name: str, listeners: list[ScriptedBackEnd], resolver: Answers
) -> None:
    for listener in listeners:
        resolver[:] = REBINDING[name]
        target = EndpointTarget.parse(f"http://{NAME}:{listener.port}")
        address_rules.check_target(target)

        with pytest.raises(RequestNotSent, match=f"{NAME} leads (in)?to"):
            call(target)

    assert visits(listeners) == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_opens_no_connection(
    status: int, listeners: list[ScriptedBackEnd]
) -> None:
    location = f"http://127.0.0.1:{listeners[0].port}/"
    moved = f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\n"
    refresh = f"Refresh: 0;url={location}\r\nContent-Length: 2\r\n\r\nno"

    with back_end(answering(moved.encode(), refresh.encode())) as server:
        with override_settings(POISONWEB_ENDPOINT_HOSTS=(f"{LOOPBACK}:{server.port}",)):
            assert call(EndpointTarget.parse(server.url)) == b"no"

        assert len(server.requests) == 1
    assert visits(listeners) == 0


def test_the_checked_address_is_dialled_and_the_name_is_not_looked_up_again(
    resolver: Answers,
) -> None:
    """The second answer is another address of this machine, allowed as well."""
    resolver[:] = [[LOOPBACK], ["127.0.0.2"]]

    with back_end(answering(OK)) as server:
        named = override_settings(POISONWEB_ENDPOINT_HOSTS=(f"{NAME}:{server.port}",))
        elsewhere = socket.create_server(("127.0.0.2", server.port))
        with named, elsewhere:
            assert call(EndpointTarget.parse(f"http://{NAME}:{server.port}")) == b"ok"

        host = f"\r\nHost: {NAME}:{server.port}\r\n".encode()
        assert host in server.requests[0]
    assert len(resolver) == 1, "one look-up"


def test_of_several_addresses_only_those_allowed_are_dialled(
    resolver: Answers,
) -> None:
    resolver[:] = [[METADATA, "::ffff:169.254.169.254", LOOPBACK]]

    with (
        back_end(answering(OK)) as server,
        override_settings(POISONWEB_ENDPOINT_HOSTS=(NAME,)),
    ):
        assert call(EndpointTarget.parse(f"http://{NAME}:{server.port}")) == b"ok"


def test_the_next_address_is_dialled_when_one_refuses(resolver: Answers) -> None:
    resolver[:] = [["::1", LOOPBACK]]

    with (
        back_end(answering(OK)) as server,
        override_settings(POISONWEB_ENDPOINT_HOSTS=(NAME,)),
    ):
        assert call(EndpointTarget.parse(f"http://{NAME}:{server.port}")) == b"ok"


def test_calls_share_the_look_up_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = []
    can_go_on = threading.Event()

    def getaddrinfo(host: str, *_: object, **__: object) -> object:
        hosts.append(host)
        assert can_go_on.wait(60)
        raise socket.gaierror("no such name")

    async def problems() -> list[object]:
        look_ups = address_rules.HostLookUps()
        target = EndpointTarget.parse(f"http://{NAME}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(look_ups.resolve(target), 0.01)
        others = [asyncio.create_task(look_ups.resolve(target)) for _ in range(3)]
        [address] = await look_ups.resolve(EndpointTarget.parse(f"http://{PUBLIC_DNS}"))
        assert str(address) == PUBLIC_DNS
        can_go_on.set()
        return [*await asyncio.gather(*others, return_exceptions=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    outcomes = asyncio.run(problems())

    assert hosts == [NAME]
    assert [type(outcome) for outcome in outcomes] == [RequestNotSent] * 3


def test_hosts_that_hang_do_not_keep_others_from_being_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    can_go_on = threading.Event()

    def getaddrinfo(host: str, *_: object, **__: object) -> object:
        if host != NAME:
            assert can_go_on.wait(60)
            raise socket.gaierror("no such name")
        return [(0, 0, 0, "", (PUBLIC_DNS, 80))]

    async def addresses() -> list[str]:
        look_ups = address_rules.HostLookUps()
        hanging = [
            asyncio.create_task(
                look_ups.resolve(EndpointTarget.parse(f"http://hangs-{n}.example"))
            )
            for n in range(64)
        ]
        await asyncio.sleep(0)
        target = EndpointTarget.parse(f"http://{NAME}")
        try:
            return [str(each) for each in await look_ups.resolve(target)]
        finally:
            can_go_on.set()
            await asyncio.gather(*hanging, return_exceptions=True)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    assert asyncio.run(asyncio.wait_for(addresses(), 30)) == [PUBLIC_DNS]


@pytest.mark.parametrize(
    ("hosts", "is_allowed"),
    [
        ((), False),
        (("other",), False),
        ((f"{NAME}:1",), False),
        ((LOOPBACK,), False),
        ((NAME,), True),
        ((f"{NAME}:{{p}}",), True),
        (("*.example",), True),
        (("other", "*"), True),
    ],
)
def test_the_operator_allows_hosts_on_private_networks_by_name(
    hosts: tuple[str, ...], is_allowed: bool, resolver: Answers
) -> None:
    with back_end(answering(OK)) as server:
        target = EndpointTarget.parse(f"http://{NAME}:{server.port}")
        named = tuple(host.format(p=server.port) for host in hosts)
        for address in (LOOPBACK, "10.1.2.3", "fd12::1"):
            resolver[:] = [[address]]
            with override_settings(POISONWEB_ENDPOINT_HOSTS=named):
                if is_allowed:
                    address_rules.check_target(target)
                    continue
                with pytest.raises(Invalid, match=r"stock\.example:\d+ in POISONWEB_E"):
                    address_rules.check_target(target)
        resolver[:] = [[LOOPBACK]]
        with override_settings(POISONWEB_ENDPOINT_HOSTS=named):
            if is_allowed:
                assert call(target) == b"ok"
            else:
                with pytest.raises(RequestNotSent, match="leads to this machine"):
                    call(target)

        assert server.visits == int(is_allowed)


@pytest.mark.parametrize("address", [METADATA, "0.0.0.0", "fe80::1", "224.0.0.1"])
def test_the_operator_cannot_allow_what_is_never_dialled(
    address: str, resolver: Answers
) -> None:
    resolver[:] = [[address]]
    target = EndpointTarget.parse(f"http://{NAME}")

    with (
        override_settings(POISONWEB_ENDPOINT_HOSTS=("*", NAME, address)),
        pytest.raises(Invalid, match="link-local or cloud metadata|reserved"),
    ):
        address_rules.check_target(target)


@pytest.mark.parametrize("address", [PUBLIC, "2606:4700::1", "172.32.0.1", "11.0.0.1"])
@pytest.mark.parametrize("hosts", [(), ("elsewhere",)])
def test_public_hosts_need_no_name_in_the_setting(
    address: str, hosts: tuple[str, ...], resolver: Answers
) -> None:
    resolver[:] = [[address]]

    with override_settings(POISONWEB_ENDPOINT_HOSTS=hosts):
        address_rules.check_target(EndpointTarget.parse(f"https://{NAME}"))
