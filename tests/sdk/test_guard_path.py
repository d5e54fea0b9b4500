"""What the healthy path looks at, and what it leaves to the long way."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from poisonguard import Outcome, Stopping
from poisonguard.contract import MatcherKind, Skip
from poisonguard.readers import Reader
from poisonguard.readers.plain import PlainReader
from tests.sdk.guarded import REDRIVE, Handler, guarding, message
from tests.sdk.server import Server
from tests.sdk.test_guard_shapes import unstarted

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"bookmark": 7},
        {"bookmark": "skipped"},
        {"bookmark": 13},
        {"message_id": "m-1"},
        {"headers": None},
        {"headers": {"tag": "a"}},
        {"headers": [("tag", "a")]},
        {"headers": {"x-poisonweb-redrive": REDRIVE}},
        {"headers": {b"x-poisonweb-redrive": b"x"}},
        {"headers": [("x-poisonweb-redrive", REDRIVE)]},
    ],
)
@pytest.mark.parametrize("seq", [None, "seq"])
def test_what_numbers_plain_messages_fast_agrees_with_the_slow_way(
    seq: str | None, members: dict[str, Any]
) -> None:
    reader, skipped = PlainReader(seq=seq), {"skipped", "13"}
    told = {"bookmark": "b-1", "seq": 0, **members}

    fast, slow = reader.numbering(skipped), Reader.numbering(reader, skipped)

    assert fast(told) == slow(told)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bookmark", "b-2"),
        ("message_id", "m-2"),
        ("rule", '{"equals":"m-2","pointer":"/message_id"}'),
    ],
)
def test_a_skip_of_any_kind_that_comes_and_goes_is_heeded_meanwhile(
    server: Server, kind: str, value: str
) -> None:
    skip = Skip(topic="orders", kind=MatcherKind(kind), value=value, id=1_000)
    told = [
        {"bookmark": f"b-{n}", "message_id": f"m-{n}", "headers": {}} for n in (1, 2)
    ]
    handler = Handler()

    with guarding(server) as guard:
        outcomes = [[guard.handle(m, handler) for m in told]]
        guard.skips.put(skip, now=NOON)
        outcomes.append([guard.handle(m, handler) for m in told])
        guard.skips.remove(1_000, because="removed")
        outcomes.append([guard.handle(m, handler) for m in told])

    assert outcomes == [[HANDLED, HANDLED], [HANDLED, SKIPPED], [HANDLED, HANDLED]]


def test_a_started_guard_shows_what_it_skips(server: Server) -> None:
    server.add_skip(kind="bookmark", value="b-1")

    with guarding(server) as guard:
        skips = guard.skips

    assert "b-1" in skips.bookmarks
    assert skips.topic == "orders"


def test_a_guard_that_was_not_started_has_no_skip_list(server: Server) -> None:
    guard = unstarted(server)

    with pytest.raises(Stopping, match="start it"):
        assert guard.skips


def test_one_message_in_so_many_is_timed(server: Server) -> None:
    with guarding(server) as guard:
        for n in range(129):
            guard.handle(message(f"b-{n}"), Handler())

    samples = [
        sum(counter["duration_ms_hist"].values())
        for counter in server.counters.values()
    ]
    assert sum(samples) == 3
    assert server.totals()["handled"] == 129
