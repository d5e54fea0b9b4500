"""The address of a producer's database: parse it, check its host, give its parameters.

The rules for hosts are those of brokers (`apps.brokers.address_policy`): the address is
written as a URL with one host, and no option of libpq can lead elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from apps.brokers import sealed_addresses
from apps.brokers.address_policy import HostPort, Target
from apps.core.errors import Invalid, Unavailable
from apps.core.postgres_connections import session_options

SCHEMES = frozenset({"postgresql", "postgres"})
SSL_MODES = frozenset({"disable", "require", "verify-ca", "verify-full"})
USUAL_PORT = 5432
# For one address, and for all: a name may lead to many that do not answer.
CONNECT_SECONDS, LONGEST_CONNECT_SECONDS = 5, 10
MOST_ADDRESSES = 4
EXAMPLE = "postgresql://user:password@db.example.com:5432/orders?sslmode=require"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerDatabase:
    """One database of Postgres, with the credentials of its sweeper."""

    host: str
    port: int
    user: str
    password: str
    name: str
    ssl_mode: str
    is_trusted: bool

    @classmethod
    def read(cls, url: str) -> Self:
        """Parse a producer database's stored URL; raise Invalid where it cannot be one.

        Raises Unavailable where it is sealed with another key, or its variable is not
        set.
        """
        address = sealed_addresses.reveal(url)
        try:
            parts = urlsplit(address)
            port = parts.port or USUAL_PORT
        except ValueError:
            raise _invalid("it is no address") from None
        if parts.scheme not in SCHEMES or not parts.hostname or not parts.username:
            raise _invalid("it names no host or no user")
        name = unquote(parts.path.removeprefix("/"))
        if not name or "/" in name:
            raise _invalid("it names no database")
        if "\0" in unquote(address):  # libpq would take nothing behind it
            raise _invalid("it has a zero byte")
        return cls(
            host=HostPort.of(address).host,
            port=port,
            user=unquote(parts.username),
            password=unquote(parts.password or ""),
            name=name,
            ssl_mode=_ssl_mode(parts.query),
            is_trusted=url.startswith(sealed_addresses.FROM_ENVIRONMENT),
        )

    def check(self, *, resolve: bool) -> None:
        """Raise Invalid where a producer database's host is forbidden now.

        `resolve` looks the host's name up: never use it in a transaction.
        """
        self._target().check(resolve=resolve)

    def parameters(
        self, *, purpose: str, settings: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return psycopg's parameters for a producer database, its address checked now.

        It looks the host's name up. Raises Unavailable where the name leads nowhere, or
        to a forbidden address.
        """
        try:
            addresses = self._target().allowed_addresses(self.host, self.port)
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{self.host} cannot be dialled: {error}") from error
        addresses = addresses[:MOST_ADDRESSES]
        share = LONGEST_CONNECT_SECONDS // len(addresses)
        return {
            "host": ",".join([self.host] * len(addresses)),
            "hostaddr": ",".join(map(str, addresses)),
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "passfile": os.devnull,
            "dbname": self.name,
            "sslmode": self.ssl_mode,
            "connect_timeout": min(CONNECT_SECONDS, share),
            "application_name": f"poisonweb {purpose}",
            "options": session_options(settings),
            "client_encoding": "UTF8",  # the sweeper reads the bytes of texts
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 11_000,
        }

    def _target(self) -> Target:
        return Target(
            of_address=(HostPort(self.host, self.port),), is_trusted=self.is_trusted
        )


def search_path_to(schema: str) -> dict[str, str]:
    """Return the `search_path` that leads to a sweeper's lock tables.

    It is {} without a schema. The tables may be in the schema of the outbox: `python -m
    poisonguard.sweeper` looks there first, and two locks would let both work.
    """
    if not schema:
        return {}
    quoted = schema.replace('"', '""').replace("\\", "\\\\").replace(" ", "\\ ")
    return {"search_path": f'"{quoted}",public'}


def _ssl_mode(query: str) -> str:
    """Return the `sslmode` of a database URL, the only option it may have."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    mode = options.pop("sslmode", "require")
    if options:
        raise _invalid(f"it has the option {min(options)}, but only sslmode is allowed")
    if mode not in SSL_MODES:
        raise _invalid(f"its sslmode is not one of {', '.join(sorted(SSL_MODES))}")
    return mode


def _invalid(reason: str) -> Invalid:
    """Build the error of a database's unusable address, which it does not quote."""
    return Invalid("url", f"{reason}: write it as {EXAMPLE}.")
