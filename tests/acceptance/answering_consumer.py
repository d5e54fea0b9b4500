"""A consumer of a stream in a thread, which answers each redriven message."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from django.db import connections
from redis import Redis

from apps.capture.intake import services
from apps.core import clock
from tests.failure_report_builders import GUARD, capture, failure

TOPIC, GROUP = "orders", "billing"
MARK = b"x-poisonweb-redrive"
PAGE = 1_000

Fields = dict[bytes, bytes]
Entries = list[tuple[bytes, Fields]]


def is_even(body: bytes) -> bool:
    """Handle the messages of an even number `n`."""
    return bool(json.loads(body)["n"] % 2 == 0)


class AnsweringConsumer:
    """Answers each message: those that `is_handled` accepts are handled, others fail.

    A copy of a message is answered like the first if `is_handled` looks at its body.
    """

    def __init__(
        self, stream: Redis, *, is_handled: Callable[[bytes], bool] = is_even
    ) -> None:
        self._stream = stream
        self._is_handled = is_handled
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._stream.xgroup_create(TOPIC, GROUP, id="0", mkstream=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def answer_rest(self) -> None:
        """Answer all messages that are in the stream now. The thread has ended."""
        while entries := self.read():
            self._answer(entries)

    def read(self, *, most: int = 50) -> Entries:
        """Read the stream's next messages; none if none comes for a moment."""
        read: Any = self._stream.xreadgroup(
            GROUP, "billing-1", {TOPIC: ">"}, count=most, block=100, noack=True
        )
        return read[0][1] if read else []

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._answer(self.read())
        finally:
            connections.close_all()

    def _answer(self, entries: Entries) -> None:
        now = clock.now()
        handled, failed = list[object](), list[dict[str, object]]()
        for bookmark, fields in entries:
            fields_of_report = {"redrive": fields[MARK].decode()}
            if self._is_handled(fields[b"body"]):
                member = failure(now, **fields_of_report)
                handled.append({**member, "at": member["failed_at"]})
            else:
                fields_of_report |= {"bookmark": bookmark.decode()}
                failed.append(failure(now, body=fields[b"body"], **fields_of_report))
        capture(now, *failed)
        services.confirm(members=handled, principal=GUARD, now=now)


def messages(stream: Redis) -> Iterator[Fields]:
    """Yield the fields of all messages of the stream, oldest first."""
    start = "-"
    while page := stream.xrange(TOPIC, min=start, count=PAGE):
        entries: Any = page
        yield from (fields for _, fields in entries)
        start = "(" + entries[-1][0].decode()


def capture_many(number: int, *, batch: str) -> None:
    """Capture messages with a number `n` each; the error's type is the batch."""
    now = clock.now()
    why = {"type": batch, "message": "", "traceback": ""}
    for start in range(0, number, PAGE):
        some = range(start, min(start + PAGE, number))
        bodies = (json.dumps({"batch": batch, "n": n}).encode() for n in some)
        capture(now, *(failure(now, body=body, exception=why) for body in bodies))
