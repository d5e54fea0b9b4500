"""Add messages to Redis streams by their topics; the new entry's id is the confirm.

An entry has the body, the headers, and the message id in the field `message_id`, in
place of a header of that name. A header with the name of the body's field is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import AskError, RedisError, ResponseError
    from redis.exceptions import ConnectionError as RedisAway
    from redis.exceptions import TimeoutError as RedisSilent
    from redis.retry import Retry
except ImportError as missing:
    raise ImportError(
        "poisonguard.outbox.publishers.redis_streams needs redis:"
        " pip install 'poisonguard[redis]'"
    ) from missing

from poisonguard.errors import Away
from poisonguard.outbox.message import Header, OutboxMessage
from poisonguard.outbox.outcome import SendKind, SendOutcome

SECONDS = 10.0
# Errors that a server gives while it takes no entries at all.
PASSING = frozenset(
    {
        *("LOADING", "BUSY", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM"),
        *("CLUSTERDOWN", "TRYAGAIN", "UNKILLABLE", "NOAUTH", "NOPERM"),
    }
)
MESSAGE_ID = b"message_id"


class RedisStreamsPublisher:
    """Send a window in one pipeline, without repeating a command by itself."""

    def __init__(self, url: str, *, body_field: str = "body") -> None:
        self._body_field = body_field.encode()
        self._client: redis.Redis = redis.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=SECONDS,
            socket_connect_timeout=SECONDS,
            socket_keepalive=True,
        )

    def __call__(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        self._check()
        pipeline: Any = self._client.pipeline(transaction=False)
        refusals = [self._refusal(message) for message in batch]
        for message, refusal in zip(batch, refusals, strict=True):
            if refusal:
                continue
            fields = [part for pair in self._fields(message) for part in pair]
            pipeline.execute_command("XADD", message.topic.encode(), "*", *fields)
        try:
            replies = pipeline.execute(raise_on_error=False)
        except (RedisAway, RedisSilent) as error:
            unknown = SendOutcome(kind=SendKind.UNKNOWN, detail=f"Redis: {error}")
            return [refusal or unknown for refusal in refusals]
        answers = map(_outcome, replies)
        return [refusal or next(answers) for refusal in refusals]

    def close(self) -> None:
        """Close the publisher's connection to Redis."""
        self._client.close()

    def _check(self) -> None:
        """Raise Away unless Redis answers before a publish becomes uncertain."""
        try:
            self._client.ping()
        except RedisError as error:
            raise Away(f"Redis is away: {error}") from error

    def _refusal(self, message: OutboxMessage) -> SendOutcome | None:
        """Refuse a header that consumers would take for the body."""
        if all(name != self._body_field for name, _ in message.headers):
            return None
        name = self._body_field.decode()
        detail = (
            f"Redis: consumers would take its header {name!r} for the body: rename it"
        )
        return SendOutcome(kind=SendKind.REFUSED, detail=detail)

    def _fields(self, message: OutboxMessage) -> list[Header]:
        headers = [each for each in message.headers if each[0] != MESSAGE_ID]
        return [
            (self._body_field, message.body),
            *headers,
            (MESSAGE_ID, message.message_id.encode()),
        ]


def _outcome(reply: object) -> SendOutcome:
    if not isinstance(reply, Exception):
        return SendOutcome(kind=SendKind.SENT)
    text = f"Redis: {reply}"
    if not isinstance(reply, ResponseError):
        return SendOutcome(kind=SendKind.UNKNOWN, detail=text)
    code = getattr(reply, "status_code", None) or str(reply).partition(" ")[0]
    # MOVED is an AskError, too: the stream is at another node of a cluster.
    is_passing = code in PASSING or isinstance(reply, AskError)
    kind = SendKind.UNSENT if is_passing else SendKind.REFUSED
    return SendOutcome(kind=kind, detail=text)
