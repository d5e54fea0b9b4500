"""An address that carries the API key, as in `https://key@poisonweb.example.com`."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from poisonguard.errors import Misconfigured

_REMEDY = "write it like https://key@poisonweb.example.com, or leave the key out."


def without_key(address: str) -> tuple[str, str | None]:
    """Split a server address into the address without API key, and the key or None."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return address, None
    key, _, password = user.partition(":")
    if not key or password:
        raise Misconfigured(
            f"The address of {host} holds a user and a password: {_REMEDY}"
        )
    return parts._replace(netloc=host).geturl(), unquote(key)


def one_key(keys: Iterable[str | None]) -> str | None:
    """Return the one API key of these addresses; raise Misconfigured for two."""
    different = {key for key in keys if key is not None}
    if len(different) > 1:
        raise Misconfigured(
            "The addresses carry different keys: they are one installation, which has"
            " one key for you. Give it once."
        )
    return different.pop() if different else None


def without_credentials(address: object) -> object:
    """Return an address without the credentials before its @."""
    if isinstance(address, str) and "@" in address:
        return f"…@{address.rpartition('@')[2]}"
    return address
