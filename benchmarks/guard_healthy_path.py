"""The guard's healthy path against "build the key, look it up, call the handler".

The look-up is in a set of 100,000. Times are those of the thread; the output are
medians of interleaved rounds, with their targets. Reading a client's own id is measured
apart, as `Reader.number`, and allowed on top. The last comparison is with the list of
the article that this product comes from, which every message scans completely.

No server listens at the URL: the healthy path makes no request.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

from benchmarks._benchmark_harness import ROUNDS, seconds
from benchmarks._benchmark_harness import compare as compared
from poisonguard import Guard
from poisonguard.contract import MatcherKind, Skip
from poisonguard.handling.handled_counts_and_durations import MOST_RECENT
from poisonguard.readers import Reader
from poisonguard.readers.amps import AmpsReader
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.plain import BytesReader, PlainReader
from poisonguard.readers.redis_streams import RedisStreamsReader

NUMBER = 100_000
FEWER = NUMBER // 2
LISTED = 1_000
NOW = datetime.now(UTC)
TOPIC, GROUP = "orders", "billing"
# A typical order, in 200 bytes.
BODY = json.dumps(
    {
        "order": {"id": 12, "state": "shipped", "customer": "c-1234567"},
        "lines": [{"sku": "A-12", "number": 2}, {"sku": "B-7", "number": 11}],
        "placed_at": "2026-11-20T12:00:31Z",
        "note": "at the door",
    }
).encode()

Message = dict[str, Any]
Handler = Callable[[Message], object]
Handle = Callable[[Message, Handler], object]

compare = partial(compared, clock=thread_time)


def handler(message: Message) -> None:
    """Handle a message by doing nothing."""


@contextmanager
def guarded(skips: int, *, reader: Reader | None = None) -> Iterator[Guard]:
    """Start a guard with this many skips, none of which matches."""
    with TemporaryDirectory() as folder:
        guard = Guard(
            topic=TOPIC,
            consumer_group=GROUP,
            url="http://127.0.0.1:1",
            api_key="none",
            reader=reader or PlainReader(seq="seq"),
            journal=folder,
            when_unloaded="start",
            start_timeout=0.1,
        )
        guard.start()
        for n in range(skips):
            add(guard, MatcherKind.BOOKMARK, f"skipped-{n}", number=n)
        try:
            yield guard
        finally:
            guard.close(timeout=0)  # there is no server to report to


def add(guard: Guard, kind: MatcherKind, value: str, *, number: int) -> None:
    """Put a skip into a guard's skip list, as its connection does."""
    skip = Skip(topic=TOPIC, kind=kind, value=value, id=number)
    guard.skips.put_listed(skip, now=datetime.now(UTC))


def by_hand(skipped: set[tuple[str, str, str]]) -> Handle:
    """Return a minimal handler that looks up each message in a set."""

    def handle(message: Message, handler: Handler) -> bool:
        if (TOPIC, GROUP, message["bookmark"]) in skipped:
            return False
        handler(message)
        return True

    return handle


def by_list(skipped: list[str]) -> Handle:
    """Return the article's handler, which scans a list for each message."""

    def handle(message: Message, handler: Handler) -> bool:
        if message["bookmark"] in skipped:
            return False
        handler(message)
        return True

    return handle


def costs(number: int, *works: Callable[[], object]) -> list[float]:
    """Time the functions in turn; return each one's median nanoseconds per message."""
    rounds = [
        [seconds(work, clock=thread_time) for work in works]
        for _ in range(2 * ROUNDS + 1)
    ]
    return [
        statistics.median(times) * 1e9 / number
        for times in zip(*rounds[1:], strict=True)  # the first warms up
    ]


def say(title: str, ours: float, named: str, theirs: float, target: float) -> None:
    """Print a guard's cost, another cost, their ratio and the target of the ratio."""
    ratio = ours / theirs
    verdict = "met" if ratio <= target else "MISSED"
    print(f"{title}: {ours:,.0f} ns, {named}: {theirs:,.0f} ns", end=", ")
    print(f"ratio {ratio:.2f} (target {target}: {verdict})")


# One message of each client, by its number


def plain(n: int) -> Message:
    """Make the n-th message as a mapping."""
    return {"bookmark": f"b-{n}", "seq": n, "body": BODY, "at": NOW}


def from_rabbitmq(n: int) -> Any:
    """Make the n-th message as pika hands it out."""
    from pika.spec import Basic, BasicProperties

    method = Basic.Deliver(consumer_tag="ctag1", delivery_tag=n)
    headers = {"tenant": "eu"} if n % 2 else None
    return method, BasicProperties(message_id=f"m-{n}", headers=headers), BODY


def from_redis(n: int) -> Any:
    """Make the n-th message as redis-py returns it."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    return f"{now + n}-0".encode(), {b"body": BODY, b"tenant": b"eu"}


def from_amps(n: int) -> Any:
    """Make the n-th message as the AMPS client hands it out."""
    from AMPS import Message

    message = Message()
    message.set_bookmark(f"1234567|{n}|")
    message.set_data("{}")
    return message


READERS: tuple[tuple[str, Reader, Callable[[int], Any]], ...] = (
    ("plain, numbered by seq", PlainReader(seq="seq"), plain),
    ("plain, numbered by the bookmark", PlainReader(), plain),
    ("plain, with an age", PlainReader(seq="seq", enqueued_at="at"), plain),
    ("pika", PikaReader(), from_rabbitmq),
    ("Redis Streams", RedisStreamsReader(), from_redis),
    ("AMPS", AmpsReader(), from_amps),
    ("bytes and nothing else", BytesReader(), lambda n: b"%08d" % n + BODY[8:]),
)


def healthy() -> None:
    """Print each reader's guard's cost against a look-up and reading the message id.

    Of the reading only the loop is subtracted, not the first touch of a client's
    object: each of 100,000 is a miss of the processor's cache.
    """
    look_up = look_up_by(lambda n: f"skipped-{n}")
    for name, reader, message in READERS:
        some = [message(n) for n in range(NUMBER)]
        plain_ones = [plain(n) for n in range(NUMBER)]
        with guarded(10, reader=reader) as guard:
            ours, theirs, own_id, nothing = costs(
                NUMBER,
                each(guard.handle, some),
                each(look_up, plain_ones),
                each(reading_ids(reader), some),
                each(lambda _, __: None, [None] * NUMBER),
            )
        allowed = 2 * theirs + own_id - nothing
        named = f"2 x look-up ({theirs:,.0f}) + own id ({own_id - nothing:,.0f})"
        say(f"the healthy path, {name}", ours, named, allowed, 1)


def reading_ids(reader: Reader) -> Handle:
    number = reader.number
    return lambda message, _: number(message)


def look_up_by(key: Callable[[int], str]) -> Handle:
    """Return a handler that looks a message's key up in 100,000 keys."""
    return by_hand({(TOPIC, GROUP, key(n)) for n in range(100_000)})


def each(handle: Handle, some: list[Any]) -> Callable[[], None]:
    """Return a function that calls `handle` for each of these messages."""

    def work() -> None:
        for message in some:
            handle(message, handler)

    return work


def flat() -> None:
    """Print the cost of a guard with 100,000 skips against one with 10, per message."""
    some = [plain(n) for n in range(NUMBER)]
    with guarded(10) as few, guarded(100_000) as many:
        ours, theirs = costs(NUMBER, each(many.handle, some), each(few.handle, some))
    say("with 100,000 skips", ours, "with 10", theirs, 1.3)


def by_content() -> None:
    """Print a guard's cost with one skip by digest or rule, for bodies of 200 bytes."""
    some = [plain(n) for n in range(FEWER)]
    look_up = look_up_by(lambda n: f"skipped-{n}")
    for name, kind, value, target in (
        ("digest", MatcherKind.BODY_DIGEST, sha256(b"another").hexdigest(), 9),
        ("header rule", MatcherKind.RULE, rule(header="x"), 13),
        ("pointer rule", MatcherKind.RULE, rule(pointer="/order/state", to="lost"), 13),
        ("rule of another value", MatcherKind.RULE, rule(pointer="/sku", to="x"), 13),
        # Only such a body is parsed: the member stands in it, but elsewhere.
        ("rule that parses", MatcherKind.RULE, rule(pointer="/sku", to="A-12"), 13),
    ):
        with guarded(10) as guard:
            add(guard, kind, value, number=1_000_000)
            ours, theirs, digest, nothing = costs(
                FEWER,
                each(guard.handle, some),
                each(look_up, some),
                each(lambda m, _: sha256(m["body"]).digest(), some),
                each(lambda m, _: m["body"], some),
            )
        besides = digest - nothing if kind is MatcherKind.BODY_DIGEST else 0.0
        say(f"with a skip by {name}", ours - besides, "look-up", theirs, target)


def rule(*, to: str = "no", **members: str) -> str:
    """Write the content rule of a benchmark's skip in its canonical JSON."""
    return json.dumps({**members, "equals": to}, sort_keys=True, separators=(",", ":"))


def noting() -> None:
    """Print the cost of remembering a message's number, to report it as handled.

    The healthy path above includes it, since 0.3.
    """
    recent: deque[object] = deque(maxlen=MOST_RECENT)
    some = list(range(NUMBER))
    note, nothing = costs(
        NUMBER,
        each(lambda m, _: recent.append(m), some),
        each(lambda _, __: None, some),
    )
    print(f"to remember the number of a message: {note - nothing:,.0f} ns of those")


def article() -> None:
    """Compare a guard with the article's handler, which scans a list of skips."""
    look_through = by_list([f"skipped-{n}" for n in range(LISTED)])
    some = [plain(n) for n in range(FEWER)]
    with guarded(LISTED) as guard:
        compare(
            f"{LISTED:,} skips",
            number=FEWER,
            ours=each(guard.handle, some),
            baseline=each(look_through, some),
            named="the article's list",
        )


def main() -> None:
    logging.disable()
    healthy()
    flat()
    by_content()
    noting()
    article()


if __name__ == "__main__":
    main()
