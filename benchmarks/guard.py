"""The guard's healthy path against "build the key, look it up, call the handler".

Target: at most 2 x that with no skip by digest or rule, which are printed apart; with
100,000 skips at most 1.3 x the time with 10. And against the list of the article that
this comes from, where every message walks through all of it.

Nothing listens at the address: the healthy path asks nobody.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

from benchmarks._bench import compare as compared
from poisonguard import Guard
from poisonguard.contract import MatcherKind, Skip
from poisonguard.readers import Reader
from poisonguard.readers.plain import PlainReader

NUMBER = 100_000
FEWER = NUMBER // 10
LISTED = 1_000
TOPIC, GROUP = "orders", "billing"
RULE = json.dumps({"equals": "no", "header": "x"}, separators=(",", ":"))

Message = dict[str, Any]
Handler = Callable[[Message], object]
Handle = Callable[[Message, Handler], object]

compare = partial(compared, clock=thread_time)


def handler(message: Message) -> None:
    """Do what costs nothing."""


@contextmanager
def guarded(skips: int, *, reader: Reader | None = None) -> Iterator[Guard]:
    """Start a guard with so many skips, none of which matches."""
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
            guard.close(timeout=0)  # nobody is there to be told


def add(guard: Guard, kind: MatcherKind, value: str, *, number: int) -> None:
    """Put a skip into the list of a guard, as its link does."""
    skip = Skip(topic=TOPIC, kind=kind, value=value, id=number)
    guard.skips.put(skip, now=datetime.now(UTC))


def by_hand(skipped: set[tuple[str, str, str]]) -> Handle:
    """Make what a consumer has that looks messages up, and no more."""

    def handle(message: Message, handler: Handler) -> bool:
        if (TOPIC, GROUP, message["bookmark"]) in skipped:
            return False
        handler(message)
        return True

    return handle


def by_list(skipped: list[str]) -> Handle:
    """Make what the article has: a list, and a walk through it for each message."""

    def handle(message: Message, handler: Handler) -> bool:
        if message["bookmark"] in skipped:
            return False
        handler(message)
        return True

    return handle


def main() -> None:
    logging.disable()
    some = [{"bookmark": f"b-{n}", "seq": n, "body": b"{}"} for n in range(NUMBER)]

    def each(handle: Handle, number: int = NUMBER) -> Callable[[], None]:
        def work() -> None:
            for message in some[:number]:
                handle(message, handler)

        return work

    look_up = by_hand({(TOPIC, GROUP, f"skipped-{n}") for n in range(10)})
    look_through = by_list([f"skipped-{n}" for n in range(LISTED)])
    with guarded(10) as few, guarded(100_000) as many:
        compare(
            "the healthy path",
            number=NUMBER,
            ours=each(few.handle),
            baseline=each(look_up),
            named="key, set and call",
        )
        compare(
            "with 100,000 skips",
            number=NUMBER,
            ours=each(many.handle),
            baseline=each(few.handle),
            named="with 10",
        )
    with guarded(10, reader=PlainReader()) as guard:
        compare(
            "numbered by the bookmark",
            number=NUMBER,
            ours=each(guard.handle),
            baseline=each(look_up),
            named="key, set and call",
        )
    for kind, value in (
        (MatcherKind.BODY_DIGEST, sha256(b"another").hexdigest()),
        (MatcherKind.RULE, RULE),
    ):
        with guarded(10) as plain, guarded(10) as other:
            add(other, kind, value, number=1_000_000)
            compare(
                f"with a skip by {kind}",
                number=FEWER,
                ours=each(other.handle, FEWER),
                baseline=each(plain.handle, FEWER),
                named="without",
            )
    with guarded(LISTED) as guard:
        compare(
            f"{LISTED:,} skips",
            number=FEWER,
            ours=each(guard.handle, FEWER),
            baseline=each(look_through, FEWER),
            named="the article's list",
        )


if __name__ == "__main__":
    main()
