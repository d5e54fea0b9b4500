"""Messages to whom their broker gave no bookmark."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from poisonguard import Outcome
from poisonguard.readers import Reader
from poisonguard.readers.plain import PlainReader
from tests.sdk.fake_poisonweb_server import FakeServer, Json
from tests.sdk.guard_and_handler_builders import Failing, Handler, guarding, message

HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED
POISONED, RELEASE = Outcome.POISONED, Outcome.RELEASE


class Own(Reader):
    """A reader as an application writes one."""

    replays = True

    def bookmark(self, message: Any) -> str:
        return str(message["bookmark"] or "")

    def body(self, message: Any) -> bytes:
        return bytes(message["body"])


def needs_a_bookmark(item: Json) -> str | None:
    return None if item["bookmark"] else "is empty: send the broker's id."


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize("bookmark", ["", None])
@pytest.mark.parametrize("reader", [PlainReader(replays=True), Own()])
def test_poisons_without_a_bookmark_are_kept_and_told_apart(
    server: FakeServer, bookmark: str | None, reader: Reader
) -> None:
    server.reports.rejects = needs_a_bookmark
    bodies = [b"one", b"two"]
    messages = [message(body=body) | {"bookmark": bookmark} for body in bodies]

    with guarding(server, reader=reader) as guard:
        first = [guard.handle(m, Failing(ValueError())) for m in messages]
        again = [guard.handle(m, handler := Handler()) for m in messages]

    assert (first, again) == ([POISONED] * 2, [SKIPPED] * 2)
    assert handler.calls == []
    bookmarks = [item["bookmark"] for item in server.reports.failures.values()]
    assert bookmarks == [*map(digest_of, bodies)]


def test_one_poison_without_a_bookmark_does_not_have_the_others_skipped(
    server: FakeServer,
) -> None:
    server.skip_list.add(kind="bookmark", value=digest_of(b"bad"))

    with guarding(server, reader=Own()) as guard:
        bad, good = (
            guard.handle({"bookmark": "", "body": body}, Handler())
            for body in (b"bad", b"good")
        )

    assert (bad, good) == (SKIPPED, HANDLED)


def test_a_message_without_a_bookmark_is_known_by_its_message_id(
    server: FakeServer,
) -> None:
    server.skip_list.add(kind="message_id", value="m-1")

    with guarding(server) as guard:
        one, other = (
            guard.handle(message("", message_id=name), Handler())
            for name in ("m-1", "m-2")
        )

    assert (one, other) == (SKIPPED, HANDLED)
