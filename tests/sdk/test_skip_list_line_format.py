"""The list in lines says what the list in JSON says, and takes whatever comes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poisonguard.contract import MatcherKind, Skip, parse_skip
from poisonguard.errors import Away
from poisonguard.server import response_reading
from poisonguard.server.http_client import Client
from poisonguard.server.skip_stream import _read_json, _read_lines
from poisonguard.skipping import listed_skips, skip_list_line_format, skip_table
from poisonguard.skipping.skip_list import Doubt, SkipList
from poisonguard.testing.web import lines_of
from tests.sdk.fake_poisonweb_server import KEY, FakeServer, Json

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Lines:
    """An answer of lines, as a client gives them."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def lines(self, *, longest: int) -> Iterator[bytes]:
        assert all(len(line) <= longest for line in self._lines)
        return iter(self._lines)


def mirror() -> SkipList:
    return SkipList(
        topic="orders",
        consumer_group="billing",
        handler_version="2",
        tell_applied=lambda *_: None,
    )


def by_json(answer: Json) -> SkipList:
    content = json.loads(json.dumps(answer))
    return _loaded(lambda table: _read_json(content, [table])[1])


def by_lines(answer: Json) -> SkipList:
    lines: Any = Lines(list(lines_of(answer)))
    return _loaded(lambda table: _read_lines(lines, "orders", [table])[1])


def _loaded(read: Any) -> SkipList:
    mine = mirror()
    table = mine.table(now=NOON)
    suspects = read(table)
    mine.load(table, suspects=suspects, now=NOON)
    return mine


def facts(mine: SkipList) -> Json:
    """Return all observable state of a list."""
    return {
        "bookmarks": dict(mine.bookmarks),
        "message_ids": dict(mine.message_ids),
        "digests": dict(mine.digests),
        "rules": list(mine.rules),
        "skipped": mine.skipped,
        "kinds": (mine.is_exact, mine.is_plain),
        "expiry": mine.next_expiry,
        "suspects": {key: _doubt_key(doubt) for key, doubt in mine.suspects.items()},
        "number": len(mine),
        "added": mine.changes["added"],
    }


def _doubt_key(doubt: Doubt) -> tuple[Skip, str | None, int | None]:
    return doubt.skip, doubt.message_id, doubt.seq


# Any character, also those that UTF-8 has no bytes for.
texts = st.text(st.characters(), max_size=5)
moments = st.integers(-(10**10), 10**11).map(
    lambda since: (NOON + timedelta(microseconds=since)).isoformat()
)
matchers = st.one_of(
    st.builds(
        lambda kind, value: {"kind": kind, "value": value},
        st.sampled_from(["bookmark", "message_id"]),
        st.sampled_from(["a", "b", "c"]) | texts,
    ),
    st.binary(min_size=32, max_size=32).map(
        lambda digest: {"kind": "body_digest", "value": digest.hex()}
    ),
    st.sampled_from(
        [
            {"header": "x", "equals": "y"},
            {"pointer": "/a", "equals": None},
            {"pointer": "", "equals": 1.5},
        ]
    ).map(lambda rule: {"kind": "rule", "value": rule}),
)
wire = st.fixed_dictionaries(
    {
        "topic": st.just("orders"),
        "matcher": matchers,
        "consumer_group": st.sampled_from([None, "billing", "audit"]),
        "handler_version": st.sampled_from([None, "1", "2"]),
        "redrive": st.none() | st.uuids().map(str),
        "expires_at": st.none() | moments,
        "reason": st.sampled_from(["", "exhausted"]) | texts,
        "by": st.sampled_from(["system:capture", ""]),
        "at": moments,
        "poison": st.none() | st.integers(0, 2**62),
    }
)
known_by = {"message_id": st.none() | texts, "seq": st.none() | st.integers(0, 9)}


@st.composite
def snapshots(draw: st.DrawFn) -> Json:
    """Make a snapshot with ids of its own for all, in their order."""
    numbers = iter(sorted(draw(st.sets(st.integers(0, 2**62), min_size=24))))
    skips = draw(st.lists(wire, max_size=20))
    suspects = [{**draw(wire), **draw(st.fixed_dictionaries(known_by))}]
    return {
        "epoch": "e1",
        "revision": 7,
        "skips": [{"id": next(numbers), **skip} for skip in skips],
        "suspects": [{"id": next(numbers), **each} for each in suspects],
    }


@settings(max_examples=100, deadline=None)
@given(snapshots())
def test_lines_and_json_load_the_same_skips(answer: Json) -> None:
    assert facts(by_lines(answer)) == facts(by_json(answer))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), wire), max_size=30), st.data())
def test_a_loaded_table_changes_like_skips_added_one_by_one(
    entries: list[tuple[int, Json]], data: st.DataObject
) -> None:
    """Load a part of it, then put and remove the rest: as if all had been put."""
    all_of_it = [parse_skip({"id": number, **skip}) for number, skip in entries]
    middle = data.draw(st.integers(0, len(all_of_it)))
    loaded = {_number(skip): skip for skip in all_of_it[:middle]}
    packed, loose = mirror(), mirror()
    packed.load(loaded.values(), now=NOON)
    for number in sorted(loaded):
        loose.put_listed(loaded[number], now=NOON)
    for skip in all_of_it[middle:]:
        for mine in (packed, loose):
            mine.put_listed(skip, now=NOON)
            if skip.reason == "exhausted":
                mine.remove(_number(skip) // 2, because="removed")
    packed.expire(NOON + timedelta(hours=6))
    loose.expire(NOON + timedelta(hours=6))

    ours = facts(packed)
    assert {**ours, "added": 0} == {**facts(loose), "added": 0}


def _number(skip: Skip) -> int:
    assert skip.id is not None
    return skip.id


def test_skips_from_the_stream_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listed_skips, "LOOSE", 10)
    mine = mirror()

    for number in range(200):
        expiry = NOON + timedelta(minutes=number + 1)
        mine.put_listed(skip(number, expires_at=expiry), now=NOON)
    for number in range(0, 200, 2):
        mine.remove(number, because="passed")

    assert {each.id for each in mine.bookmarks.values()} == set(range(1, 200, 2))
    assert len(mine._listed.loose) < 60
    assert mine._listed.table.dead < 60
    mine.expire(NOON + timedelta(minutes=100))
    assert sorted(mine.skipped, key=int) == [str(n) for n in range(101, 200, 2)]


def skip(number: int, **changes: Any) -> Skip:
    usual = {"kind": MatcherKind.BOOKMARK, "value": str(number), "topic": "orders"}
    return Skip(**{**usual, "id": number, **changes})


def test_ids_in_any_order_count_once_and_the_last_counts() -> None:
    mine = mirror()

    mine.load(
        [skip(9), skip(3, reason="old"), skip(5), skip(3, reason="new")], now=NOON
    )
    mine.remove(5, because="removed")

    assert [each.id for each in mine.bookmarks.values()] == [3, 9]
    assert mine.bookmarks["3"].reason == "new"


def test_a_new_snapshot_logs_only_what_changed() -> None:
    mine = mirror()
    mine.load([skip(1), skip(2), skip(3)], now=NOON)
    mine.put_listed(skip(4), now=NOON)

    mine.load([skip(1), skip(2, reason="new"), skip(4), skip(5)], now=NOON)

    # At first 3 and 1; then 2 and 5 are added, and the old 2 and 3 removed.
    assert mine.changes == {"added": 6, "removed": 2}


def test_long_texts_make_short_lines() -> None:
    long: list[Json] = [
        {"id": n, "matcher": {"kind": "bookmark", "value": f"{n}" + "é" * 100_000}}
        for n in range(1, 8)
    ]
    answer = {"epoch": "e1", "revision": 7, "skips": long}

    lines = list(lines_of(answer))

    assert max(map(len, lines)) < 6 * skip_list_line_format.LINE_BYTES + 1_000
    assert facts(by_lines(answer))["skipped"] == {
        each["matcher"]["value"] for each in long
    }


# What is no snapshot

HEAD = {"epoch": "e1", "revision": 7}
END = {"end": True}
GOOD = {"of": "skips", "number": 2, "id": [1, 2], "kind": "bookmark"}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [HEAD],
        [END],
        [{"epoch": "e1"}, END],
        [[], END],
        [HEAD, {**GOOD, "value": ["a"]}, END],
        [HEAD, {**GOOD, "number": "2", "value": ["a", "b"]}, END],
        [HEAD, {"of": "skips", "id": 7}, END],
        [HEAD, {**GOOD, "number": 10**12, "id": 7, "value": "a"}, END],
        [HEAD, {**GOOD, "number": -1, "id": 7, "value": "a"}, END],
    ],
)
def test_a_cut_or_malformed_snapshot_is_refused(lines: list[Any]) -> None:
    answer: Any = Lines([json.dumps(line).encode() for line in lines])

    with pytest.raises(Away):
        _read_lines(answer, "orders", [])


@pytest.mark.parametrize("line", [b"{", b"[" * 100_000, b"\xff", b"7"])
def test_a_line_that_is_no_json_object_is_refused(line: bytes) -> None:
    answer: Any = Lines([json.dumps(HEAD).encode(), line])

    with pytest.raises(Away):
        _read_lines(answer, "orders", [])


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": ["bookmark", "moon_phase"]},
        {"value": ["a", 7]},
        {"value": ["a", "b" * 131_073]},
        {"kind": ["bookmark", "body_digest"], "value": ["a", "AB" * 32]},
        {"kind": ["bookmark", "rule"], "value": ["a", "x"]},
        {"id": [1, None]},
        {"id": [1, True]},
        {"id": [1, 2**70]},
        {"poison": [5, -1]},
        {"at": [None, 10**18]},
        {"at": [None, "noon"]},
        {"expires_at": [None, 1.5]},
        {"consumer_group": ["billing", ""]},
        {"handler_version": [None, {}]},
        {"reason": ["", 7]},
        {"redrive": [None, 7]},
    ],
)
def test_an_unreadable_skip_does_not_affect_the_others(odd: Json) -> None:
    block = {**GOOD, "value": ["a", "b"], **odd}
    later = {**GOOD, "id": [8], "number": 1, "value": "z", "new": "member"}
    unknown = {"of": "omens", "number": 1, "id": [9]}
    answer: Any = Lines(
        [json.dumps(line).encode() for line in (HEAD, block, unknown, later, END)]
    )
    mine = mirror()
    table = mine.table(now=NOON)

    _read_lines(answer, "orders", [table])
    mine.load(table, now=NOON)

    assert mine.skipped == {"a", "z"}


# On the way


def test_both_forms_of_a_server_s_answer_load_the_same_skips(
    server: FakeServer,
) -> None:
    for number in range(2_500):
        server.skip_list.add(kind="bookmark", value=f"{number}-\0\ud800é")
    server.skip_list.add(kind="rule", value={"header": "x", "equals": "y"})
    states = list[object]()

    for has_lines in (True, False):
        server.has_lines = has_lines
        client = Client([server.url], KEY)
        with client.open("/skips", [("topic", "orders")], accept=ACCEPT) as answer:
            states.append(answer.media_type)
            mine = mirror()
            table = mine.table(now=NOON)
            if has_lines:
                _read_lines(answer, "orders", [table])
            else:
                _read_json(answer.json(), [table])
            mine.load(table, now=NOON)
        client.close()
        states.append(facts(mine))

    assert states[0] == skip_list_line_format.MEDIA_TYPE
    assert states[2] == "application/json"
    assert states[1] == states[3]


ACCEPT = skip_list_line_format.ACCEPT


@pytest.mark.parametrize(
    ("limit", "body"),
    [
        ("MOST_INFLATED", b"x\n" * 100_000),
        ("longest", b"x" * 100_000),
        ("cut", b"x\n" * 100),
        ("no gzip", b"x\n"),
    ],
)
def test_a_too_large_or_broken_answer_raises_away(
    limit: str, body: bytes, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = body if limit == "no gzip" else gzip.compress(body)
    if limit == "cut":
        data = data[:-20] + b"\0" * 20
    monkeypatch.setattr("poisonguard.testing.web.gzip.compress", lambda _: data)
    if limit == "MOST_INFLATED":
        monkeypatch.setattr(response_reading, "MOST_INFLATED", 1_000)
    client = Client([server.url], KEY)

    with (
        client.open("/skips", [("topic", "orders")], accept=ACCEPT) as answer,
        pytest.raises(Away),
    ):
        for _ in answer.lines(longest=1_000):
            pass
    client.close()


def test_a_removed_row_is_not_found() -> None:
    table = skip_table.SkipTable(topic="orders", applies=lambda _: True, now=NOON)
    for number in (1, 2, 3):
        table.add(skip(number, expires_at=NOON + timedelta(minutes=number)))
    table.close()

    table.remove(0)

    assert [table.row(number) for number in range(5)] == [None, None, 1, 2, None]
    assert [key for _, _, key in table.rows()] == ["2", "3"]
    assert (len(table), table.dead) == (2, 1)
    assert table.next_expiry == NOON + timedelta(minutes=2)
