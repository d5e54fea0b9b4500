"""The ASGI application of the gateway: `ANY /gateway/{endpoint}/{path}`.

/gateway/{endpoint}/{path}        calls an endpoint
/gateway/-/deliveries/{delivery}  tells its caller how a delivery goes on
/healthz                          tells that the gateway answers
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from apps.brokers.adapter_contract import Header
from apps.core import clock
from apps.core.errors import Unavailable
from apps.redelivery.endpoint_and_delivery_choices import CallMode
from apps.redelivery.gateway import delivery_store
from apps.redelivery.gateway.call_rate_limits import CallRateLimits
from apps.redelivery.gateway.caller_connections import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    BodyMemory,
    CallerConnection,
    CallerGone,
)
from apps.redelivery.gateway.database_threads import (
    DatabaseAway,
    GatewayDatabaseThreads,
)
from apps.redelivery.gateway.delivery_answers import (
    STATUS_PATH,
    failure_without_postgres,
    status_address,
)
from apps.redelivery.gateway.delivery_store import PerhapsStored
from apps.redelivery.gateway.first_tries import FirstTries
from apps.redelivery.gateway.key_and_endpoint_cache import (
    CachedKey,
    KeyAndEndpointCache,
)
from apps.redelivery.gateway.refusals import GatewayRefusal, busy
from apps.redelivery.gateway.request_checks import EndpointCall, check_head, with_body
from apps.redelivery.gateway.soap_envelopes import declared_version
from apps.redelivery.gateway.success_counts_and_sender_notices import BatchedWrites
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.http_caller import HttpCaller
from apps.redelivery.outbound.request_and_answer_headers import OWN_PREFIX
from apps.team import refused_api_key_audit
from apps.team.rights import Scope
from poisonguard.contract import uuid_of

PREFIX = b"/gateway/"
STATUS_PREFIX = STATUS_PATH.encode()
KEY_HEADER = OWN_PREFIX + b"key"
# Together with those for upkeep, the sessions of Postgres that a gateway has.
STORING_SESSIONS, UPKEEP_SESSIONS = 8, 1
MOST_CALLS, MOST_CALLS_OF_ENDPOINT = 1_000, 500
# After this long, a gateway that closes leaves the rest of its tasks.
CLOSE_SECONDS = 15.0
BODY_MEMORY = 256 * 1024 * 1024
# An endpoint has its own limit of calls at once.
CONNECTIONS_PER_TARGET = 1_000
# A key and an endpoint are checked again where a body took longer.
QUICK_BODY_SECONDS = 0.1
# Refused keys that wait to be noted; more are not.
MOST_NOTES = 100

log = logging.getLogger(__name__)


class GatewayApplication:
    """Answer calls of endpoints between `start` and `aclose`, in one event loop."""

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, http: HttpCaller
    ) -> None:
        self._monotonic, self._http = monotonic, http
        self._storing = GatewayDatabaseThreads(STORING_SESSIONS)
        self._upkeep = GatewayDatabaseThreads(UPKEEP_SESSIONS)
        self._cache = KeyAndEndpointCache(self._upkeep, monotonic=monotonic)
        self._writes = BatchedWrites(self._upkeep)
        self._first_tries = FirstTries(
            http=http, database=self._storing, writes=self._writes
        )
        self._rates = CallRateLimits(
            settings.POISONWEB_GATEWAY_CALLS_PER_MINUTE, monotonic=monotonic
        )
        self._memory = BodyMemory(BODY_MEMORY + settings.POISONWEB_REQUEST_LIMIT)
        self._calls: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._notes: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, *, monotonic: Callable[[], float] = time.monotonic) -> Self:
        """Build the gateway's application in the running event loop; open no port."""
        http = HttpCaller(connections_per_target=CONNECTIONS_PER_TARGET)
        return cls(monotonic=monotonic, http=http)

    def stop_first_tries(self) -> None:
        """End first tries as the gateway stops: store requests that have no answer."""
        self._first_tries.stop()

    async def aclose(self) -> None:
        """Close the gateway: finish first tries, write what waits, close connections.

        Tasks that are still not over, since Postgres hangs, end with the event loop.
        """
        if tasks := self._tasks | self._notes:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        await self._first_tries.aclose()
        await self._cache.aclose()
        await self._writes.aclose()
        await self._http.aclose()
        await self._storing.aclose()
        await self._upkeep.aclose()

    async def __call__(
        self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend
    ) -> None:
        """Answer one HTTP request to the gateway.

        A cancelled task ends its call of the back end, too.
        """
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of this event loop
        self._tasks.add(task)
        caller = CallerConnection(scope, receive, send, memory=self._memory)
        try:
            await self._route(caller)
        except GatewayRefusal as refusal:
            await caller.refuse(refusal, declared_version(caller.headers))
        except Unavailable as problem:
            away = busy(str(problem), seconds=5)
            await caller.refuse(away, declared_version(caller.headers))
        except CallerGone:
            log.info("a caller hung up before its request was whole")
        finally:
            caller.close()
            self._tasks.discard(task)

    async def _route(self, caller: CallerConnection) -> None:
        if caller.raw_path == b"/healthz":
            await caller.answer(
                HTTPStatus.OK, [(b"content-type", b"text/plain")], b"ok\n"
            )
        elif caller.raw_path.startswith(STATUS_PREFIX):
            await self._tell_status(caller)
        elif caller.raw_path.startswith(PREFIX):
            await self._take_call(caller)
        else:
            raise _absent("There is nothing here: call /gateway/{endpoint}/{path}.")

    async def _take_call(self, caller: CallerConnection) -> None:
        """Check a caller's request to an endpoint; make its first try, or store it."""
        checked_at = self._monotonic()
        encoded, slash, rest = caller.raw_path[len(PREFIX) :].partition(b"/")
        name = encoded.decode("ascii")
        key, endpoint = await self._permitted(caller, name)
        endpoint_id: int = endpoint.pk
        wait = self._rates.take((key.name, endpoint_id))
        if wait:
            raise GatewayRefusal(
                status=HTTPStatus.TOO_MANY_REQUESTS,
                detail="This key calls this endpoint too often.",
                headers=((b"retry-after", b"%d" % (int(wait) + 1)),),
            )
        head = check_head(
            caller,
            endpoint=endpoint,
            caller=str(key.principal.actor),
            path=slash + rest,
        )
        self._take_place(endpoint_id)
        try:
            body = await caller.read_body(settings.POISONWEB_REQUEST_LIMIT)
            # A body may take a minute, in which a key may end.
            if self._monotonic() - checked_at > QUICK_BODY_SECONDS:
                await self._permitted(caller, name)
            call = with_body(head, caller, body)
            await self._make(call, caller)
        finally:
            self._calls[endpoint_id] -= 1

    def _make(self, call: EndpointCall, caller: CallerConnection) -> Awaitable[None]:
        if call.endpoint.mode == CallMode.ASYNC:
            return self._accept(call, caller)
        breaker = self._cache.breaker(call.endpoint)
        return self._first_tries.run(call, caller, breaker)

    async def _accept(self, call: EndpointCall, caller: CallerConnection) -> None:
        """Store a call as a delivery before any try, and answer 202."""
        store = partial(delivery_store.store, call.endpoint, call.delivery())
        try:
            await self._storing.run(store)
        except (Unavailable, DatabaseError, InterfaceError) as problem:
            log.error("a request was not stored: %s", problem)  # noqa: TRY400
            refusal = failure_without_postgres(
                call.id,
                detail="",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                may_be_stored=isinstance(problem, PerhapsStored),
            )
            await caller.answer(*refusal.message(call.soap))
            return
        self._writes.notify(call.endpoint.pk)
        address = status_address(call.id)
        body = {"delivery": str(call.id), "status_address": address}
        await _answer_json(
            caller,
            HTTPStatus.ACCEPTED,
            body,
            headers=((b"location", address.encode()),),
        )

    async def _tell_status(self, caller: CallerConnection) -> None:
        """Answer a delivery's status as JSON, to the API key that made it."""
        if caller.method not in {"GET", "HEAD"}:
            raise GatewayRefusal(
                status=HTTPStatus.METHOD_NOT_ALLOWED,
                detail="A status can only be read.",
                headers=((b"allow", b"GET, HEAD"),),
            )
        key = await self._caller_key(caller)
        id_ = uuid_of(caller.raw_path[len(STATUS_PREFIX) :].decode("latin-1"))
        document = None if id_ is None else await self._status(id_, key)
        if document is None:
            raise _absent("This key made no such delivery.")
        await _answer_json(caller, HTTPStatus.OK, document)

    async def _status(self, id_: UUID, key: CachedKey) -> dict[str, object] | None:
        try:
            return await self._storing.run(
                partial(delivery_store.status, id_, key.principal)
            )
        except (DatabaseAway, DatabaseError, InterfaceError) as problem:
            raise busy("Postgres is away: ask again later.", seconds=5) from problem

    async def _permitted(
        self, caller: CallerConnection, name: str
    ) -> tuple[CachedKey, Endpoint]:
        """Return a call's API key and endpoint, or raise GatewayRefusal."""
        key = await self._caller_key(caller)
        endpoint = await self._cache.endpoint(name)
        if endpoint is None or not key.principal.sees(endpoint.topic.name):
            raise _absent(f"There is no endpoint {name} here.")
        if not endpoint.is_enabled:
            raise busy(f"The endpoint {name} is disabled.", seconds=60)
        return key, endpoint

    async def _caller_key(self, caller: CallerConnection) -> CachedKey:
        """Return the API key that may make this call, or raise GatewayRefusal."""
        secret = _secret(caller)
        if not secret:
            raise _unauthorized("Send a key in X-Poisonweb-Key.")
        key = await self._cache.key(secret)
        if key is None:
            self._note_refusal(secret, caller.address)
            raise _unauthorized("This key is unknown, expired or revoked.")
        if not key.principal.may(Scope.GATEWAY_CALL):
            raise GatewayRefusal(
                status=HTTPStatus.FORBIDDEN,
                detail=f"This needs the right {Scope.GATEWAY_CALL}, which this key has"
                " not.",
            )
        self._writes.note_use(key.name)
        return key

    def _take_place(self, endpoint: int) -> None:
        """Count a call as under way; raise GatewayRefusal for one too many.

        There are limits for all endpoints together, and for each.
        """
        calls = self._calls
        if calls.total() >= MOST_CALLS or calls[endpoint] >= MOST_CALLS_OF_ENDPOINT:
            raise busy("Too many calls are under way: try again.")
        calls[endpoint] += 1

    def _note_refusal(self, secret: str, address: str) -> None:
        """Store that an API key was refused, in the background."""
        if len(self._notes) < MOST_NOTES:
            task = asyncio.create_task(self._note(secret, address))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def _note(self, secret: str, address: str) -> None:
        note = partial(
            refused_api_key_audit.note_refusal,
            secret=secret,
            address=address,
            now=clock.now(),
        )
        try:
            await self._upkeep.run(note)
        except (Unavailable, DatabaseError, InterfaceError) as problem:
            log.warning("a refused key was not noted: %s", problem)


def _secret(caller: CallerConnection) -> str:
    """Return the secret of a call's key; "" without one.

    It is in a header of our own where `Authorization` is for the back end.
    """
    own = caller.header(KEY_HEADER)
    if own is not None:
        return own.decode("latin-1").strip()
    value = caller.header(b"authorization") or b""
    scheme, _, secret = value.decode("latin-1").strip().partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


async def _answer_json(
    caller: CallerConnection,
    status: HTTPStatus,
    document: Mapping[str, Any],
    *,
    headers: Sequence[Header] = (),
) -> None:
    body = json.dumps(document).encode()
    content_type = (b"content-type", b"application/json")
    await caller.answer(status, [content_type, *headers], body)


def _absent(detail: str) -> GatewayRefusal:
    return GatewayRefusal(status=HTTPStatus.NOT_FOUND, detail=detail)


def _unauthorized(detail: str) -> GatewayRefusal:
    return GatewayRefusal(
        status=HTTPStatus.UNAUTHORIZED,
        detail=detail,
        headers=((b"www-authenticate", b"Bearer"),),
    )
