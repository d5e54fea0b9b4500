"""The address and credentials of an Azure storage account, parsed once.

The input is a connection string, `UseDevelopmentStorage=true`, or the address of the
account with a shared access signature. No error here quotes the input: any piece of it
may be part of a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, parse_qs, urlsplit

from apps.core.errors import Invalid

DEVELOPMENT = "devstoreaccount1"
# Every emulator has this key, printed in Azure's documentation: no secret.
DEVELOPMENT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeks"
    "oGMGw=="
)
DEVELOPMENT_PORT = 10_001
PORTS = {"https": 443, "http": 80}

PROTOCOL, SUFFIX = "DefaultEndpointsProtocol", "EndpointSuffix"
NAME, KEY, SIGNATURE = "AccountName", "AccountKey", "SharedAccessSignature"
ENDPOINT = "QueueEndpoint"
EMULATED, EMULATOR = "UseDevelopmentStorage", "DevelopmentStorageProxyUri"
SETTINGS = (PROTOCOL, SUFFIX, NAME, KEY, SIGNATURE, ENDPOINT, EMULATED, EMULATOR)
# Endpoints of other services; a connection string names them all.
OTHERS = tuple(
    f"{service}{place}"
    for service in ("Blob", "File", "Table", "Dfs", "Queue")
    for place in ("Endpoint", "SecondaryEndpoint")
    if f"{service}{place}" != ENDPOINT
)
_KNOWN = {name.lower(): name for name in (*SETTINGS, *OTHERS)}

_ACCOUNT_NAME = re.compile(r"[a-z0-9]{3,24}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?>(?:\.{_LABEL})*)")
# Characters that an address may hold: none ends or breaks a request's line.
_PRINTABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureAccount:
    """One storage account's queues; `key` signs requests, else `signature` is added.

    `path` is "", or `/` and the account's name where the host does not name it.
    """

    name: str
    scheme: str
    host: str
    port: int
    path: str = ""
    key: bytes = field(default=b"", repr=False)
    signature: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse Azure's connection string or address; raise Invalid for other text."""
        text = url.strip()
        if text.lower().startswith(("http://", "https://")):
            address, _, signature = text.partition("?")
            return cls._at(
                _parse_endpoint(address), signature=_checked_signature(signature)
            )
        settings = _parse_settings(text)
        if EMULATED in settings:
            return cls._emulated(settings)
        key, signature = settings.get(KEY, ""), settings.get(SIGNATURE, "")
        if bool(key) == bool(signature):
            raise _unusable_error(f"give either {KEY} or {SIGNATURE}")
        if signature:
            return cls._at(
                _endpoint_of(settings), signature=_checked_signature(signature)
            )
        name = _checked_name(settings.get(NAME, ""))
        return cls._at(_endpoint_of(settings), name=name, key=_decode_key(key))

    @classmethod
    def _emulated(cls, settings: Mapping[str, str]) -> Self:
        """Return the account of a local emulator of Azure storage."""
        if settings[EMULATED].lower() != "true" or set(settings) - {EMULATED, EMULATOR}:
            raise _unusable_error(
                f"{EMULATED} is true, and stands alone or with its proxy"
            )
        proxy = _parse_endpoint(settings.get(EMULATOR, "http://127.0.0.1"))
        place = f"{proxy.scheme}://{proxy.netloc.partition(':')[0]}:{DEVELOPMENT_PORT}"
        endpoint = _parse_endpoint(f"{place}/{DEVELOPMENT}")
        return cls._at(endpoint, name=DEVELOPMENT, key=_decode_key(DEVELOPMENT_KEY))

    @classmethod
    def _at(
        cls,
        endpoint: SplitResult,
        *,
        name: str = "",
        key: bytes = b"",
        signature: str = "",
    ) -> Self:
        """Return the Azure account at an endpoint, whose host or path may name it."""
        host, path = endpoint.hostname or "", endpoint.path.rstrip("/")
        return cls(
            name=name or path.strip("/") or host.partition(".")[0],
            scheme=endpoint.scheme,
            host=host,
            port=endpoint.port or PORTS[endpoint.scheme],
            path=path,
            key=key,
            signature=signature,
        )


def _parse_settings(text: str) -> dict[str, str]:
    """Split a connection string into its settings; raise Invalid."""
    settings: dict[str, str] = {}
    for piece in filter(None, text.split(";")):
        written, is_one, value = piece.partition("=")
        name = _KNOWN.get(written.strip().lower())
        if not is_one or name is None:
            raise _unusable_error(
                "a part of it is not one of its settings, perhaps because "
                "of a semicolon inside a value"
            )
        if name in settings:
            raise _unusable_error(f"{name} occurs twice")
        settings[name] = value.strip()
    return settings


def _endpoint_of(settings: Mapping[str, str]) -> SplitResult:
    """Return the endpoint that Azure's connection string names or implies."""
    if ENDPOINT in settings:
        return _parse_endpoint(settings[ENDPOINT])
    suffix = settings.get(SUFFIX, "core.windows.net")
    protocol = settings.get(PROTOCOL, "https").lower()
    if not _HOST.fullmatch(suffix):
        raise _unusable_error(f"{SUFFIX} is no host name")
    if protocol not in PORTS:
        raise _unusable_error(f"{PROTOCOL} is https or http")
    return _parse_endpoint(
        f"{protocol}://{_checked_name(settings.get(NAME, ''))}.queue.{suffix}"
    )


def _parse_endpoint(text: str) -> SplitResult:
    """Parse the URL of an Azure endpoint; raise Invalid for an unusable one."""
    remedy = "its address is https://, a host and perhaps a port, and nothing more"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _unusable_error(remedy) from None
    path = parts.path.strip("/")
    if (
        parts.scheme not in PORTS
        or not _HOST.fullmatch(host)
        or port == 0
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or (path and not _ACCOUNT_NAME.fullmatch(path))
    ):
        raise _unusable_error(remedy)
    return parts


def _checked_name(name: str) -> str:
    """Return an Azure account's name; raise Invalid for an impossible one."""
    if not _ACCOUNT_NAME.fullmatch(name):
        raise _unusable_error(f"{NAME} is 3 to 24 small letters and digits")
    return name


def _decode_key(text: str) -> bytes:
    """Decode an account's key; raise Invalid for what is no base64."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise _unusable_error(f"{KEY} is base64: copy it whole")
    return key


def _checked_signature(text: str) -> str:
    """Return a shared access signature; raise Invalid for another text."""
    signature = text.strip().lstrip("?")
    is_one = _PRINTABLE.fullmatch(signature) and "#" not in signature
    if not is_one or not parse_qs(signature).get("sig"):
        raise _unusable_error(
            "a shared access signature is sv=...&sig=...: copy it whole"
        )
    return signature


def _unusable_error(what: str) -> Invalid:
    """Build the error of an unusable Azure address: what is wrong, what to give."""
    remedy = (
        f"{what}. Paste the account's connection string, "
        "UseDevelopmentStorage=true, or the address of its queues with a shared access "
        "signature, as in https://account.queue.core.windows.net/?sv=...&sig=..."
    )
    return Invalid("url", remedy)
