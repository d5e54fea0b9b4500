"""What the healthy path looks at, and what it leaves to the long way."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from pika.spec import Basic, BasicProperties

from poisonguard import Outcome, RetryPolicy, Stopping
from poisonguard.contract import MatcherKind, Skip
from poisonguard.handling import healthy_path
from poisonguard.readers import Headers, Reader, header_pairs
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.plain import BytesReader, PlainReader
from poisonguard.readers.redis_streams import RedisStreamsReader
from poisonguard.skipping.skip_list import SkipList
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.guard_and_handler_builders import REDRIVE, Handler, guarding, message
from tests.sdk.test_guard_styles import unstarted

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
def test_fast_numbers_of_plain_messages_equal_the_slow_ones(
    seq: str | None, members: dict[str, Any]
) -> None:
    reader, skipped = PlainReader(seq=seq), {"skipped", "13"}
    one_message = {"bookmark": "b-1", "seq": 0, **members}

    fast, slow = reader.numbering(skipped), Reader.numbering(reader, skipped)

    assert fast(one_message) == slow(one_message)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bookmark", "b-2"),
        ("message_id", "m-2"),
        ("rule", '{"equals":"m-2","pointer":"/message_id"}'),
    ],
)
def test_a_skip_of_any_kind_applies_while_it_is_listed(
    server: FakeServer, kind: str, value: str
) -> None:
    skip = Skip(topic="orders", kind=MatcherKind(kind), value=value, id=1_000)
    messages = [
        {"bookmark": f"b-{n}", "message_id": f"m-{n}", "headers": {}} for n in (1, 2)
    ]
    handler = Handler()

    with guarding(server) as guard:
        outcomes = [[guard.handle(m, handler) for m in messages]]
        guard.skips.put_listed(skip, now=NOON)
        outcomes.append([guard.handle(m, handler) for m in messages])
        guard.skips.remove(1_000, because="removed")
        outcomes.append([guard.handle(m, handler) for m in messages])

    assert outcomes == [[HANDLED, HANDLED], [HANDLED, SKIPPED], [HANDLED, HANDLED]]


def test_guard_skips_is_the_list_of_a_started_guard(server: FakeServer) -> None:
    server.skip_list.add(kind="bookmark", value="b-1")

    with guarding(server) as guard:
        skips = guard.skips

    assert "b-1" in skips.bookmarks
    assert skips.topic == "orders"


def test_guard_skips_raises_before_the_start(server: FakeServer) -> None:
    guard = unstarted(server)

    with pytest.raises(Stopping, match="start it"):
        assert guard.skips


def test_one_message_in_64_is_timed(server: FakeServer) -> None:
    with guarding(server) as guard:
        for n in range(129):
            guard.handle(message(f"b-{n}"), Handler())

    samples = [
        sum(counter["duration_ms_hist"].values())
        for counter in server.reports.counters.values()
    ]
    assert sum(samples) == 3
    assert server.reports.totals()["handled"] == 129


@pytest.mark.parametrize(
    "entry",
    [
        (b"1763640000000-0", {b"body": b"{}"}),
        ("1763640000000-7", {"body": "{}"}),
        (b"1763640000000", {}),
        (b"7-0", {b"body": b"{}"}),
        ("7-0", {}),
        (b"5-1048575", {}),
        (b"5-1048576", {}),
        (b"99999999999999999999-0", {}),
        (b"5-0", {b"x-poisonweb-redrive": REDRIVE.encode()}),
        (b"5-0", {"x-poisonweb-redrive": REDRIVE}),
        (b"5-0", [(b"body", b"{}")]),
        (b"5-0", [(b"x-poisonweb-redrive", REDRIVE.encode())]),
        (b"5-0", []),
    ],
)
def test_fast_numbers_of_stream_entries_equal_the_slow_ones(entry: Any) -> None:
    reader = RedisStreamsReader()

    fast, slow = reader.numbering({"7-0"}), Reader.numbering(reader, {"7-0"})

    assert fast(entry) == slow(entry)


@pytest.mark.parametrize("message_id", ["m-1", "é", "skipped", "", None])
@pytest.mark.parametrize(
    "headers", [None, {}, {"tenant": "eu"}, {"x-poisonweb-redrive": REDRIVE}]
)
def test_fast_numbers_of_deliveries_equal_the_slow_ones(
    message_id: Any, headers: Any
) -> None:
    reader, skipped = PikaReader(), {"skipped"}
    properties = BasicProperties(message_id=message_id, headers=headers)
    delivery = (Basic.Deliver(consumer_tag="c", delivery_tag=3), properties, b"{}")

    fast, slow = reader.numbering(skipped), Reader.numbering(reader, skipped)

    assert fast(delivery) == slow(delivery)


class IdReader(Reader):
    """The least reader there is; with numbers of its own it is read at a glance."""

    def bookmark(self, message: Any) -> str:
        return str(message["id"])

    def body(self, message: Any) -> bytes:
        return b""

    def headers(self, message: Any) -> Headers:
        return header_pairs(message.get("headers", ()))

    def message_id(self, message: Any) -> str | None:
        message_id: str | None = message.get("message_id")
        return message_id


class NumberedReader(IdReader):
    def number(self, message: Any) -> int:
        return super().number(message)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"id": ""},
        {"id": "skipped"},
        {"message_id": "m-1"},
        {"headers": {"tenant": "eu"}},
        {"headers": {"x-poisonweb-redrive": REDRIVE}},
    ],
)
def test_a_reader_without_numbers_of_its_own_is_read_alike(
    members: dict[str, Any],
) -> None:
    members_of_it = {"id": "b-1", **members}

    numbers = [
        reader.numbering({"skipped"})(members_of_it)
        for reader in (IdReader(), NumberedReader())
    ]

    assert numbers[0] == numbers[1]
    assert bool(numbers[0]) is not bool({"id", "x-poisonweb-redrive"} & _names(members))


def _names(members: dict[str, Any]) -> set[str]:
    return {*members, *members.get("headers", ())}


def test_bytes_are_numbered_as_by_their_digest() -> None:
    reader = BytesReader()
    skipped = {reader.bookmark(b"bad")}

    numbers = [reader.numbering(skipped)(body) for body in (b"good", b"bad")]

    assert numbers == [reader.number(b"good"), 0]


WEEK = timedelta(days=7)


@pytest.mark.parametrize(
    ("reader", "entry"),
    [
        (
            RedisStreamsReader(),
            lambda at: (f"{int(at.timestamp() * 1000)}-9".encode(), {}),
        ),
        (
            PlainReader(seq="seq", enqueued_at="at"),
            lambda at: {"bookmark": "b", "seq": 6, "at": at},
        ),
        (
            PlainReader(enqueued_at="at"),
            lambda at: {"bookmark": "b", "at": at.timestamp()},
        ),
    ],
)
def test_messages_that_expire_within_a_second_take_the_slow_path(
    reader: Reader,
    entry: Callable[[datetime], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [NOON]
    number = healthy_path.numbering(
        reader=reader,
        skips=listing(),
        policy=RetryPolicy(expire_after=WEEK.total_seconds()),
        clock=lambda: now[0],
    )
    young, old = NOON - WEEK + timedelta(seconds=2), NOON - WEEK

    numbered = [bool(number(entry(at))) for at in (NOON, young, old)]
    now[0] += timedelta(seconds=2)
    # It asks for the time once a second, by the clock of this machine.
    monkeypatch.setattr(healthy_path, "monotonic", lambda: time.monotonic() + 2)

    assert numbered == [True, True, False]
    assert not number(entry(young))
    assert number(entry(NOON))


def test_the_age_that_a_subclass_reads_counts() -> None:
    class OwnAge(PlainReader):
        def enqueued_at(self, message: Any) -> datetime | None:
            return message.get("born")  # type: ignore[no-any-return]

    number = healthy_path.numbering(
        reader=OwnAge(seq="seq", enqueued_at="at"),
        skips=listing(),
        policy=RetryPolicy(expire_after=WEEK.total_seconds()),
        clock=lambda: NOON,
    )
    one_message = {"bookmark": "b", "seq": 6, "at": NOON}

    assert number({**one_message, "born": NOON}) == 7
    assert number({**one_message, "born": NOON - WEEK}) == 0


@pytest.mark.parametrize("expire_after", [0.5, 1e9, 1e15, None])
def test_any_expire_after_can_be_used(expire_after: float | None) -> None:
    number = healthy_path.numbering(
        reader=PlainReader(seq="seq", enqueued_at="at"),
        skips=listing(),
        policy=RetryPolicy(expire_after=expire_after),
        clock=lambda: NOON,
    )
    one_message = {"bookmark": "b", "seq": 6, "at": NOON}

    assert number(one_message) == (0 if expire_after == 0.5 else 7)
    assert number({"bookmark": "b", "seq": 6}) == 7


def listing(*skips: Skip) -> SkipList:
    mine = SkipList(
        topic="orders",
        consumer_group="billing",
        handler_version=None,
        tell_applied=lambda *_: None,
    )
    mine.load(skips, now=NOON)
    return mine


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("body_digest", sha256(b'{"a": 1}').hexdigest()),
        ("message_id", "m-2"),
        ("rule", '{"equals":1,"pointer":"/a"}'),
        ("rule", '{"equals":"eu","header":"Tenant"}'),
    ],
)
def test_only_messages_with_a_skip_leave_the_healthy_path(
    kind: str, value: str
) -> None:
    skip = Skip(topic="orders", kind=MatcherKind(kind), value=value, id=1)
    number = healthy_path.numbering(
        reader=PlainReader(seq="seq"),
        skips=listing(skip),
        policy=RetryPolicy(),
        clock=lambda: NOON,
    )
    meant = {
        "bookmark": "b",
        "seq": 6,
        "message_id": "m-2",
        "headers": {"tenant": "eu"},
        "body": b'{"a": 1}',
    }
    other = {
        "bookmark": "b",
        "seq": 6,
        "message_id": "m-3",
        "headers": {"tenant": "us"},
        "body": b'{"a": 2}',
    }

    assert number(meant) == 0
    assert number(other) == 7
    assert number({**meant, "body": bytearray(b'{"a": 1}')}) == 0


def test_a_rule_added_later_applies() -> None:
    skips = listing(
        Skip(topic="orders", kind=MatcherKind.BODY_DIGEST, value="ab" * 32, id=1)
    )
    number = healthy_path.numbering(
        reader=PlainReader(seq="seq"),
        skips=skips,
        policy=RetryPolicy(),
        clock=lambda: NOON,
    )
    one_message = {"bookmark": "b", "seq": 6, "body": b'{"a": 1}'}
    numbers = [number(one_message)]

    value = '{"equals":1,"pointer":"/a"}'
    rule = Skip(topic="orders", kind=MatcherKind.RULE, value=value, id=2)
    skips.put_listed(rule, now=NOON)
    numbers.append(number(one_message))
    skips.remove(2, because="removed")

    assert [*numbers, number(one_message)] == [7, 0, 7]
