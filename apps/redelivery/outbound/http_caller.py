"""Call back ends: one request, one try, one honest outcome.

    async with HttpCaller() as caller:  # one for the event loop
        async with caller.call(request, seconds=30) as answer:
            body = await answer.read(MIB)

A request is written at most once, so a connection that the back end closes at that
moment makes an unknown outcome, not a second try. Connections are kept for a short time
only, to make that rare. No redirect is followed, no cookie kept, no body decoded, no
header added but `Host` and `Content-Length`, and no proxy of the environment is used.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import h11

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.outbound.address_rules import HostLookUps
from apps.redelivery.outbound.errors import LateAnswer, OutcomeUnknown, RequestNotSent
from apps.redelivery.outbound.http_connection import AnswerHead, BackEndConnection
from apps.redelivery.outbound.request_and_answer_headers import checked_headers
from apps.redelivery.outbound.target_url import EndpointTarget

# Many servers close idle connections after 5 seconds; some after 2.
KEEP_ALIVE_SECONDS = 1.5
CONNECT_SECONDS = 10.0
CONNECTIONS_PER_TARGET = 32
MOST_LATE_ANSWERS = 16
LATE_BODY = 64 * 1024
TOO_SLOW = "The back end sent its answer too slowly."
# Without a body, these get no `Content-Length` (RFC 9110, 8.6).
WITHOUT_BODY = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"DELETE"})
NEVER_FORWARDED = frozenset({b"host", b"content-length", b"transfer-encoding"})

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class EndpointRequest:
    """A request as it is written; `path` comes from `EndpointTarget.url_path`.

    It does not change: its head is made once.
    """

    method: bytes
    target: EndpointTarget
    path: bytes
    headers: list[Header]
    body: bytes = field(default=b"", repr=False)
    _head: h11.Request | None = field(default=None, init=False, repr=False)

    def head(self) -> h11.Request:
        """Return the head of a request to a back end as an h11.Request, made once.

        Raise Invalid for what is no HTTP, and for the method CONNECT.
        """
        if self._head is None:
            self._head = self._make_head()
        return self._head

    def _make_head(self) -> h11.Request:
        if self.method == b"CONNECT":
            raise Invalid("method", "CONNECT opens a tunnel: use another method.")
        headers = [(b"Host", self.target.authority.encode("ascii"))]
        headers += (
            (name, value)
            for name, value in checked_headers(self.headers)
            if name.lower() not in NEVER_FORWARDED
        )
        if self.body or self.method not in WITHOUT_BODY:
            headers.append((b"Content-Length", b"%d" % len(self.body)))
        try:
            return h11.Request(method=self.method, target=self.path, headers=headers)
        except h11.LocalProtocolError as error:
            log.info("a request to a back end cannot be written: %s", error)
            raise Invalid(
                "request",
                "it is no valid HTTP: look at its method, path and headers.",
            ) from error


class EndpointAnswer:
    """The answer of a back end; its body is read as far as the caller wants.

    `headers` are as they came; `answer_headers` filters them.
    """

    def __init__(
        self, head: AnswerHead, connection: BackEndConnection, *, until: float
    ) -> None:
        self.status = head.status
        self.reason = head.reason
        self.headers = head.headers
        self._connection = connection
        self._until = until
        self._rest = bytearray()
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """Tell whether `read` returned the whole body of a back end's answer."""
        return self._has_ended and not self._rest

    async def read(self, limit: int) -> bytes:
        """Return the next bytes of the body, at most `limit`; see `is_complete`.

        It ends with the time limit of the call. Raises OutcomeUnknown where the answer
        breaks off.
        """
        async with _time_limit(self._until, OutcomeUnknown(TOO_SLOW)):
            while len(self._rest) <= limit and not self._has_ended:
                await self._read_piece()
        data = bytes(self._rest[:limit])
        del self._rest[:limit]
        return data

    async def chunks(self, *, seconds: float) -> AsyncIterator[bytes]:
        """Yield the rest of an answer's body; raise OutcomeUnknown beyond the time."""
        until = asyncio.get_running_loop().time() + seconds
        while not self.is_complete:
            if not self._rest:
                async with _time_limit(until, OutcomeUnknown(TOO_SLOW)):
                    await self._read_piece()
            if data := bytes(self._rest):
                self._rest.clear()
                yield data

    async def _read_piece(self) -> None:
        """Read the next bytes of a back end's answer into memory, or note its end."""
        piece = await self._connection.read_piece()
        self._rest += piece
        self._has_ended = not piece


class HttpCaller:
    """Call back ends from one event loop, by a few connections for each target."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        connections_per_target: int = CONNECTIONS_PER_TARGET,
    ) -> None:
        """Trust this machine's certificates in calls to back ends, or `tls`'s."""
        self._tls = tls
        self._connections_per_target = connections_per_target
        self._pools: dict[tuple[str, str, int], _TargetPool] = {}
        self._look_ups = HostLookUps()
        self._late_readers: set[asyncio.Task[LateAnswer | None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close idle connections to back ends; give up waiting for late answers."""
        for pool in self._pools.values():
            pool.close_idle()
        readers = list(self._late_readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    @asynccontextmanager
    async def call(
        self,
        request: EndpointRequest,
        *,
        seconds: float,
        late_for: float = 0.0,
        on_write: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[EndpointAnswer]:
        """Send a request; give its answer as soon as status and headers are there.

        `seconds` limit all from the wait for a connection to the headers, and
        `answer.read`. After a time-out, an answer is awaited in the background for
        `late_for` more seconds: see `OutcomeUnknown.late_answer`. `on_write` is called
        before the first byte leaves. Raises RequestNotSent, OutcomeUnknown, or Invalid
        for a request that is no HTTP.
        """
        head = request.head()
        until = asyncio.get_running_loop().time() + seconds
        async with self._connection_slot(request.target, until) as pool:
            connection = pool.take_idle() or await self._dial(request.target, until)
            is_late = False
            try:
                on_write()
                connection.write(head, request.body)
                try:
                    async with asyncio.timeout_at(until):
                        answer_head = await connection.read_head()
                except TimeoutError:
                    unknown, is_late = self._start_late_reader(connection, late_for)
                    raise unknown from None
                yield EndpointAnswer(answer_head, connection, until=until)
            finally:
                if not is_late:
                    pool.take_back(connection)

    @asynccontextmanager
    async def _connection_slot(
        self, target: EndpointTarget, until: float
    ) -> AsyncIterator[_TargetPool]:
        """Wait until a target has a free connection; lend its pool to the block.

        Raises RequestNotSent if none of its number of connections is free in time.
        """
        pool = self._pool_of(target)
        pool.users += 1
        try:
            busy = f"All connections to {target.host} were in use until the time limit."
            async with _time_limit(until, RequestNotSent(busy)):
                await pool.slots.acquire()
            try:
                yield pool
            finally:
                pool.slots.release()
        finally:
            pool.users -= 1

    def _pool_of(self, target: EndpointTarget) -> _TargetPool:
        """Return a target's connection pool; remove pools that are not in use."""
        key = (target.scheme, target.host, target.port)
        if key not in self._pools:
            self._pools = {
                other: pool for other, pool in self._pools.items() if pool.is_in_use
            }
            self._pools[key] = _TargetPool(self._connections_per_target)
        return self._pools[key]

    async def _dial(self, target: EndpointTarget, until: float) -> BackEndConnection:
        """Connect to a back end's checked address; raise RequestNotSent on failure."""
        until = min(until, asyncio.get_running_loop().time() + CONNECT_SECONDS)
        slow = f"{target.host} took no connection within the time limit."
        async with _time_limit(until, RequestNotSent(slow)):
            addresses = await self._look_ups.resolve(target)
            trouble: OSError | None = None
            for index, address in enumerate(addresses):
                now = asyncio.get_running_loop().time()
                share = (until - now) / (len(addresses) - index)
                try:
                    async with asyncio.timeout(share):
                        return await self._connect(target, str(address))
                except OSError as error:  # a time-out and a failure of TLS are some
                    trouble = error
        raise RequestNotSent(
            f"No connection to {target.host}, port {target.port}: "
            f"{trouble or 'time-out'}."
        )

    async def _connect(self, target: EndpointTarget, address: str) -> BackEndConnection:
        """Connect to a back end; verify its certificate against the host's name."""
        is_tls = target.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            BackEndConnection,
            host=address,
            port=target.port,
            ssl=self._tls_context() if is_tls else None,
            server_hostname=target.host if is_tls else None,
        )
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _start_late_reader(
        self, connection: BackEndConnection, late_for: float
    ) -> tuple[OutcomeUnknown, bool]:
        """Start a reader of a timed-out call's late answer, if one is wanted.

        Returns the error to raise, and whether a reader was started: there are never
        more than `MOST_LATE_ANSWERS`.
        """
        reason = "The back end did not answer within the time limit."
        if late_for <= 0 or len(self._late_readers) >= MOST_LATE_ANSWERS:
            return OutcomeUnknown(reason), False
        reader = asyncio.create_task(_read_late(connection, late_for))
        self._late_readers.add(reader)
        reader.add_done_callback(self._late_readers.discard)
        return OutcomeUnknown(reason, late_answer=partial(asyncio.shield, reader)), True


class _TargetPool:
    """The connections to one scheme, host and port."""

    def __init__(self, size: int) -> None:
        self.slots = asyncio.Semaphore(size)
        self.users = 0
        self._idle: list[tuple[BackEndConnection, asyncio.TimerHandle]] = []

    @property
    def is_in_use(self) -> bool:
        return bool(self.users or self._idle)

    def take_idle(self) -> BackEndConnection | None:
        """Return the connection that was used last and is still open."""
        while self._idle:
            connection, timer = self._idle.pop()
            timer.cancel()
            if connection.begin_call():
                return connection
            connection.abort()
        return None

    def take_back(self, connection: BackEndConnection) -> None:
        """Put a connection back into the pool; close it if it can carry no call."""
        if not connection.end_call():
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(KEEP_ALIVE_SECONDS, self._expire, connection)
        self._idle.append((connection, timer))

    def close_idle(self) -> None:
        """Close all connections of a target's pool that carry no call."""
        for connection, timer in self._idle:
            timer.cancel()
            connection.abort()
        self._idle.clear()

    def _expire(self, connection: BackEndConnection) -> None:
        connection.abort()
        self._idle = [pair for pair in self._idle if pair[0] is not connection]


async def _read_late(
    connection: BackEndConnection, seconds: float
) -> LateAnswer | None:
    """Wait for the late answer of a back end whose call timed out.

    It is None if none comes in time. Closes the connection.
    """
    until = asyncio.get_running_loop().time() + seconds
    try:
        async with _time_limit(until, OutcomeUnknown(TOO_SLOW)):
            head = await connection.read_head()
        answer = EndpointAnswer(head, connection, until=until)
        body = await answer.read(LATE_BODY)
    except OutcomeUnknown:
        return None
    finally:
        connection.abort()
    return LateAnswer(
        status=head.status,
        headers=head.headers,
        body=body,
        is_complete=answer.is_complete,
    )


@asynccontextmanager
async def _time_limit(until: float, error: Exception) -> AsyncIterator[None]:
    """Raise an error if the block lasts until this time of the event loop's clock."""
    try:
        async with asyncio.timeout_at(until):
            yield
    except TimeoutError:
        raise error from None
