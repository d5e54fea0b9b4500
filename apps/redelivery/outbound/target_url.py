"""The address of an endpoint's back end, and the paths below it.

A path is passed on byte for byte. It may not leave its endpoint: whatever a back end
decodes, folds or strips, no segment of it may become `.` or `..`. So it is refused if
it has such a segment after any number of percent-decodings, with backslashes read as
slashes, with `;parameters` cut off, in over-long UTF-8, or in characters whose
compatibility form is a dot or a slash. Control characters are refused in any decoding,
and a start with two slashes, which some back ends read as a host. An encoded slash
within a segment (`%2F`) is passed on: identifiers may contain it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Self
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from apps.core.errors import Invalid

LONGEST_URL = 2_000
LONGEST_HOST = 253
LONGEST_PATH = 8 * 1024
LAST_PORT = 65_535
MOST_DECODINGS = 8
USUAL_PORTS = {"http": 80, "https": 443}

_PRINTABLE = re.compile(rb"[!-~]*")
# What is printable, but for #, ? and the backslash; a query may have a ?.
_OF_PATH = re.compile(rb"[!-\"$->@-\[\]-~]*")
_OF_QUERY = re.compile(rb"[!-\"$-\[\]-~]*")
_NETLOC = re.compile(r"(?:\[[^\[\]]*\]|[^\[\]:]+)(?::[0-9]*)?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
# UTF-8 of more bytes than needed, by which `.` and `/` were hidden.
_OVERLONG = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]|\xf0[\x80-\x8f][\x80-\xbf]{2}"
)
# Windows strips blanks at the end of a name.
_ONLY_DOTS = re.compile(r"\s*\.[.\s]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointTarget:
    """Scheme, host, port and base path; `authority` is the value of `Host`."""

    scheme: str
    host: str
    port: int
    authority: str
    base_path: str

    @classmethod
    def parse(cls, url: str, *, field: str = "target") -> Self:
        """Parse `scheme://host[:port][/base/path]`; raise Invalid with the remedy."""
        parts = _split(url, field)
        scheme, host, port = (
            parts.scheme,
            _host_of(parts, field),
            _port_of(parts, field),
        )
        _check_path(parts.path.encode("ascii"), field)
        written = f"[{host}]" if ":" in host else host
        return cls(
            scheme=scheme,
            host=host,
            port=port or USUAL_PORTS[scheme],
            authority=written if port is None else f"{written}:{port}",
            base_path=parts.path,
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"

    def url_path(
        self, raw_path: bytes, query: bytes = b"", *, field: str = "path"
    ) -> bytes:
        """Return the path and query of a request; raise Invalid for one that escapes.

        `raw_path` is what follows the endpoint in the address of the gateway, encoded
        as it came: "" calls the target itself, and "/a" what is below it.
        """
        _check_path(raw_path, field)
        if not _OF_QUERY.fullmatch(query):
            raise _not_encoded("query")
        base = self.base_path.encode("ascii")
        if raw_path:
            base = base.rstrip(b"/")
        slash = b"" if not raw_path or raw_path.startswith(b"/") else b"/"
        path = (base + slash + raw_path) or b"/"
        if query:
            path += b"?" + query
        if len(path) > LONGEST_PATH:
            raise Invalid(
                field, f"it is longer than {LONGEST_PATH} bytes with its query."
            )
        return path


def _split(url: str, field: str) -> SplitResult:
    """Split a target URL that has no more than scheme, host, port and path."""
    if len(url) > LONGEST_URL:
        raise Invalid(field, f"use an address of at most {LONGEST_URL} characters.")
    if not url.isascii():
        raise Invalid(
            field,
            "use plain ASCII: a host name of other letters as xn--…, a path as %…",
        )
    if not _PRINTABLE.fullmatch(url.encode("ascii")) or "\\" in url:
        raise Invalid(field, "remove blanks, control characters and backslashes.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid_address_error(field) from None
    if "@" in parts.netloc:
        raise Invalid(field, "leave out user and password: send them as a header.")
    # What `urlsplit` overlooks, such as "[::1]x", depends on the version of Python.
    if parts.scheme not in USUAL_PORTS or not _NETLOC.fullmatch(parts.netloc):
        raise _invalid_address_error(field)
    if "?" in url or "#" in url:
        raise Invalid(field, "leave out the query and the fragment, from ? or # on.")
    return parts


def _port_of(parts: SplitResult, field: str) -> int | None:
    """Return the port written in a target URL; None where it has no port."""
    try:
        port = parts.port
    except ValueError:
        port = 0  # it is too large
    if port == 0 or parts.netloc.endswith(":"):
        raise Invalid(field, f"use a port from 1 to {LAST_PORT}, or none.")
    return port


def _host_of(parts: SplitResult, field: str) -> str:
    """Return a target URL's host name, or its IP address in usual notation."""
    host = parts.hostname or ""
    if "[" in parts.netloc:
        return _ipv6_host(host, field)
    if not host or len(host) > LONGEST_HOST or not _is_name(host):
        raise Invalid(
            field,
            "use a host name of letters, digits, dashes and single dots, without a dot "
            "at its end, or an IP address.",
        )
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _ipv4_host(host, field)
    return host


def _is_name(host: str) -> bool:
    return all(_LABEL.fullmatch(label) for label in host.split("."))


def _ipv4_host(host: str, field: str) -> str:
    """Return a target's IPv4 address; raise Invalid unless it is in four decimals.

    Readers differ about the octal, hexadecimal and short notations.
    """
    try:
        return str(IPv4Address(host))
    except AddressValueError:
        raise Invalid(
            field, "write an IPv4 address as four decimal numbers, as in 192.0.2.1."
        ) from None


def _ipv6_host(host: str, field: str) -> str:
    """Return a target's IPv6 address in usual notation; raise Invalid for a zone.

    A zone names a network card of this machine. Raises Invalid for no address, too.
    """
    try:
        address = IPv6Address(host)
    except AddressValueError:
        address = None
    if address is None or address.scope_id:
        raise Invalid(
            field, "write an IPv6 address in brackets, without a zone: [2001:db8::1]."
        )
    return str(address)


def _not_encoded(field: str) -> Invalid:
    """Return the refusal of characters of a URL that must be percent-encoded."""
    return Invalid(
        field,
        "percent-encode blanks, control characters, backslashes, #, ? and what is "
        "not ASCII.",
    )


def _check_path(path: bytes, field: str) -> None:
    """Raise Invalid for a path that a back end may read as one outside."""
    if len(path) > LONGEST_PATH:
        raise Invalid(field, f"it is longer than {LONGEST_PATH} bytes.")
    if not _OF_PATH.fullmatch(path):
        raise _not_encoded(field)
    if _BAD_ESCAPE.search(path):
        raise Invalid(field, "write % as %25, or follow it by two hexadecimal digits.")
    for reading in _readings(path, field):
        if _CONTROL.search(reading) or _OVERLONG.search(reading):
            raise Invalid(
                field,
                "remove control characters and over-long UTF-8, also encoded ones.",
            )
        _check_segments(reading, field)


def _readings(path: bytes, field: str) -> Iterator[bytes]:
    """Yield the URL path, and what each further percent-decoding makes of it."""
    for _ in range(MOST_DECODINGS):
        yield path
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return
        path = decoded
    raise Invalid(field, f"it is percent-encoded more than {MOST_DECODINGS - 1} times.")


def _check_segments(reading: bytes, field: str) -> None:
    """Raise Invalid for `.` and `..`, and for a path that begins like a host."""
    text = unicodedata.normalize("NFKC", reading.decode("utf-8", "replace"))
    text = text.replace("\\", "/")
    if text.startswith("//"):
        raise Invalid(field, "it begins with more than one slash: use one.")
    for segment in text.split("/"):
        if _ONLY_DOTS.fullmatch(segment.partition(";")[0]):
            raise Invalid(
                field, "remove . and .. from the path: it must stay below its endpoint."
            )


def _invalid_address_error(field: str) -> Invalid:
    return Invalid(
        field, "use an address such as https://stock.example.com:8443/quotes/v1."
    )
