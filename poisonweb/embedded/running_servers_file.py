"""Addresses of the embedded servers; imports only the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from poisonweb.embedded.process_control import Identity
from poisonweb.embedded.secrets import write_private

REMEDY = (
    "The embedded servers are not running: start them with `make run`, or set "
    "DATABASE_URL and CELERY_BROKER_URL to servers of your own."
)


# Where the sample's shop has its outbox.
SHOP_VARIABLE = "BROKER_SAMPLE_SHOP"
# People try the product with brokers on the same machine.
LOOPBACK_BROKERS = {"POISONWEB_LOOPBACK_BROKERS": "1"}


class NotRunning(Exception):
    """The embedded servers are not running."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    database_url: str
    celery_broker_url: str
    redis_url: str | None
    shop_url: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the servers' addresses as environment variables of our processes."""
        settings = {
            "DATABASE_URL": self.database_url,
            "CELERY_BROKER_URL": self.celery_broker_url,
            "POISONWEB_REDIS_URL": self.redis_url,
            SHOP_VARIABLE: self.shop_url,
        }
        return {name: value for name, value in settings.items() if value}


def announce(var: Path, servers: Servers, *, supervisor: Identity) -> None:
    """Write the addresses of the running Postgres and Redis to a file under `var`."""
    text = json.dumps({**asdict(servers), "supervisor": asdict(supervisor)})
    write_private(_addresses_file(var), text)


def withdraw(var: Path) -> None:
    """Delete the file of the addresses of the embedded servers, as they stop."""
    _addresses_file(var).unlink(missing_ok=True)


def environment(var: Path) -> dict[str, str]:
    """Return the environment variables for the servers running under `var`.

    Raises NotRunning if no server runs, even if a killed supervisor left its file.
    """
    try:
        fields = json.loads(_addresses_file(var).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotRunning(REMEDY) from None
    if not Identity(**fields.pop("supervisor")).alive:
        raise NotRunning(REMEDY)
    return {**LOOPBACK_BROKERS, **Servers(**fields).environment()}


def _addresses_file(var: Path) -> Path:
    return var / "run" / "servers.json"
