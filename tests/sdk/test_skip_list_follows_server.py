from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from poisonguard.contract import Invalid, MatcherKind, Skip, parse_skip
from poisonguard.server.threads_shared_by_guards import Connection
from poisonguard.skipping import skip_list as lists
from poisonguard.skipping.skip_list import Fence, SkipList
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DIGEST = "ab" * 32


def skip(number: int | None = 1, **changes: Any) -> Skip:
    members = {"kind": MatcherKind.BOOKMARK, "value": "7-0", "topic": "orders"}
    return Skip(**{**members, "id": number, **changes})


@pytest.fixture
def applied() -> list[tuple[int, int]]:
    return []


def skip_list(applied: list[tuple[int, int]], **options: int) -> SkipList:
    return SkipList(
        topic="orders",
        consumer_group="billing",
        handler_version="2",
        tell_applied=lambda number, times: applied.append((number, times)),
        **options,
    )


@pytest.fixture
def mirror(applied: list[tuple[int, int]]) -> SkipList:
    return skip_list(applied)


# What applies


def test_each_kind_of_skip_is_in_its_own_mapping(mirror: SkipList) -> None:
    rule = '{"equals":"x","header":"k"}'
    for number, (kind, value) in enumerate(
        [
            ("bookmark", "b"),
            ("message_id", "m"),
            ("body_digest", DIGEST),
            ("rule", rule),
        ]
    ):
        mirror.put_listed(skip(number, kind=MatcherKind(kind), value=value), now=NOON)

    assert mirror.bookmarks["b"].id == 0
    assert mirror.message_ids["m"].id == 1
    assert mirror.digests[bytes.fromhex(DIGEST)].id == 2
    assert [r.skip.id for r in mirror.rules] == [3]
    assert mirror.rules[0].rule.matches(body=b"", headers=((b"K", b"x"),))


def test_a_list_is_exact_while_no_digest_and_no_rule_is_in_it(mirror: SkipList) -> None:
    states = [mirror.is_exact]
    for kind, value in [
        ("bookmark", "b"),
        ("message_id", "m"),
        ("body_digest", DIGEST),
    ]:
        mirror.put_listed(
            skip(len(states), kind=MatcherKind(kind), value=value), now=NOON
        )
        states.append(mirror.is_exact)
    mirror.remove(3, because="removed")

    assert states == [True, True, True, False]
    assert mirror.is_exact
    assert not mirror.digests


def test_the_bookmarks_that_are_skipped_are_those_that_are_listed(
    mirror: SkipList,
) -> None:
    states = []
    mirror.put_listed(skip(1, value="a"), now=NOON)
    mirror.put_listed(skip(2, value="a"), now=NOON)
    mirror.put_listed(skip(3, value="b"), now=NOON)
    for number in (1, 3, 2):
        states.append((mirror.skipped.copy(), set(mirror.bookmarks)))
        mirror.remove(number, because="removed")

    assert states == [({"a", "b"},) * 2, ({"a", "b"},) * 2, ({"a"},) * 2]
    assert mirror.skipped == set()


def test_on_kinds_is_called_when_the_kinds_in_force_change(mirror: SkipList) -> None:
    states: list[bool] = []
    mirror.on_kinds.append(lambda: states.append(mirror.is_plain))

    mirror.put_listed(skip(1), now=NOON)
    mirror.put_listed(skip(2, kind=MatcherKind.MESSAGE_ID, value="m"), now=NOON)
    mirror.put_listed(skip(3, kind=MatcherKind.BODY_DIGEST, value=DIGEST), now=NOON)
    mirror.remove(2, because="removed")
    mirror.remove(3, because="removed")

    assert states == [False, True]


@pytest.mark.parametrize(
    ("scope", "applies"),
    [
        ({}, True),
        ({"consumer_group": "billing"}, True),
        ({"consumer_group": "audit"}, False),
        ({"handler_version": "2"}, True),
        ({"handler_version": "1"}, False),
        ({"expires_at": NOON + timedelta(seconds=1)}, True),
        ({"expires_at": NOON}, False),
    ],
)
def test_a_skip_applies_to_whom_it_names(
    scope: dict[str, Any], applies: bool, mirror: SkipList
) -> None:
    mirror.put_listed(skip(**scope), now=NOON)
    mirror.load([skip(**scope)], now=NOON)

    assert bool(mirror.bookmarks) is applies


def test_a_consumer_without_a_version_is_named_by_no_version() -> None:
    mirror = SkipList(
        topic="orders",
        consumer_group="billing",
        handler_version=None,
        tell_applied=lambda *_: None,
    )

    mirror.put_listed(skip(handler_version="2"), now=NOON)

    assert not mirror.bookmarks


def test_of_two_that_match_the_same_one_stays_when_the_other_goes(
    mirror: SkipList,
) -> None:
    mirror.load([skip(1), skip(2, consumer_group="billing")], now=NOON)

    mirror.remove(2, because="removed")
    skip_id = mirror.bookmarks["7-0"].id
    mirror.remove(1, because="removed")

    assert skip_id == 1
    assert not mirror.bookmarks


def test_a_skip_that_was_changed_is_as_it_is_now(mirror: SkipList) -> None:
    mirror.put_listed(skip(reason="old"), now=NOON)
    mirror.put_listed(skip(reason="new"), now=NOON)
    reason = mirror.bookmarks["7-0"].reason

    mirror.put_listed(skip(handler_version="1"), now=NOON)

    assert reason == "new"
    assert not mirror.bookmarks


def test_expired_skips_are_removed_and_no_others(mirror: SkipList) -> None:
    for number in range(10):
        at = NOON + timedelta(minutes=number + 1)
        mirror.put_listed(skip(number, value=str(number), expires_at=at), now=NOON)
    mirror.put_listed(skip(99, value="for good"), now=NOON)
    mirror.remove(0, because="removed")

    mirror.expire(NOON + timedelta(minutes=4))
    mirror.remove(1, because="expired")  # the server says so, too

    assert list(mirror.bookmarks) == ["4", "5", "6", "7", "8", "9", "for good"]
    assert mirror.next_expiry == NOON + timedelta(minutes=5)


def test_skips_that_come_and_go_leave_nothing_behind(mirror: SkipList) -> None:
    for number in range(20_000):
        expiry = NOON + timedelta(days=30)
        mirror.put_listed(skip(number, value=str(number), expires_at=expiry), now=NOON)
        mirror.remove(number, because="passed")

    assert len(mirror) == 0
    assert len(mirror._expiries) <= 1_001
    assert not mirror._listed.loose


def test_a_new_snapshot_never_hides_what_stays(mirror: SkipList) -> None:
    mirror.load([skip(1, value="stays"), skip(2, value="goes")], now=NOON)
    missing, stop = [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            if "stays" not in mirror.bookmarks:
                missing.append(1)

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(60):
        others = [skip(n + 10, value=str(n + number)) for n in range(50)]
        mirror.load([*others, skip(1, value="stays")], now=NOON)
    stop.set()
    reader.join()

    assert not missing
    assert "goes" not in mirror.bookmarks


def test_the_dicts_a_reader_holds_stay_the_ones_that_count(mirror: SkipList) -> None:
    views = mirror.bookmarks, mirror.message_ids, mirror.digests

    mirror.load([skip(1)], now=NOON)

    assert views == (mirror.bookmarks, mirror.message_ids, mirror.digests)
    assert views[0] is mirror.bookmarks


# Our own


def test_an_own_skip_applies_at_once_and_is_replaced_by_the_servers(
    mirror: SkipList, applied: list[tuple[int, int]]
) -> None:
    own = skip(None, reason="just poisoned")
    mirror.add_own(own)
    own_skip = mirror.bookmarks["7-0"]
    mirror.applied(own)
    mirror.put_listed(skip(5), now=NOON)
    mirror.applied(mirror.bookmarks["7-0"])

    assert own_skip is own
    assert mirror.bookmarks["7-0"].id == 5
    assert applied == [(5, 1), (5, 1)]

    mirror.remove(5, because="removed")
    assert not mirror.bookmarks


def test_an_own_skip_survives_snapshots_that_lack_it_yet(mirror: SkipList) -> None:
    mirror.add_own(skip(None))

    mirror.load([], now=NOON)

    assert "7-0" in mirror.bookmarks


@pytest.mark.parametrize(
    ("poison", "asked_when", "stays"),
    [(7, "after", False), (7, "before", True), (None, "after", True)],
)
def test_a_snapshot_ends_an_own_skip_whose_report_was_answered_before(
    poison: int | None, asked_when: str, stays: bool, mirror: SkipList
) -> None:
    before = time.monotonic()
    mirror.add_own(skip(None, poison=poison))
    moments = {"before": before, "after": time.monotonic()}

    mirror.load([], now=NOON, asked_at=moments[asked_when])

    assert ("7-0" in mirror.bookmarks) is stays


def test_an_own_skip_that_a_current_list_lacks_ends_after_own_for(
    mirror: SkipList, clock: list[float]
) -> None:
    mirror.load([], now=NOON)
    mirror.add_own(skip(None))
    states = list[bool]()

    for _ in range(41):
        clock[0] += 15.0
        mirror.touch()
        states.append("7-0" in mirror.bookmarks)

    assert states == [True] * 39 + [False] * 2


def test_an_own_skip_survives_an_outage_and_the_list_decides_after_it(
    mirror: SkipList, clock: list[float]
) -> None:
    mirror.load([], now=NOON)
    mirror.add_own(skip(None))
    clock[0] += 1e6
    states = list[bool]()

    for _ in range(42):
        mirror.touch()
        states.append("7-0" in mirror.bookmarks)
        clock[0] += 15.0

    assert states == [True] * 40 + [False] * 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock that the test sets."""
    now = [1_000.0]
    monkeypatch.setattr(lists, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_counts_of_an_ended_own_skip_are_not_given_to_a_later_skip(
    applied: list[tuple[int, int]],
) -> None:
    mirror = skip_list(applied, own_limit=1)
    own = skip(None, expires_at=NOON)
    evicted = skip(None, value="8-0")

    mirror.add_own(own)
    mirror.applied(own)
    mirror.expire(NOON)
    mirror.applied(own)  # found before it left
    mirror.add_own(evicted)
    mirror.applied(evicted)
    mirror.add_own(skip(None, value="9-0"))
    mirror.put_listed(skip(5), now=NOON)
    mirror.put_listed(skip(6, value="8-0"), now=NOON)

    assert applied == []
    mirror.applied(own)  # found before the server's took its place
    assert applied == [(5, 1)]


def test_an_own_skip_is_not_added_where_the_server_has_one(mirror: SkipList) -> None:
    mirror.put_listed(skip(5), now=NOON)

    mirror.add_own(skip(None))
    mirror.remove(5, because="removed")

    assert not mirror.bookmarks


def test_own_skips_are_bounded_and_the_oldest_are_dropped(
    applied: list[tuple[int, int]],
) -> None:
    mirror = skip_list(applied, own_limit=3)

    for number in range(5):
        mirror.add_own(skip(None, value=str(number)))

    assert list(mirror.bookmarks) == ["2", "3", "4"]


def test_an_own_skip_may_expire(mirror: SkipList) -> None:
    mirror.add_own(skip(None, expires_at=NOON))

    mirror.expire(NOON)

    assert not mirror.bookmarks
    assert len(mirror) == 0


def test_every_change_and_every_skip_is_a_log_line_and_a_count(
    mirror: SkipList, caplog: pytest.LogCaptureFixture
) -> None:
    mirror.load([], now=NOON)
    with caplog.at_level(logging.INFO):
        mirror.put_listed(skip(5, by="user:anna", reason="it kills"), now=NOON)
        mirror.applied(mirror.bookmarks["7-0"])
        mirror.remove(5, because="expired")

    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines] == [
        "a skip was added",
        "skipped a message",
        "a skip was removed (expired)",
    ]
    assert all("user:anna" in line and "it kills" in line for line in lines)
    assert mirror.changes == {"added": 1, "skipped": 1, "removed": 1}


# The wire


def test_a_skip_is_read_from_the_wire() -> None:
    members = {
        "id": 3,
        "topic": "/sample/bookmarkStore",
        "matcher": {"kind": "rule", "value": {"pointer": "/a", "equals": None}},
        "consumer_group": None,
        "handler_version": "2",
        "expires_at": "2026-11-20T13:00:00+01:00",
        "reason": "it kills",
        "by": "user:anna",
        "at": "2026-11-20T12:00:00Z",
        "poison": 9,
        "revision": 4,
    }

    assert parse_skip(members) == Skip(
        id=3,
        topic="/sample/bookmarkStore",
        kind=MatcherKind.RULE,
        value='{"equals":null,"pointer":"/a"}',
        handler_version="2",
        expires_at=NOON,
        reason="it kills",
        by="user:anna",
        at=NOON,
        poison=9,
    )


@pytest.mark.parametrize(
    ("matcher", "pointer"),
    [
        (None, "/matcher"),
        ({"kind": "moon_phase", "value": "full"}, "/matcher/kind"),
        ({"kind": "body_digest", "value": "AB" * 32}, "/matcher/value"),
        ({"kind": "rule", "value": "x"}, "/matcher/value"),
        ({"kind": "bookmark", "value": 7}, "/matcher/value"),
    ],
)
def test_a_matcher_that_is_not_known_is_named(matcher: object, pointer: str) -> None:
    with pytest.raises(Invalid) as wrong:
        parse_skip({"id": 3, "topic": "orders", "matcher": matcher})

    assert wrong.value.pointer == pointer


# With a server


@pytest.fixture
def connection(server: FakeServer) -> Iterator[Connection]:
    connection = Connection([server.url], KEY)
    yield connection
    connection.close(1)


def joined(connection: Connection, **changes: Any) -> SkipList:
    wishes = {"topic": "orders", "consumer_group": "billing", "handler_version": None}
    return connection.skip_list(**{**wishes, **changes})


def test_a_list_is_loaded_when_start_returns_and_follows_every_change(
    server: FakeServer, connection: Connection
) -> None:
    server.skip_list.add(kind="bookmark", value="before")
    mirror = joined(connection)
    connection.start(60)
    first = set(mirror.bookmarks)

    later = server.skip_list.add(kind="message_id", value="later")
    server.until(lambda: "later" in mirror.message_ids)
    server.skip_list.remove(later["id"])
    server.until(lambda: not mirror.message_ids)

    assert first == {"before"}
    assert mirror.age is not None


def test_a_change_between_snapshot_and_stream_is_not_missed(
    server: FakeServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = server.call

    def and_then(*request: Any) -> Any:
        result = answer(*request)
        if request[:2] == ("GET", "/skips"):
            server.skip_list.add(kind="bookmark", value="between")
        return result

    monkeypatch.setattr(server, "call", and_then)
    mirror = joined(connection)
    connection.start(60)

    server.until(lambda: "between" in mirror.bookmarks)


def test_a_process_has_one_stream_for_all_its_topics(
    server: FakeServer, connection: Connection
) -> None:
    topics = ["orders", "/sample/bookmarkStore", "a,b"]
    mirrors = [joined(connection, topic=topic) for topic in topics]
    connection.start(60)
    server.until(lambda: server.stream.readers == 1)

    late = joined(connection, topic="late", consumer_group="audit")
    connection.start(60)
    for topic in [*topics, "late"]:
        server.skip_list.add(kind="bookmark", value=topic, topic=topic)

    for topic, mirror in zip([*topics, "late"], [*mirrors, late], strict=True):
        server.until(partial(_is_all, mirror, topic))
    server.until(lambda: server.stream.readers == 1)


def listed(mirror: SkipList) -> list[int]:
    """Return the ids of the server's skips in force."""
    return sorted(
        [*(number for _, number in mirror._listed.table.ids()), *mirror._listed.loose]
    )


def _is_all(mirror: SkipList, bookmark: str) -> bool:
    return list(mirror.bookmarks) == [bookmark]


def test_a_list_that_left_is_not_followed(
    server: FakeServer, connection: Connection
) -> None:
    orders, refunds = joined(connection), joined(connection, topic="refunds")
    connection.start(60)

    connection.leave(orders)
    server.skip_list.add(kind="bookmark", value="1")
    server.skip_list.add(kind="bookmark", value="2", topic="refunds")

    server.until(lambda: "2" in refunds.bookmarks)
    assert not orders.bookmarks


def test_lists_of_one_topic_get_what_is_theirs(
    server: FakeServer, connection: Connection
) -> None:
    billing, audit = joined(connection), joined(connection, consumer_group="audit")
    connection.start(60)

    server.skip_list.add(kind="bookmark", value="b", consumer_group="billing")
    server.skip_list.add(kind="bookmark", value="a", consumer_group="audit")
    server.skip_list.add(kind="bookmark", value="all")

    server.until(lambda: set(billing.bookmarks) == {"b", "all"})
    server.until(lambda: set(audit.bookmarks) == {"a", "all"})


def test_a_list_that_joins_late_has_what_the_others_of_its_topic_have(
    server: FakeServer, connection: Connection
) -> None:
    server.skip_list.add(kind="bookmark", value="1")
    first = joined(connection)
    connection.start(60)

    late = joined(connection, consumer_group="audit")
    connection.start(60)

    assert list(late.bookmarks) == list(first.bookmarks) == ["1"]


def test_cut_off_a_list_keeps_its_last_state_and_its_age_grows(
    server: FakeServer, connection: Connection
) -> None:
    server.skip_list.add(kind="bookmark", value="kept")
    mirror = joined(connection)
    connection.start(60)
    server.stop()
    server.until(lambda: (mirror.age or 0) > 1)

    assert "kept" in mirror.bookmarks
    assert any(warning.startswith("skips: ") for warning in connection.warnings)

    server.skip_list.add(kind="bookmark", value="meanwhile")
    server.start()
    server.until(lambda: "meanwhile" in mirror.bookmarks)
    server.until(lambda: (mirror.age or 0) < 1)
    assert connection.warnings == []


def test_a_frozen_server_is_waited_for(
    server: FakeServer, connection: Connection
) -> None:
    mirror = joined(connection)
    connection.start(60)
    server.faults.freeze()
    server.until(lambda: (mirror.age or 0) > 1)

    server.skip_list.add(kind="bookmark", value="meanwhile")
    server.faults.thaw()

    server.until(lambda: "meanwhile" in mirror.bookmarks)


@pytest.mark.parametrize("lost", ["skip_list.new_epoch", "stream.forget_events"])
def test_a_lost_or_pruned_store_is_loaded_again(
    lost: str, server: FakeServer, connection: Connection
) -> None:
    removed_skip = server.skip_list.add(kind="bookmark", value="gone")
    mirror = joined(connection)
    connection.start(60)
    server.stop()
    server.skip_list.remove(removed_skip["id"])
    server.skip_list.add(kind="bookmark", value="new")
    attrgetter(lost)(server)()
    server.start()

    server.until(lambda: set(mirror.bookmarks) == {"new"})


def test_an_own_skip_whose_removal_was_missed_ends_with_the_next_snapshot(
    server: FakeServer, connection: Connection
) -> None:
    mirror = joined(connection)
    connection.start(60)
    server_skip = server.skip_list.add(kind="bookmark", value="7-0", poison=3)
    server.until(lambda: "7-0" in mirror.bookmarks)
    server.skip_list.remove(server_skip["id"])
    server.until(lambda: not mirror.bookmarks)
    mirror.add_own(skip(None, poison=3))  # its thread was slower than the stream
    is_skipped = "7-0" in mirror.bookmarks

    server.skip_list.new_epoch()
    server.until(lambda: not mirror.bookmarks)

    assert is_skipped


def test_after_a_reset_of_a_live_stream_the_list_is_loaded_again(
    server: FakeServer, connection: Connection
) -> None:
    removed_skip = server.skip_list.add(kind="bookmark", value="gone")
    mirror = joined(connection)
    connection.start(60)
    with server.changed:
        del server.skip_list.skips[removed_skip["id"]]
        server.skip_list.new_epoch()

    server.until(lambda: not mirror.bookmarks)


def test_an_unknown_event_is_logged_and_the_rest_is_followed(
    server: FakeServer, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = joined(connection)
    connection.start(60)

    with caplog.at_level(logging.WARNING):
        server.skip_list.add(kind="moon_phase", value="full")
        server.skip_list.add(kind="bookmark", value="after")
        server.until(lambda: "after" in mirror.bookmarks)
        with server.changed:
            server.skip_list.announce("orders", "unskip", {"topic": "orders"})
        server.skip_list.add(kind="bookmark", value="after that")
        server.until(lambda: "after that" in mirror.bookmarks)

    assert "moon_phase" not in mirror.bookmarks
    assert "is not understood and not applied" in caplog.text
    assert "an event is not understood" in caplog.text


def event_text(kind: str, text: str) -> Callable[[str, dict[str, int]], str]:
    """Return a function that sends this event in place of a ping."""

    def write(epoch: str, at: dict[str, int]) -> str:
        place = ",".join(map(str, at.values()))
        return f"id: {epoch}.{place}\nevent: {kind}\n{text}\n"

    return write


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ping", "data:\n"),
        ("ping", ""),
        ("ping", "data: once a JSON object\n"),
        ("tide", "data: {high\n"),
        ("tide", f"data: {'[' * 200_000}\n"),
    ],
    ids=["empty", "none", "no JSON", "unknown", "unknown and deep"],
)
def test_the_data_of_a_ping_or_of_an_event_we_do_not_know_is_not_read(
    kind: str,
    text: str,
    server: FakeServer,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.stream.ping_every, server.stream.ping = 0.01, event_text(kind, text)
    mirror = joined(connection)
    connection.start(60)
    first = mirror.age

    server.skip_list.add(kind="bookmark", value="after")
    server.until(lambda: "after" in mirror.bookmarks)
    pinged = time.monotonic()
    server.until(lambda: pinged < time.monotonic() - (mirror.age or 0.0))

    assert first is not None
    assert "is not understood" not in caplog.text
    assert len(snapshots(server)) == 1


def test_an_event_that_is_nested_too_deep_ends_no_stream_for_good(
    server: FakeServer, connection: Connection
) -> None:
    deep = f"data: {'[' * 200_000}\n"
    mirror = joined(connection)
    connection.start(60)

    before, server.stream.ping = server.stream.ping, event_text("skip", deep)
    server.stream.cut()
    server.until(lambda: len(snapshots(server)) >= 2)
    server.stream.ping = before
    server.skip_list.add(kind="bookmark", value="after")

    server.until(lambda: "after" in mirror.bookmarks)


def snapshots(server: FakeServer) -> list[str]:
    """Return the requests for a whole list."""
    return [path for _, path, _ in server.requests if "/skips?" in path]


def test_an_expired_skip_leaves_by_itself(
    server: FakeServer, connection: Connection
) -> None:
    mirror = joined(connection)
    connection.start(60)
    soon = datetime.now(UTC) + timedelta(seconds=5)  # until then it has to arrive

    server.skip_list.add(kind="bookmark", value="1", expires_at=soon.isoformat())
    server.until(lambda: "1" in mirror.bookmarks)
    server.until(lambda: "1" not in mirror.bookmarks)

    assert datetime.now(UTC) >= soon


def test_a_skip_expires_by_the_servers_clock(
    server: FakeServer, connection: Connection
) -> None:
    server.date_shift = -7_200.0
    over_here = datetime.now(UTC) - timedelta(hours=1)

    server.skip_list.add(kind="bookmark", value="1", expires_at=over_here.isoformat())
    mirror, ticks = joined(connection), list[int]()
    connection.on_tick.append(lambda: ticks.append(1))
    connection.start(60)
    server.until(lambda: len(ticks) >= 2)

    assert "1" in mirror.bookmarks


def test_a_fence_calls_all_listeners_though_one_raises(
    server: FakeServer, connection: Connection
) -> None:
    mirror, fences = joined(connection), list[Fence]()
    mirror.on_fence.append(_fail)
    mirror.on_fence.append(fences.append)
    connection.start(60)
    server.until(lambda: server.stream.readers)

    server.until(lambda: _fenced(server) and fences)
    server.skip_list.add(kind="bookmark", value="after")

    assert fences[0] == Fence(
        client_name="billing-1", sub_id="eu", topic="orders", epoch=2
    )
    server.until(lambda: "after" in mirror.bookmarks)


def _fail(_: object = None) -> None:
    raise RuntimeError("so the test wants")


def _fenced(server: FakeServer) -> bool:
    server.skip_list.fence(
        client_name="billing-1", sub_id="eu", topic="orders", epoch=2
    )
    return True


def test_applied_skips_are_reported(server: FakeServer, connection: Connection) -> None:
    skip = server.skip_list.add(kind="bookmark", value="1")
    mirror = joined(connection, client_name="billing-1")
    connection.start(60)
    for _ in range(3):
        mirror.applied(mirror.bookmarks["1"])

    connection.reporter.flush(60)

    assert server.reports.applied == {skip["id"]: 3}
    request = next(body for _, path, body in server.requests if "applied" in path)
    assert request["applied"][0]["client_name"] == "billing-1"


@pytest.mark.parametrize("has_lines", [True, False])
def test_many_changes_through_many_cuts_leave_no_difference(
    has_lines: bool, server: FakeServer, connection: Connection
) -> None:
    server.has_lines = has_lines
    mirror, dice = joined(connection), random.Random(7)
    connection.start(60)
    faults = [
        server.stream.cut,
        server.skip_list.new_epoch,
        server.stream.forget_events,
    ]
    for step in range(1_000):
        if server.skip_list.skips and dice.random() < 0.5:
            server.skip_list.remove(dice.choice(list(server.skip_list.skips)))
        else:
            server.skip_list.add(kind="bookmark", value=str(dice.randrange(50)))
        if step % 100 == 0:
            server.stop()
            server.start()
        elif step % 20 == 0:
            dice.choice(faults)()

    expected = {
        listed_skip["matcher"]["value"]
        for listed_skip in server.skip_list.skips.values()
    }
    server.until(lambda: listed(mirror) == sorted(server.skip_list.skips))
    assert set(mirror.bookmarks) == expected
