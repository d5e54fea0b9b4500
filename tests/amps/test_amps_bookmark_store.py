"""The bookmark store under the real AMPS client, against a double of its server."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import AMPS
import pytest

from poisonguard.amps import BookmarkStore, Start
from poisonguard.errors import Away
from poisonguard.skipping.skip_list import Fence
from tests.amps.conftest import Connect, Open, kill
from tests.amps.fake_amps_server import OWN, Amps
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.killed_consumer_logs import Lives
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 200_000 if os.environ.get("SOAK") else 20_000
SOAKS = 20 + MESSAGES / 500
RECENT = AMPS.Client.Bookmarks.MOST_RECENT
ORDERS = ("billing-1", "eu", "orders")


class DiscardingHandler:
    """A handler that keeps the ids it is given and discards all but some."""

    def __init__(self, client: Any, *, leaves: set[int] | None = None) -> None:
        self.client = client
        self.leaves = leaves or set()
        self.ids: list[int] = []

    def __call__(self, message: Any) -> None:
        number = json.loads(message.get_data())["id"]
        if number not in self.leaves:
            self.client.discard(message)
        self.ids.append(number)

    def subscribe(self, bookmark: str = RECENT, sub_id: str = "eu") -> None:
        self.client.bookmark_subscribe(self, "orders", bookmark, sub_id=sub_id)


def bodies(*ids: int) -> list[bytes]:
    return [b'{"id":%d}' % number for number in ids]


def holds(messages: list[Any], place: int) -> bool:
    return len(messages) > place


def a_message(bookmark: str = "", sub_id: str = "", topic: str = "orders") -> Any:
    message = AMPS.Message()
    message.set_bookmark(bookmark)
    message.set_sub_id(sub_id)
    message.set_topic(topic)
    return message


def test_resumes_after_the_last_message_that_was_discarded(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(1, 2, 3))
    with store_of() as store:
        client = connect(store)
        first = DiscardingHandler(client)
        first.subscribe()
        wait_until(lambda: first.ids == [1, 2, 3])
        client.close()
    amps.publish("orders", *bodies(4, 5))

    second = DiscardingHandler(connect(store_of()))
    second.subscribe()

    wait_until(lambda: len(second.ids) >= 2)
    assert second.ids == [4, 5]
    assert amps.bookmarks_asked() == ["0", f"{OWN}|3|"]


def test_only_the_hole_is_handled_again_and_the_rest_is_duplicate(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(*range(1, 101)))
    with store_of() as store:
        client = connect(store)
        first = DiscardingHandler(client, leaves={10})
        first.subscribe()
        wait_until(lambda: len(first.ids) == 100)
        client.close()
    duplicates: list[str] = []
    client = connect(again := store_of())
    client.set_duplicate_message_handler(lambda m: duplicates.append(m.get_bookmark()))

    second = DiscardingHandler(client)
    second.subscribe()

    wait_until(lambda: len(duplicates) == 90)
    assert (second.ids, again.health().duplicates) == ([10], 90)
    assert amps.bookmarks_asked()[-1] == f"{OWN}|9|"


def test_numbers_that_other_topics_took_leave_no_holes(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    for number in range(1, 51):
        amps.publish("orders", *bodies(number))
        amps.publish("refunds", *bodies(number))
    with store_of() as store:
        client = connect(store)
        reader = DiscardingHandler(client)
        reader.subscribe()
        wait_until(lambda: len(reader.ids) == 50)
        client.close()

    assert poisonweb.positions[ORDERS].settled == {OWN: [[0, 99]]}


def test_two_publishers_resume_each_at_the_lesser_of_settled_and_persisted(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    for number in range(1, 11):
        amps.publish("orders", *bodies(number), publisher="5")
        amps.publish("orders", *bodies(100 + number), publisher="13948331409633568391")
    with store_of() as store:
        client = connect(store)
        first = DiscardingHandler(client, leaves={108})
        first.subscribe()
        wait_until(lambda: len(first.ids) == 20)
        amps.persist("eu", "5|4|")
        wait_until(lambda: store.get_most_recent("eu").startswith("5|4|"))
        client.close()

    second = DiscardingHandler(connect(store_of()))
    second.subscribe()

    bookmark = amps.bookmarks_asked()[-1]
    assert sorted(bookmark.split(",")) == ["13948331409633568391|7|", "5|4|"]
    wait_until(lambda: second.ids)
    assert second.ids == [108]


def test_a_reconnect_brings_what_is_unsettled_and_nothing_else(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(1, 2, 3, 4))
    reader = DiscardingHandler(connect(store_of()), leaves={2})
    reader.subscribe()
    wait_until(lambda: len(reader.ids) == 4)

    amps.cut()
    wait_until(lambda: len(amps.bookmarks_asked()) == 2)
    amps.publish("orders", *bodies(5))

    wait_until(lambda: 5 in reader.ids)
    assert reader.ids == [1, 2, 3, 4, 2, 5]


def test_no_message_is_lost_while_poisonweb_is_away(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    absorbed: list[BaseException],
) -> None:
    store = store_of()
    reader = DiscardingHandler(connect(store))
    reader.subscribe()
    amps.publish("orders", *bodies(1))
    wait_until(lambda: reader.ids)
    store.flush()

    poisonweb.stop()
    amps.publish("orders", *bodies(*range(2, 101)))
    amps.cut()
    wait_until(lambda: len(amps.bookmarks_asked()) == 2)
    amps.publish("orders", *bodies(101))
    wait_until(lambda: 101 in reader.ids)
    poisonweb.start()
    store.flush()

    assert (reader.ids, absorbed) == ([*range(1, 102)], [])
    assert poisonweb.positions[ORDERS].settled == {OWN: [[0, 101]]}


def test_a_subscription_whose_position_cannot_be_read_is_refused(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(1, 2))
    reader = DiscardingHandler(connect(store_of()))
    poisonweb.stop()

    with pytest.raises(Away):
        reader.subscribe()

    assert (reader.ids, amps.bookmarks_asked()) == ([], [])


def test_a_sub_id_that_the_client_made_is_not_kept_and_a_warning_says_so(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    amps.publish("orders", *bodies(1, 2, 3))
    store = store_of()
    reader = DiscardingHandler(connect(store), leaves={2})

    reader.client.bookmark_subscribe(reader, "orders", RECENT)
    wait_until(lambda: len(reader.ids) == 3)
    amps.cut()
    wait_until(lambda: len(reader.ids) == 4)
    store.flush()

    assert (reader.ids, poisonweb.positions) == ([1, 2, 3, 2], {})
    assert "was made by the client" in store.health().warnings[0]
    assert _warnings(caplog) == [store.health().warnings[0]]
    assert "Give the subscription a sub_id" in caplog.text


def test_a_position_that_begins_with_the_first_message_is_logged_once(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with store_of(topics={"eu": "orders"}) as store:
        DiscardingHandler(client := connect(store)).subscribe()
        amps.cut()
        wait_until(lambda: len(amps.bookmarks_asked()) == 2)
        amps.publish("orders", *bodies(1))
        wait_until(lambda: store.health().unwritten == 1)
        client.close()
    before = _warnings(caplog)

    DiscardingHandler(connect(store_of())).subscribe()
    DiscardingHandler(connect(store_of(start=Start.NOW))).subscribe(sub_id="us")

    assert len(before) == 1
    assert "eu of billing-1 has no position" in before[0]
    assert _warnings(caplog) == before


@pytest.mark.parametrize(
    "header",
    [
        b'{"c":"p","t":"or\xffders","sids":"eu","bm":"5|1|"}',
        b'{"c":"p","t":"orders","sids":"eu","bm":"77\xff|1|"}',
        b'{"c":"p","t":"orders","sids":"eu","bm":""}',
        b'{"c":"p","t":"orders","sids":"eu"}',
    ],
)
def test_a_message_whose_headers_cannot_be_read_is_not_lost(
    amps: Amps,
    store_of: Open,
    connect: Connect,
    absorbed: list[BaseException],
    header: bytes,
) -> None:
    reader = DiscardingHandler(connect(store_of()))
    reader.subscribe()
    frame = header + bodies(1)[0]

    amps.subscriptions[0].connection.send([struct.pack(">I", len(frame)) + frame])
    amps.publish("orders", *bodies(2))

    wait_until(lambda: 2 in reader.ids)
    assert (reader.ids, absorbed) == ([1, 2], [])


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and record.name.startswith("poisonguard")
    ]


@pytest.mark.parametrize(
    ("start", "bookmark"),
    [(Start.EARLIEST, "0"), (Start.MOST_RECENT, "0"), (Start.NOW, "0|1|")],
)
def test_a_new_subscription_begins_at_the_start_of_the_store(
    amps: Amps, store_of: Open, connect: Connect, start: Start, bookmark: str
) -> None:
    DiscardingHandler(connect(store_of(start=start))).subscribe()

    assert amps.bookmarks_asked() == [bookmark]


def test_a_start_from_now_resumes_at_its_first_message_after_a_kill(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(1, 2, 3))
    store = store_of(start=Start.NOW)
    first = DiscardingHandler(client := connect(store), leaves={4})
    first.subscribe()
    amps.publish("orders", *bodies(4))
    wait_until(lambda: first.ids)
    store.flush()
    client.close()
    kill(store)
    amps.publish("orders", *bodies(5))

    second = DiscardingHandler(connect(store_of(start=Start.NOW)))
    second.subscribe()

    wait_until(lambda: len(second.ids) == 2)
    assert (first.ids, second.ids) == ([4], [4, 5])


def test_a_subscription_from_the_epoch_gets_no_settled_message(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(1, 2, 3))
    with store_of() as store:
        first = DiscardingHandler(client := connect(store), leaves={2})
        first.subscribe()
        wait_until(lambda: len(first.ids) == 3)
        client.close()

    second = DiscardingHandler(connect(store_of()))
    second.subscribe(AMPS.Client.Bookmarks.EPOCH)
    amps.publish("orders", *bodies(4))

    wait_until(lambda: len(second.ids) == 2)
    assert second.ids == [2, 4]


def test_a_subscription_from_own_bookmarks_skips_earlier_messages(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(1, 2, 3), publisher="5")
    amps.publish("orders", *bodies(11, 12, 13), publisher="6")
    store = store_of()
    reader = DiscardingHandler(connect(store))

    reader.subscribe("5|2|,6|1|")

    wait_until(lambda: len(reader.ids) == 3)
    store.flush()
    assert reader.ids == [3, 12, 13]
    assert poisonweb.positions[ORDERS].settled == {"5": [[0, 3]], "6": [[0, 3]]}


def test_a_start_while_poisonweb_is_away_keeps_the_stored_position(
    amps: Amps,
    poisonweb: FakeServer,
    store_of: Open,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    amps.publish("orders", *bodies(1, 2, 3))
    with store_of() as store:
        first = DiscardingHandler(client := connect(store), leaves={2})
        first.subscribe()
        wait_until(lambda: len(first.ids) == 3)
        client.close()
    store = store_of()
    poisonweb.stop()

    second = DiscardingHandler(connect(store))
    second.subscribe(AMPS.Client.Bookmarks.EPOCH)
    wait_until(lambda: len(second.ids) == 3)
    poisonweb.start()
    store.flush()

    assert second.ids == [1, 2, 3]
    assert poisonweb.positions[ORDERS].settled == {OWN: [[0, 3]]}
    assert "begins without its position" in caplog.text


def test_a_fenced_client_settles_nothing_and_may_subscribe_again(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    fenced: list[str] = []
    old = store_of(on_fenced=fenced.append)
    reader = DiscardingHandler(client := connect(old), leaves={2})
    reader.subscribe()
    amps.publish("orders", *bodies(1, 2))
    wait_until(lambda: len(reader.ids) == 2)
    old.flush()
    store_of().get_most_recent("eu")  # as another holder does, or a move by a person
    amps.publish("orders", *bodies(3, 4))
    wait_until(lambda: len(reader.ids) == 4)

    with pytest.raises(Exception, match="opened by another holder"):
        old.flush()
    amps.publish("orders", *bodies(5))
    wait_until(lambda: len(reader.ids) == 5)
    settled = dict(poisonweb.positions[ORDERS].settled)
    client.unsubscribe("eu")
    reader.subscribe()

    wait_until(lambda: len(reader.ids) == 9)
    assert (fenced, settled) == (["eu"], {OWN: [[0, 1]]})
    assert (reader.ids[5:], old.fenced) == ([2, 3, 4, 5], frozenset())


def test_the_client_is_held_back_while_too_much_is_unsettled(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    amps.publish("orders", *bodies(*range(1, 101)))
    store = store_of(in_flight_limit=10)
    client = connect(store)
    messages: list[Any] = []

    client.bookmark_subscribe(
        lambda message: messages.append(copy.deepcopy(message)),
        "orders",
        RECENT,
        "",
        "eu",
    )
    # The tenth presses before it is handed over.
    wait_until(lambda: store.health().pressure == 1 and len(messages) >= 10)
    message_count = len(messages)
    for place in range(100):
        wait_until(partial(holds, messages, place))
        client.discard(messages[place])

    assert message_count == 10
    assert store.health().runs == 1


def test_a_sub_id_may_hold_a_quote(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    with store_of() as store:
        reader = DiscardingHandler(client := connect(store))
        amps.publish("orders", *bodies(1))
        reader.subscribe(sub_id='eu"us')
        wait_until(lambda: reader.ids)
        client.close()

    assert [*poisonweb.positions] == [("billing-1", 'eu"us', "orders")]


def test_a_sub_id_used_for_another_topic_is_named(
    amps: Amps, poisonweb: FakeServer, store_of: Open, connect: Connect
) -> None:
    store = store_of(topics={"eu": "refunds"})
    reader = DiscardingHandler(connect(store))
    amps.publish("orders", *bodies(1))

    reader.subscribe()
    wait_until(lambda: reader.ids)
    store.flush()

    assert ("billing-1", "eu", "refunds") in poisonweb.positions
    assert "messages of orders" in store.health().warnings[0]


@pytest.mark.parametrize("state", ["open", "away", "fenced", "closed"])
@pytest.mark.parametrize(
    ("bookmark", "sub_id"),
    [
        ("", "eu"),
        ("5|1|", ""),
        ("5|1|", "eu"),
        ("5|1|", "other"),
        ("20261120T000000Z", "eu"),
        (f"5|{2**63}|", "eu"),
        ("5|x|", "eu"),
    ],
)
def test_the_store_answers_every_message_and_never_raises(
    poisonweb: FakeServer, store_of: Open, state: str, bookmark: str, sub_id: str
) -> None:
    store = store_of()
    store.set_server_version(5_030_400)
    store.get_most_recent("eu")
    _bring(store, poisonweb, state)
    message = a_message(bookmark, sub_id)

    answers = (store.is_discarded(message), store.log(message))
    store.discard_message(message)
    store.persisted(sub_id, bookmark)

    assert answers[0] is False
    assert type(answers[1]) is int


def _bring(store: BookmarkStore, poisonweb: FakeServer, state: str) -> None:
    if state == "away":
        poisonweb.stop()
    elif state == "fenced":
        store.log(a_message("6|1|", "eu"))
        store.flush()
        store.fence(
            Fence(client_name="billing-1", sub_id="eu", topic="orders", epoch=100)
        )
    elif state == "closed":
        store.close()


def test_a_settled_message_is_reported_to_the_client_as_true(
    store_of: Open,
) -> None:
    store = store_of()
    store.get_most_recent("eu")
    message = a_message("5|1|", "eu")
    store.log(message)
    store.discard_message(message)

    assert store.is_discarded(message) is True


def test_after_kills_only_the_hole_and_what_was_not_written_come_again(
    amps: Amps, poisonweb: FakeServer, tmp_path: Path
) -> None:
    hole, lives = 10, Lives(tmp_path)
    amps.publish("orders", *bodies(*range(1, MESSAGES + 1)))
    for share in (0.25, 0.5, 0.75):
        life = _start(amps, poisonweb, lives.begin(), hole)
        # No life is over before it has written how far the hole lets it come.
        while lives.count() < MESSAGES * share or min(_unsettled(poisonweb)) < hole:
            assert life.poll() is None, "it has ended by itself"
            time.sleep(random.random() / 50)
        life.kill()
        life.wait()

        again, settled = _unsettled(poisonweb), lives.settled()
        passed = set(range(1, max(settled))) - again
        assert hole in again
        assert passed <= settled, "nothing is passed over that was not settled"
        assert not again & lives.flushed(), "nothing comes again that was written"

    life = _start(amps, poisonweb, lives.begin(), hole)
    wait_until(lambda: _unsettled(poisonweb) == {hole}, seconds=SOAKS)
    life.kill()
    life.wait()
    assert amps.bookmarks_asked()[1:] == [f"{OWN}|{hole - 1}|"] * 3


def _start(
    amps: Amps, poisonweb: FakeServer, log: Path, hole: int
) -> subprocess.Popen[bytes]:
    arguments = [amps.url, poisonweb.url, KEY, log, hole]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.amps.bookmark_store_consumer",
            *map(str, arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
    )


def _unsettled(poisonweb: FakeServer) -> set[int]:
    with poisonweb.changed:
        position = poisonweb.positions.get(ORDERS)
        runs = position.settled.get(OWN, []) if position else []
        numbers = set(range(1, MESSAGES + 1))
        for first, last in runs:
            numbers.difference_update(range(first, last + 1))
        return numbers
