"""Addresses of storage accounts are parsed once and never quoted."""

from __future__ import annotations

import base64

import pytest

from apps.brokers.adapters.azure_queue.account import DEVELOPMENT_KEY, AzureAccount
from apps.core.errors import Invalid

SECRET = base64.b64encode(b"s3cret! s3cret! s3cret!").decode()
SIGNATURE = "sv=2024-11-04&ss=q&srt=sco&sp=rwdlacup&sig=s3cret%2Bs3cret%3D"


def test_a_connection_string_as_the_portal_gives_it() -> None:
    account = AzureAccount.parse(
        f"DefaultEndpointsProtocol=https;AccountName=acme1;AccountKey={SECRET};"
        "EndpointSuffix=core.windows.net"
    )

    assert (account.scheme, account.host, account.port, account.path) == (
        *("https", "acme1.queue.core.windows.net", 443, ""),
    )
    assert (account.name, account.key) == ("acme1", b"s3cret! s3cret! s3cret!")


def test_endpoints_of_other_services_are_ignored() -> None:
    account = AzureAccount.parse(
        "BlobEndpoint=https://acme1.blob.core.windows.net/;"
        "QueueEndpoint=https://queues.example.com:8443/;"
        "QueueSecondaryEndpoint=https://elsewhere.example.com/;"
        f"accountname=acme1;ACCOUNTKEY={SECRET};;"
    )

    assert (account.host, account.port) == ("queues.example.com", 8443)


def test_the_development_storage_is_the_one_on_this_machine() -> None:
    account = AzureAccount.parse("UseDevelopmentStorage=true;")
    other = AzureAccount.parse(
        "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite"
    )

    assert (account.scheme, account.host, account.port, account.path) == (
        *("http", "127.0.0.1", 10_001, "/devstoreaccount1"),
    )
    assert account.key == base64.b64decode(DEVELOPMENT_KEY)
    assert (other.host, other.port, other.key) == ("azurite", 10_001, account.key)


@pytest.mark.parametrize(
    "url",
    [
        f"https://acme1.queue.core.windows.net/?{SIGNATURE}",
        f"https://acme1.queue.core.windows.net?{SIGNATURE}",
        f" HTTPS://acme1.queue.core.windows.net?{SIGNATURE}\n",
        "QueueEndpoint=https://acme1.queue.core.windows.net;"
        f"SharedAccessSignature=?{SIGNATURE}",
        f"AccountName=acme1;SharedAccessSignature={SIGNATURE}",
    ],
)
def test_a_shared_access_signature_needs_no_key(url: str) -> None:
    account = AzureAccount.parse(url)

    assert (account.name, account.host, account.path) == (
        *("acme1", "acme1.queue.core.windows.net", ""),
    )
    assert (account.signature, account.key) == (SIGNATURE, b"")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "either AccountKey or"),
        ("s3cret", "not one of its settings"),
        ("AccountName=acme1", "either AccountKey or"),
        (f"AccountName=acme1;AccountKey={SECRET};s3cret", "not one of its settings"),
        (f"AccountName=acme1;AccountKey={SECRET};s3cret=1", "not one of its settings"),
        (f"AccountName=acme1;AccountKey=s3;cret;{SECRET}==", "not one of its settings"),
        (
            f"AccountKey={SECRET};AccountName=acme1;AccountName=b",
            "AccountName occurs twice",
        ),
        ("AccountName=acme1;AccountKey=s3cret!", "AccountKey is base64"),
        ("AccountName=acme1;AccountKey=s3cré", "AccountKey is base64"),
        (f"AccountName=s3cret.example/;AccountKey={SECRET}", "AccountName is 3"),
        (f"AccountKey={SECRET}", "AccountName is 3"),
        (
            f"AccountName=acme1;AccountKey={SECRET};EndpointSuffix=s3cret/x",
            "EndpointSuffix is no host",
        ),
        (
            f"AccountName=acme1;AccountKey={SECRET};DefaultEndpointsProtocol=s3cret",
            "https or http",
        ),
        (
            f"AccountName=acme1;AccountKey={SECRET};SharedAccessSignature={SIGNATURE}",
            "either AccountKey or",
        ),
        ("https://acme1.queue.core.windows.net/", "copy it whole"),
        ("https://acme1.queue.core.windows.net/?sv=1&si=s3cret", "copy it whole"),
        (f"https://acme1.queue.core.windows.net/?{SIGNATURE}#s3cret", "copy it whole"),
        (f"https://acme1.queue.core.windows.net/?{SIGNATURE}\ns3cret", "copy it whole"),
        (f"https://anna:s3cret@acme1.example.com/?{SIGNATURE}", "its address is"),
        (f"https://acme1.example.com:s3cret/?{SIGNATURE}", "its address is"),
        (f"https://acme1.example.com:0/?{SIGNATURE}", "its address is"),
        (f"https://acme1.example.com/s3cret/queue?{SIGNATURE}", "its address is"),
        (f"https://[s3cret/?{SIGNATURE}", "its address is"),
        (f"https://a..s3cret/?{SIGNATURE}", "its address is"),
        (f"https://{'s3cret' * 11}.test/?{SIGNATURE}", "its address is"),
        (f"QueueEndpoint=ftp://a.example;AccountName=abc;AccountKey={SECRET}", "its"),
        ("UseDevelopmentStorage=s3cret", "is true"),
        (f"UseDevelopmentStorage=true;AccountKey={SECRET}", "stands alone"),
    ],
)
def test_an_unusable_address_is_refused_without_quoting_it(url: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        AzureAccount.parse(url)

    assert refused.value.field == "url"
    assert "s3cr" not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_an_account_shows_no_secret() -> None:
    by_key = AzureAccount.parse(f"AccountName=acme1;AccountKey={SECRET}")
    signed = AzureAccount.parse(f"https://acme1.queue.core.windows.net/?{SIGNATURE}")

    text = f"{by_key!r} {signed!r} {by_key} {signed}"

    assert "s3cret" not in text
    assert SECRET not in text
