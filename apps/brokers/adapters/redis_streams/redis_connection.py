"""A connection to Redis that passes replies on unchanged.

The commands of redis-py make dicts of stream entries, which loses repeated fields, try
again by themselves, which sends messages twice, and put a failing pipeline's contents
into the exception text. So this uses its connections only: raw replies, one attempt.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import InvalidResponse, RedisError, ResponseError
from redis.retry import Retry

from apps.brokers.address_policy import Dial, usual_dial
from apps.brokers.errors import MaybeSent, NotSent, Rejected
from apps.core.errors import Invalid
from apps.core.text_cleaning import one_line

Argument = bytes | str | int
Command = Sequence[Argument]

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 20.0
# A blocking read must end well before its reply counts as lost.
BLOCK_SECONDS = REPLY_SECONDS / 2
# So many bytes go to the socket at once, at least, but for the last.
WRITTEN_BYTES = 2**16

# Temporary states of the whole server: they say nothing about a message.
PASSING = frozenset(
    {
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    }
)


class RedisRejected(Rejected):
    """Redis answered with an error."""

    def __init__(self, error: ResponseError, *, command: Command) -> None:
        self.code = code_of(error)
        # Words of the command are str, so the first bytes among them are its key.
        keys = (
            part.decode(errors="replace") for part in command if type(part) is bytes
        )
        about = f"{command[0]!s} {next(keys, '')}".strip()
        super().__init__(f"Redis refuses {about}: {reason_of(error)}")


class RedisConnection(Connection):
    """A connection of redis-py that connects by `dial`."""

    def __init__(self, *, dial: Dial, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._dial = dial

    def _connect(self) -> socket.socket:
        """Connect to Redis by `dial`, which allows only some hosts."""
        connected = self._dial(
            self.host, self.port, seconds=self.socket_connect_timeout
        )
        connected.settimeout(self.socket_timeout)
        return connected


class RedisTLSConnection(SSLConnection, RedisConnection):
    """The same with TLS, and a certificate for the host's name."""


class RedisWire:
    """A client of one server, for one thread."""

    def __init__(self, url: str, *, dial: Dial = usual_dial) -> None:
        settings = _connection_settings(url)
        self._server = f"Redis at {settings['host']}:{settings['port']}"
        self._pool = ConnectionPool(
            **settings,
            dial=dial,
            protocol=2,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=REPLY_SECONDS,
            retry=Retry(NoBackoff(), 0),
            client_name="poisonweb",
        )

    def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Send a Redis broker commands at once; return a raw reply for each, in order.

        An error reply is returned as `ResponseError`, a reply that never came as
        `MaybeSent`. Raises `NotSent` when there was no connection to send on.
        """
        connection = self._connection()
        replies: list[Any] = []
        try:
            connection.send_packed_command(encode_commands(commands))
            # Replies read before an error stay in the list.
            replies.extend(_read_reply(connection) for _ in commands)
        except (RedisError, OSError) as error:
            no_reply = MaybeSent(f"{self._server} is away: {reason_of(error)}")
            replies += [no_reply] * (len(commands) - len(replies))
        finally:
            self._pool.release(connection)
        return replies

    def call(self, *command: Argument) -> Any:
        """Return a Redis broker's raw reply; raise `RedisRejected` or `Unavailable`."""
        (reply,) = self.pipeline([command])
        return self.checked(reply, command=command)

    def transaction(self, *commands: Command) -> list[Any]:
        """Run commands in one MULTI; return Redis' replies, errors among them.

        Raises if Redis did not queue one of the commands.
        """
        whole: list[Command] = [("MULTI",), *commands, ("EXEC",)]
        replies = self.pipeline(whole)
        # The error of a command that was not queued says more than EXEC's own.
        for reply, command in zip(replies, whole, strict=True):
            self.checked(reply, command=command)
        done: list[Any] = replies[-1]
        return done

    def checked(self, reply: Any, *, command: Command) -> Any:
        """Return Redis' reply, or raise it if it is an error."""
        if isinstance(reply, MaybeSent):
            raise reply
        if isinstance(reply, ResponseError):
            if is_passing(reply):
                raise NotSent(f"{self._server} says: {reason_of(reply)}")
            raise RedisRejected(reply, command=command)
        return reply

    def close(self) -> None:
        """Close the connections to Redis."""
        self._pool.disconnect()

    def _connection(self) -> Any:  # redis-py leaves its methods untyped
        """Borrow a connection to Redis; raise NotSent without one."""
        try:
            return self._pool.get_connection()
        # The resolver raises ValueError for an impossible host name.
        except (RedisError, OSError, ValueError) as error:
            reason = f"{self._server} is away: {reason_of(error)}"
            raise NotSent(reason) from error


def is_passing(reply: object) -> bool:
    """Tell whether Redis' reply is an error that will pass, such as loading."""
    return isinstance(reply, ResponseError) and code_of(reply) in PASSING


def code_of(error: ResponseError) -> str:
    """Return the first word of Redis' error, which is its code."""
    return error.status_code or str(error).partition(" ")[0]


def reason_of(error: Exception) -> str:
    """Return the error of redis-py or Redis as one short line.

    The words of another service are not quoted: a person who may try out brokers could
    read what any service tells.
    """
    if isinstance(error, InvalidResponse):
        return "what answers there is not Redis"
    text = f"{getattr(error, 'status_code', None) or ''} {error}"
    return one_line(text) or type(error).__name__


def encode_commands(commands: Sequence[Command]) -> Iterator[bytes]:
    """Encode commands in parts that are sent one by one; a large word is not copied.

    redis-py's own packer costs as much as all else of a message.
    """
    parts, size = list[bytes](), 0
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            value = word if isinstance(word, bytes) else _encoded(word)
            parts += (b"$%d\r\n" % len(value), value, b"\r\n")
            size += len(value)
            if len(value) > WRITTEN_BYTES:
                yield b"".join(parts[:-2])
                yield value
                parts, size = [b"\r\n"], 0
        if size > WRITTEN_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _encoded(word: str | int) -> bytes:
    """Encode a word of a Redis command that is not bytes."""
    return b"%d" % word if isinstance(word, int) else word.encode()


def _read_reply(connection: Any) -> Any:
    """Read one reply of Redis; return an error instead of raising it."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _connection_settings(url: str) -> dict[str, Any]:
    """Parse a Redis address as redis-py's settings; raise Invalid."""
    # Errors of the URL parser quote the text, which may hold a password.
    try:
        parts = urlsplit(url)
        port, database = parts.port or 6379, int(parts.path.strip("/") or 0)
    except ValueError:
        raise _unusable_error() from None
    classes = {"redis": RedisConnection, "rediss": RedisTLSConnection}
    if (
        parts.scheme not in classes
        or not parts.hostname
        or parts.query
        or parts.fragment
    ):
        raise _unusable_error()
    return {
        "connection_class": classes[parts.scheme],
        "host": unquote(parts.hostname),
        "port": port,
        "db": database,
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
    }


def _unusable_error() -> Invalid:
    """Build the error of a Redis address that cannot be used."""
    remedy = (
        "write redis://[user:password@]host[:port][/database], or rediss:// for TLS"
    )
    return Invalid("url", f"{remedy}; percent-encode what is special in a password.")


def call_or_none(wire: RedisWire, *command: Argument) -> Any:
    """Call Redis for a key; return None if the key is missing."""
    try:
        return wire.call(*command)
    except RedisRejected as error:
        if error.code == "ERR" and "no such key" in str(error):
            return None
        raise


def server_time(wire: RedisWire) -> datetime:
    """Ask Redis for its time."""
    # Idle times follow the server's clock, so this must, too.
    seconds, microseconds = map(int, wire.call("TIME"))
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)
