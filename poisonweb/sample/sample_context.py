"""What every program of the sample starts with: Redis, ledger, guards and the shop."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from poisonweb import env as settings
from poisonweb.embedded.running_servers_file import SHOP_VARIABLE
from poisonweb.sample.event_ledger import Ledger
from poisonweb.sample.guards import Guards


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleContext:
    """`shop_url` is the database of the shop, if there is one."""

    redis: Redis
    redis_url: str
    shop_url: str | None
    ledger: Ledger
    guards: Guards

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Make the sample programs' context from the environment; set up logging.

        Raises BadEnvironment.
        """
        env = settings.load(environ)
        if env.redis_url is None:
            raise settings.BadEnvironment("POISONWEB_REDIS_URL is not set.")
        logging.basicConfig(
            level=env.log_level, format="%(asctime)s %(levelname)s %(message)s"
        )
        return cls(
            redis=_connect_redis(env.redis_url),
            redis_url=env.redis_url,
            shop_url=environ.get(SHOP_VARIABLE),
            ledger=Ledger(env.var / "sample-ledger.jsonl"),
            guards=Guards(port=int(environ.get("PORT") or "8000"), var=env.var),
        )


def _connect_redis(url: str) -> Redis:
    """Return the sample's Redis client, which fails at once when Redis is away."""
    # No retries: a retry of the client would send a message twice.
    return Redis.from_url(
        url,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=2,
        socket_timeout=5,
    )
