"""Keys, endpoints and breakers in memory, as Postgres had them a moment ago.

While calls come, they are read again each second. Without Postgres the last reading is
good for five minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import DatabaseError, InterfaceError

from apps.core import clock
from apps.core.errors import Unavailable
from apps.redelivery.gateway.database_threads import GatewayDatabaseThreads
from apps.redelivery.models import Endpoint, EndpointActivity
from apps.team import services as team
from apps.team.models import ApiKey
from apps.team.rights import Principal

FRESH_SECONDS = 1.0
# A caller waits this long for a new reading, and then takes the last one.
WAIT_SECONDS = 0.75
USABLE_SECONDS = 300.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedKey:
    name: str
    principal: Principal
    expires_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> CachedKey:
        """Build the cached form of an API key: what calls need of it."""
        return cls(name=key.name, principal=key.principal, expires_at=key.expires_at)


@dataclass(slots=True)
class CachedBreaker:
    """Whether calls of an endpoint fail, and whether its breaker is open."""

    is_failing: bool = False
    is_open: bool = False


@dataclass(kw_only=True, slots=True)
class Reading:
    """What was read at once; `begun_at` is a time of the monotonic clock."""

    begun_at: float = float("-inf")
    keys: Mapping[bytes, CachedKey] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    breakers: dict[int, CachedBreaker] = field(default_factory=dict)

    def key(self, secret: str) -> CachedKey | None:
        """Return a secret's API key as the gateway last read it, if usable now."""
        key = self.keys.get(team.digest_of(secret))
        is_over = key and key.expires_at is not None and key.expires_at <= clock.now()
        return None if is_over else key

    def breaker(self, endpoint: Endpoint) -> CachedBreaker:
        """Return a gateway's cached breaker of an endpoint; a closed one if none.

        Callers change it in place; the next reading replaces it.
        """
        return self.breakers.setdefault(endpoint.pk, CachedBreaker())


class KeyAndEndpointCache:
    """Read all usable keys and all endpoints, once for all who wait."""

    def __init__(
        self, database: GatewayDatabaseThreads, *, monotonic: Callable[[], float]
    ) -> None:
        self._database = database
        self._monotonic = monotonic
        self._reading = Reading()
        self._task: asyncio.Task[None] | None = None
        self._task_begun_at = float("-inf")

    async def key(self, secret: str) -> CachedKey | None:
        """Return the API key of a secret, also one created just now.

        Raises Unavailable for an unknown secret while Postgres is away.
        """
        asked_at = self._monotonic()
        key = (await self._not_older_than(asked_at - FRESH_SECONDS)).key(secret)
        if key is None:
            reading = await self._not_older_than(asked_at)
            key = reading.key(secret)
            if key is None and reading.begun_at < asked_at:
                raise Unavailable("The key cannot be checked at the moment.")
        return key

    async def endpoint(self, name: str) -> Endpoint | None:
        """Return the endpoint of this name, also one created just now.

        Raises Unavailable for an unknown name that cannot be looked up now.
        """
        asked_at = self._monotonic()
        reading = await self._not_older_than(asked_at - FRESH_SECONDS)
        endpoint = reading.endpoints.get(name)
        if endpoint is None:
            reading = await self._not_older_than(asked_at)
            endpoint = reading.endpoints.get(name)
            if endpoint is None and reading.begun_at < asked_at:
                raise Unavailable("The endpoint cannot be looked up at the moment.")
        return endpoint

    def breaker(self, endpoint: Endpoint) -> CachedBreaker:
        """Return the breaker of an endpoint as it was last read, and changed since.

        A call awaits its endpoint first, so the reading is one that it may use.
        """
        return self._reading.breaker(endpoint)

    async def aclose(self) -> None:
        """Wait for the reading of keys and endpoints that is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _not_older_than(self, moment: float) -> Reading:
        """Return keys, endpoints and breakers whose reading began after a moment.

        Where they cannot be read, the last reading, while it is usable. Raises
        Unavailable without a usable one.
        """
        while self._reading.begun_at < moment:
            if self._task is None:
                if self._monotonic() - self._task_begun_at < FRESH_SECONDS and (
                    self._reading.begun_at < self._task_begun_at
                ):
                    break  # the last one failed just now
                self._task_begun_at = self._monotonic()
                self._task = asyncio.create_task(self._read())
            seconds = self._task_begun_at + WAIT_SECONDS - self._monotonic()
            done, _ = await asyncio.wait([self._task], timeout=max(seconds, 0))
            if not done:
                break
        if self._monotonic() - self._reading.begun_at > USABLE_SECONDS:
            raise Unavailable("Keys and endpoints cannot be read at the moment.")
        return self._reading

    async def _read(self) -> None:
        """Read API keys, endpoints and breakers from Postgres into the cache.

        On failure, the last reading stays.
        """
        begun_at, last = self._monotonic(), self._reading
        try:
            reading = await self._database.run(lambda: _read(last, begun_at))
        except (Unavailable, DatabaseError, InterfaceError) as problem:
            log.warning("keys and endpoints are from memory: %s", problem)
        else:
            self._reading = reading
        finally:
            self._task = None


def _read(last: Reading, begun_at: float) -> Reading:
    """Read usable API keys, endpoints and breakers from Postgres; return the reading.

    Endpoints that did not change come from the last reading.
    """
    keys = team.usable_keys(now=clock.now())
    return Reading(
        begun_at=begun_at,
        keys={bytes(key.digest): CachedKey.of(key) for key in keys},
        endpoints=_endpoints(last.endpoints),
        breakers=_breakers(),
    )


def _endpoints(last: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """Return all endpoints by name, for the gateway's cache, reading only changed ones.

    That is also one whose target changed: the endpoint of forwards or of the response
    hook.
    """
    versions = {
        name: (pk, version)
        for pk, name, version in Endpoint.objects.values_list("pk", "name", "version")
    }
    same = {
        name: endpoint
        for name, endpoint in last.items()
        if all(
            versions.get(each.name) == (each.pk, each.version)
            for each in (endpoint, endpoint.forward_endpoint, endpoint.response_hook)
            if each is not None
        )
    }
    changed = versions.keys() - same.keys()
    if not changed:
        return same
    rows = Endpoint.objects.filter(name__in=changed).select_related(
        "topic", "forward_topic", "forward_endpoint", "response_hook"
    )
    return same | {endpoint.name: endpoint for endpoint in rows}


def _breakers() -> dict[int, CachedBreaker]:
    """Read breakers of endpoints whose last call failed, for the gateway's cache."""
    rows = EndpointActivity.objects.filter(failures_in_a_row__gt=0)
    return {
        endpoint: CachedBreaker(
            is_failing=True, is_open=bool(most) and open_until is not None
        )
        for endpoint, open_until, most in rows.values_list(
            "endpoint", "open_until", "endpoint__breaker_failures"
        )
    }
