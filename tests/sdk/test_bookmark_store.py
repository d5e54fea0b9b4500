"""The bookmark store against a double of Poisonweb."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from poisonguard.bookmarks import BookmarkStore, Start
from poisonguard.errors import Away, Fenced, Misconfigured, Refused, Stopping
from poisonguard.positions.subscription_progress import RUNS_PRESSED
from poisonguard.skipping.skip_list import Fence
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

NEVER = 3_600.0  # seconds: a test writes when it says so
ORDERS = ("billing-1", "eu", "orders")

Open = Callable[..., BookmarkStore]


@pytest.fixture
def store_of(server: FakeServer) -> Iterator[Open]:
    """Return a function that creates a store, which need not be closed."""
    stores: list[BookmarkStore] = []

    def make(**changes: Any) -> BookmarkStore:
        arguments = {"client_name": "billing-1", "interval": NEVER, **changes}
        stores.append(BookmarkStore(server.url, KEY, **arguments))
        return stores[-1]

    yield make
    for store in stores:
        end(store)


def end(store: BookmarkStore) -> None:
    """End a store like a kill: it writes nothing more."""
    store._closed = "killed"
    store._thread.end()


def take(store: BookmarkStore, *numbers: int, publisher: str = "p") -> None:
    for number in numbers:
        store.received("eu", publisher, number)


def settle(store: BookmarkStore, *numbers: int, publisher: str = "p") -> list[bool]:
    return [store.settle("eu", publisher, number) for number in numbers]


def test_a_new_store_resumes_where_the_former_one_stopped(store_of: Open) -> None:
    with store_of() as first:
        begun = first.open("eu", "orders")
        take(first, 10, 20, 30)
        settle(first, 30, 10)
    second = store_of()

    resume = second.open("eu")

    assert (begun.positions, begun.start) == ({}, Start.EARLIEST)
    assert resume.positions == {"p": 10}
    assert [second.is_settled("eu", "p", n) for n in (10, 20, 30)] == [
        True,
        False,
        True,
    ]


def test_two_publishers_resume_each_at_the_lesser_of_two_places(store_of: Open) -> None:
    with store_of() as first:
        first.open("eu", "orders")
        for number in range(1, 101):
            take(first, number, publisher="a")
            take(first, number, publisher="b")
            settle(first, number, publisher="a")
            settle(first, number, publisher="b")
        first.persisted("eu", "a", 40)
        first.persisted("eu", "b", 250)

    assert store_of().open("eu").positions == {"a": 40, "b": 100}


def test_all_subscriptions_are_written_with_one_request(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    for sub_id in ("eu", "us", "asia"):
        store.open(sub_id, "orders")
        store.received(sub_id, "p", 1)
        store.settle(sub_id, "p", 1)
    before = len(server.requests)

    store.flush()
    store.flush()

    paths = [path for _, path, _ in server.requests[before:]]
    assert paths == ["/api/v1/positions/settle"]


def test_positions_are_written_once_per_interval(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of(interval=0.01)
    store.open("eu", "orders")
    take(store, 1)

    settle(store, 1)

    server.until(lambda: server.positions[ORDERS].settled.get("p") == [[0, 1]])


def test_after_a_kill_only_what_was_not_written_comes_again(store_of: Open) -> None:
    killed = store_of()
    killed.open("eu", "orders")
    take(killed, *range(1, 101))
    settle(killed, *range(100, 11, -1))
    killed.flush()
    settle(killed, 11, 10)
    window = killed.health().unwritten
    end(killed)
    second = store_of()

    second.open("eu", "orders")

    again = [n for n in range(1, 101) if not second.is_settled("eu", "p", n)]
    assert (again, window) == ([*range(1, 12)], 2)


def test_a_position_that_cannot_be_read_is_not_taken_for_empty(
    server: FakeServer, store_of: Open
) -> None:
    away, refused = store_of(), store_of()

    server.faults.answer(503, times=1)
    with pytest.raises(Away):
        away.open("eu", "orders")
    server.faults.answer(403, times=1)
    with pytest.raises(Refused):
        refused.open("eu", "orders")

    with pytest.raises(Misconfigured, match="open it first"):
        away.received("eu", "p", 1)


def test_settling_goes_on_while_the_server_is_away_and_nothing_is_lost(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    server.stop()

    take(store, *range(1, 1_001))
    settle(store, *range(1_000, 0, -1))
    with pytest.raises(Away):
        store.flush()
    health = store.health()
    server.start()
    store.flush()

    assert (health.unwritten, health.runs) == (1_000, 1)
    assert "away" in health.warnings[0]
    assert server.positions[ORDERS].settled == {"p": [[0, 1_000]]}
    assert (store.health().unwritten, store.health().warnings) == (0, ())


def test_what_is_being_written_is_unwritten_until_the_server_has_it(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    take(store, 1, 2, 3)
    settle(store, 1, 2)
    before = len(server.requests)
    server.faults.freeze()

    with ThreadPoolExecutor() as pool:
        write = pool.submit(store.flush)
        server.until(lambda: len(server.requests) > before)
        settle(store, 3)
        unwritten = store.health().unwritten
        server.faults.thaw()
        write.result()

    assert unwritten == 3
    store.flush()
    assert store.health().unwritten == 0


def test_a_write_whose_answer_is_lost_is_repeated(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    take(store, 1, 2)
    settle(store, 2)
    server.faults.lose_answers(1)

    with pytest.raises(Away):
        store.flush()
    settle(store, 1)
    store.flush()

    assert server.positions[ORDERS].settled == {"p": [[0, 2]]}


def test_a_holder_that_was_fenced_settles_nothing_until_it_opens_again(
    server: FakeServer, store_of: Open
) -> None:
    sub_ids: list[str] = []
    old, new = store_of(on_fenced=sub_ids.append), store_of()
    old.open("eu", "orders")
    take(old, 1, 2, 3)
    new.open("eu", "orders")

    settle(old, 1)
    with pytest.raises(Fenced, match="open it again|opened again"):
        old.flush()
    refused = settle(old, 2)
    with pytest.raises(Fenced):
        take(old, 4)

    assert (sub_ids, old.fenced) == (["eu"], frozenset({"eu"}))
    assert old.health().fenced == {"eu"}
    assert (refused, server.positions[ORDERS].settled) == ([False], {})
    assert (old.open("eu", "orders").positions, old.fenced) == ({}, frozenset())
    take(old, 1)
    assert settle(old, 2, 1) == [False, True]


def test_a_fence_from_the_stream_applies_at_once(
    server: FakeServer, store_of: Open
) -> None:
    sub_ids: list[str] = []
    store = store_of(on_fenced=sub_ids.append)
    store.open("eu", "orders")
    ours = Fence(client_name="billing-1", sub_id="eu", topic="orders", epoch=2)

    for other in (
        replace(ours, epoch=1),
        replace(ours, topic="other"),
        replace(ours, sub_id="us"),
        replace(ours, client_name="other"),
    ):
        store.fence(other)
    before = store.fenced
    store.fence(ours)
    store.fence(replace(ours, epoch=3))

    assert (before, store.fenced) == (frozenset(), frozenset({"eu"}))
    assert sub_ids == ["eu"]


def test_on_fenced_may_open_the_subscription_again(
    server: FakeServer, store_of: Open
) -> None:
    resumed: list[dict[str, int | None]] = []

    def reopen(sub_id: str) -> None:
        resumed.append(old.open(sub_id).positions)

    old: BookmarkStore = store_of(on_fenced=reopen)
    old.open("eu", "orders")
    take(old, 1)
    settle(old, 1)
    old.flush()
    store_of().open("eu", "orders")
    take(old, 2)
    settle(old, 2)

    old.flush()

    assert (resumed, old.fenced) == ([{"p": 1}], frozenset())


def test_opening_again_writes_first_what_has_been_settled(store_of: Open) -> None:
    store = store_of()
    store.open("eu", "orders")
    take(store, 1, 2)
    settle(store, 1)

    resume = store.open("eu", "orders")

    assert resume.positions == {"p": 1}


def test_receiving_waits_while_too_much_is_unsettled(store_of: Open) -> None:
    store = store_of(in_flight_limit=2)
    store.open("eu", "orders")
    take(store, 1, 2)
    pressed, pressure = store.is_pressed("eu", "p"), store.health().pressure

    with ThreadPoolExecutor() as pool:
        third = pool.submit(take, store, 3)
        waits = not third.done()
        settle(store, 2)
        third.result()

    assert (pressed, pressure, waits) == (True, 1, True)
    assert store.health().in_flight == 2


def test_receiving_waits_while_there_are_too_many_holes(store_of: Open) -> None:
    store = store_of()
    store.open("eu", "orders")
    last = 2 * RUNS_PRESSED
    take(store, *range(1, last + 1))
    settle(store, *range(2, last + 1, 2))

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(take, store, last + 1)
        pressed = store.is_pressed("eu", "p")
        settle(store, 3)
        waiting.result()

    assert pressed
    assert store.health().runs == RUNS_PRESSED - 1


def test_a_waiting_caller_is_released_when_the_store_is_closed(store_of: Open) -> None:
    store = store_of(in_flight_limit=1)
    store.open("eu", "orders")
    take(store, 1)

    with ThreadPoolExecutor() as pool:
        second = pool.submit(take, store, 2)
        store.close()

        with pytest.raises(Stopping, match="closed"):
            second.result()
    assert settle(store, 1) == [False]


def test_messages_that_name_no_place_are_ignored_and_counted(store_of: Open) -> None:
    store = store_of()
    store.open("eu", "orders")

    for sub_id, seq in (
        ("eu", None),
        (None, 1),
        ("", 1),
        ("eu", 2**63 - 1),
        ("eu", -1),
    ):
        store.received(sub_id, "p", seq)
        assert not store.is_settled(sub_id, "p", seq)
        assert not store.settle(sub_id, "p", seq)

    assert (store.health().ignored, store.health().in_flight) == (5, 0)


@pytest.mark.parametrize("sub_id", ["", None])
def test_a_subscription_without_a_sub_id_is_refused(
    store_of: Open, sub_id: str | None
) -> None:
    with pytest.raises(Misconfigured, match="sub id"):
        store_of().open(sub_id, "orders")


def test_a_topic_is_learnt_from_the_first_message(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu")
    store.received("eu", "p", 1, topic="orders")
    store.received("eu", "p", 2, topic="refunds")
    settle(store, 1)

    store.flush()

    assert server.positions[ORDERS].settled == {"p": [[0, 1]]}
    assert "refunds" in store.health().warnings[0]


def test_a_sub_id_of_two_topics_is_refused_without_a_topic(store_of: Open) -> None:
    with store_of() as first:
        for topic in ("orders", "refunds"):
            first.open("eu", topic)
            take(first, 1)
            settle(first, 1)

    with pytest.raises(Misconfigured, match="orders, refunds"):
        store_of().open("eu")


def test_a_position_begun_offline_is_merged_with_the_server_s(
    server: FakeServer, store_of: Open
) -> None:
    with store_of() as first:
        first.open("eu", "orders")
        take(first, 1, 2, 3)
        settle(first, 1, 3)
    server.stop()
    store = store_of()
    store.open_later("eu", "orders")
    take(store, 1, 2)
    settle(store, 2)
    with pytest.raises(Away):
        store.resume("eu")

    server.start()
    store.flush()

    assert store.resume("eu").positions == {"p": 3}
    assert server.positions[ORDERS].settled == {"p": [[0, 3]]}


@pytest.mark.parametrize("status", [403, 503])
def test_an_unopenable_subscription_does_not_keep_others_from_being_written(
    status: int, server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    server.faults.answer(status, path="/positions/open")
    store.open_later("us", "secrets")
    take(store, 1)
    settle(store, 1)

    with pytest.raises(Refused if status == 403 else Away, match=str(status)):
        store.close()

    assert server.positions[ORDERS].settled == {"p": [[0, 1]]}
    assert any(str(status) in warning for warning in store.health().warnings)


def test_an_unopenable_subscription_does_not_keep_others_from_being_opened(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store._thread.end()  # New subscriptions wake it, and it would take the 403.
    store.open_later("us", "secrets")
    store.open_later("eu", "orders")
    take(store, 1)
    settle(store, 1)
    server.faults.answer(403, times=1, path="/positions/open")

    with pytest.raises(Refused, match="403"):
        store.flush()
    first = dict(server.positions)
    store.flush()

    assert first[ORDERS].settled == {"p": [[0, 1]]}
    assert set(server.positions) == {ORDERS, ("billing-1", "us", "secrets")}
    assert store.health().warnings == ()


def test_a_rejected_position_is_kept_and_warned_about(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    take(store, 1)
    settle(store, 1)
    honest, server.positions.settle = (  # type: ignore[method-assign] # one that is full
        server.positions.settle,
        lambda update: {"status": "rejected", "detail": "too many runs"},
    )

    with pytest.raises(Refused, match="too many runs"):
        store.flush()
    warned = store.health().warnings
    server.positions.settle = honest  # type: ignore[method-assign]
    store.flush()

    assert "too many runs" in warned[0]
    assert (store.health().warnings, store.health().unwritten) == ((), 0)
    assert server.positions[ORDERS].settled == {"p": [[0, 1]]}


def test_a_rejected_publisher_is_reported_beside_an_accepted_one(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    honest = server.positions.settle

    def reject(update: dict[str, Any]) -> dict[str, Any]:
        if update["publisher"] == "bad":
            return {"status": "rejected", "detail": "no such publisher"}
        return honest(update)

    server.positions.settle = reject  # type: ignore[method-assign]
    for publisher in ("bad", "good"):
        take(store, 1, publisher=publisher)
        settle(store, 1, publisher=publisher)

    store._writer.write()  # as it does by itself

    assert "no such publisher" in store.health().warnings[0]
    assert server.positions[ORDERS].settled == {"good": [[0, 1]]}


def test_settling_from_many_threads_loses_nothing(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of(interval=0.01)
    store.open("eu", "orders")
    take(store, *range(1, 2_001))

    with ThreadPoolExecutor(8) as pool:
        for part in range(8):
            pool.submit(settle, store, *range(1 + part, 2_001, 8))
    store.flush()

    assert server.positions[ORDERS].settled == {"p": [[0, 2_000]]}


def test_close_raises_when_positions_are_unwritten_but_ends(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    take(store, 1)
    settle(store, 1)
    server.stop()

    with pytest.raises(Away):
        store.close()

    assert not store._thread.is_alive
    store.close()


def test_a_forked_child_leaves_the_position_to_its_parent(
    server: FakeServer, store_of: Open
) -> None:
    store = store_of()
    store.open("eu", "orders")
    take(store, 1)

    child = os.fork()
    if child == 0:
        os._exit(0 if settle(store, 1) == [False] else 1)
    _, status = os.waitpid(child, 0)
    settled = settle(store, 1)
    store.flush()

    assert (status, settled) == (0, [True])
    assert server.positions[ORDERS].settled == {"p": [[0, 1]]}
