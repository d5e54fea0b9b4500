"""Addresses that lead to forbidden hosts are refused in every spelling."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from django.test import override_settings

from apps.brokers import address_policy
from apps.brokers.address_policy import HostPort, Target
from apps.core.errors import Invalid

PROXY = "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://proxy:99"
AZURE = "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=c2VjcmV0=="
SQS = "sqs://key:secret@eu-central-1"


def remedy_for(url: str, **options: object) -> str:
    """Return why an address is refused; "" for an allowed one."""
    try:
        Target.of_broker(url, options).check(resolve=False)
    except Invalid as wrong:
        return str(wrong)
    return ""


def refused(url: str, **options: object) -> bool:
    said = remedy_for(url, **options)
    assert said == "" or said.startswith(("url: ", "options: "))
    assert "secret" not in said
    return bool(said)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:secret@Redis.Internal.:6380/0", [HostPort("redis.internal", 6380)]),
        ("redis://allowed@evil", [HostPort("evil", 6379)]),
        ("redis://%65vil", [HostPort("evil", 6379)]),
        ("redis://evil#@allowed", [HostPort("evil", 6379)]),
        ("redis://[::1]:1", [HostPort("::1", 1)]),
        ("amqps://u:secret@mq/vhost", [HostPort("mq", 5671)]),
        (AZURE, [HostPort("acme.queue.core.windows.net", 443)]),
        (AZURE + ";EndpointSuffix=evil.cn", [HostPort("acme.queue.evil.cn", 443)]),
        (AZURE + ";QueueEndpoint=http://q:10001/acme", [HostPort("q", 10001)]),
        (PROXY, [HostPort("proxy", 99), HostPort("127.0.0.1", None)]),
        (SQS, [HostPort("sqs.eu-central-1.amazonaws.com", 443)]),
        (
            SQS + "?endpoint=http%3A%2F%2Fevil%3A9",
            [HostPort("sqs.eu-central-1.amazonaws.com", 443), HostPort("evil", 9)],
        ),
    ],
)
def test_every_host_of_an_address_is_found(url: str, expected: list[HostPort]) -> None:
    assert address_policy.host_ports_in_url(url) == expected


def test_the_host_of_an_option_is_checked() -> None:
    assert refused(SQS, endpoint_url="http://169.254.169.254/")
    assert not refused(SQS, endpoint_url="http://127.0.0.1:4566/", batch=10)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.169.254.",
        "0xA9FEA9FE",
        "2852039166",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::169.254.169.254]",
        "[2002:a9fe:a9fe::]",
        "[fe80::1]",
        "[fe80::1%25eth0]",
        "[fd00:ec2::254]",
        "[fd00:ec2::23]",
        "[::169.254.169.254]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
        "[fec0::1]",
        "240.0.0.1",
        "255.255.255.255",
        "0.0.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "224.0.0.1",
        "0.0.0.0",
        "[::]",
    ],
)
def test_link_local_and_metadata_addresses_are_refused(host: str) -> None:
    assert refused(f"redis://:secret@{host}:6379/0")
    assert refused(f"amqp://u:secret@{host}/")
    assert refused(f"{AZURE};QueueEndpoint=http://{host}/acme")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://",
        "redis:///0",
        "redis://:secret@",
        "redis://evil。com",
        "redis://a\\@b:x",
        "redis://[::1",
        "redis://host:99999",
        "unix:///run/redis.sock",
        "file:///etc/passwd",
        "no address at all",
        "AccountKey=secret",
    ],
)
def test_what_names_no_host_is_refused_without_being_quoted(url: str) -> None:
    assert refused(url)


@pytest.mark.parametrize("host", ["203.0.113.5", "[2001:db8::5]", "mq", "mq.example"])
def test_a_public_host_or_a_name_may_be_entered(host: str) -> None:
    assert not refused(f"redis://:secret@{host}:6379/0")


THIS_MACHINE = ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "0x7f000001"]


@pytest.mark.parametrize("host", THIS_MACHINE)
def test_loopback_needs_the_operators_permission(
    host: str,
) -> None:
    url = f"redis://:secret@{host}:6379/0"

    with override_settings(POISONWEB_LOOPBACK_BROKERS=False):
        assert "POISONWEB_LOOPBACK_BROKERS=1" in remedy_for(url)
        with override_settings(POISONWEB_BROKER_HOSTS=("*",)):
            assert not remedy_for(url)
    with override_settings(POISONWEB_LOOPBACK_BROKERS=True):
        assert not remedy_for(url)


@pytest.mark.parametrize(
    "host",
    [
        *("10.0.0.5", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"),
        *("[fd12::5]", "[::ffff:10.0.0.5]", "[64:ff9b::10.0.0.5]", "[2002:a00:5::]"),
    ],
)
def test_a_private_network_needs_the_operators_permission(
    host: str,
) -> None:
    url = f"redis://:secret@{host}:6379/0"

    assert "POISONWEB_BROKER_HOSTS" in remedy_for(url)
    with override_settings(POISONWEB_BROKER_HOSTS=("*",)):
        assert not remedy_for(url)


@override_settings(POISONWEB_BROKER_HOSTS=("*.eu.example:5671", "10.0.0.*", "[::1]"))
@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("amqps://mq.eu.example", False),
        ("amqps://MQ.EU.Example.", False),
        ("amqp://mq.eu.example", True),
        ("amqps://mq.eu.example.evil", True),
        ("redis://10.0.0.7:1234", False),
        ("redis://10.0.1.7", True),
        ("redis://[::1]:9", False),
        ("redis://localhost", True),
        (SQS, True),
        ("redis://10.0.0.7@evil", True),
    ],
)
def test_only_hosts_of_the_setting_may_be_entered(url: str, *, wrong: bool) -> None:
    assert refused(url) is wrong


@override_settings(POISONWEB_BROKER_HOSTS=("10.0.0.7:298*",))
@pytest.mark.parametrize(
    ("port", "wrong"),
    [("298", False), ("29851", False), ("6379", True), ("1298", True)],
)
def test_the_setting_may_name_the_beginning_of_a_port(
    port: str, *, wrong: bool
) -> None:
    assert refused(f"redis://10.0.0.7:{port}") is wrong


@override_settings(POISONWEB_BROKER_HOSTS=("mq.example:5671", "*.eu.example:1"))
@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "amqp://mq.example",
            "host mq.example:5672 is in POISONWEB_BROKER_HOSTS with",
        ),
        ("redis://a.eu.example", "a.eu.example:6379 is in POISONWEB_BROKER_HOSTS with"),
        ("redis://other", "the host other:6379 is not among the hosts of"),
    ],
)
def test_a_refusal_names_host_and_port_and_what_of_them_is_missing(
    url: str, says: str
) -> None:
    assert says in remedy_for(url)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("169.254.169.254", "169.254.169.254 is link-local or cloud metadata"),
        ("[fd00:ec2::254]", "fd00:ec2::254 is link-local or cloud metadata"),
        ("240.0.0.1", "240.0.0.1 is reserved"),
    ],
)
def test_a_refusal_says_what_kind_of_address_it_is(host: str, kind: str) -> None:
    assert f"leads to where no broker is: {kind}" in remedy_for(f"redis://{host}")


def test_the_advice_to_name_a_host_says_that_it_forbids_others() -> None:
    assert "which then allows no others" in remedy_for("redis://10.0.0.5")


def test_a_name_is_checked_by_its_addresses() -> None:
    Target.of_broker("redis://localhost", {}).check(resolve=True)
    Target.of_broker("redis://nowhere.invalid", {}).check(resolve=True)

    assert not address_policy.is_forbidden(ip_address("127.0.0.1"))
    assert address_policy.is_forbidden(ip_address("fe80::1"))


def said_of_options(url: str, **changes: object) -> str:
    options = {"management_url": changes.pop("management_url", "http://other:15672")}
    try:
        Target.of_broker(url, options, **changes).check(resolve=False)  # type: ignore[arg-type] # of several kinds
    except Invalid as wrong:
        return str(wrong)
    return ""


RABBIT = "amqp://u:secret@mq:5672/v"


def test_a_password_goes_only_to_the_host_of_the_address() -> None:
    said = said_of_options(RABBIT, keeps_to_address=True)

    assert said.startswith("options: the option management_url names other, which")
    assert "POISONWEB_BROKER_HOSTS" in said
    assert not said_of_options(
        RABBIT, keeps_to_address=True, management_url="http://MQ.:9"
    )
    assert not said_of_options(RABBIT)


@pytest.mark.parametrize("named", [("mq", "other:15672"), ("*",)])
def test_the_setting_may_name_another_host_for_an_option(
    named: tuple[str, ...],
) -> None:
    with override_settings(POISONWEB_BROKER_HOSTS=named):
        assert not said_of_options(RABBIT, keeps_to_address=True)
    with override_settings(POISONWEB_BROKER_HOSTS=("mq", "other:1")):
        assert said_of_options(RABBIT, keeps_to_address=True)


def test_an_allow_list_may_name_another_host_for_an_option() -> None:
    allowed = {"allowed": {"other:15672"}, "keeps_to_address": True}

    assert not said_of_options(RABBIT, **allowed)
    assert said_of_options(RABBIT, **allowed, management_url="http://other:1")


@pytest.mark.parametrize(
    "management_url", ["http://other:15672", "http://169.254.169.254"]
)
def test_options_are_checked_although_the_address_is_in_the_environment(
    management_url: str,
) -> None:
    assert said_of_options(RABBIT, is_trusted=True, management_url=management_url)
    assert not said_of_options(
        RABBIT, is_trusted=True, management_url="http://mq:15672"
    )
    with override_settings(POISONWEB_BROKER_HOSTS=("elsewhere",)):
        assert not said_of_options(
            RABBIT, is_trusted=True, management_url="http://mq:15672"
        )
