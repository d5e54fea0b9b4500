"""The SDK's bookmark store against the real API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from apps.bookmarks.models import BookmarkPosition
from apps.core import clock
from poisonguard.bookmarks import BookmarkStore, Start
from poisonguard.errors import Fenced, GuardError, Refused
from poisonguard.positions.subscription_progress import RUNS_LIMIT
from tests.integration.api.schema_checking_client import Caller, program

pytestmark = pytest.mark.django_db(transaction=True)

NEVER = 3_600.0  # seconds: a test flushes explicitly
BIG = "13948331409633568391"  # a publisher of AMPS, beyond every integer

Open = Callable[..., BookmarkStore]


@pytest.fixture
def caller() -> Caller:
    return program(now=clock.now())


@pytest.fixture
def store_of(live_server: LiveServer, caller: Caller) -> Iterator[Open]:
    stores: list[BookmarkStore] = []
    key = caller.headers["Authorization"].removeprefix("Bearer ")

    def make(**changes: Any) -> BookmarkStore:
        options = {"client_name": "billing-1", "interval": NEVER, **changes}
        stores.append(BookmarkStore(live_server.url, key, **options))
        return stores[-1]

    yield make
    for store in stores:
        with suppress(GuardError):  # a test may have closed or fenced it on purpose
            store.close()


def take(store: BookmarkStore, publisher: str, *numbers: int) -> None:
    for number in numbers:
        store.received("eu", publisher, number)


def test_a_store_resumes_after_its_predecessor_and_filters_what_that_settled(
    store_of: Open,
) -> None:
    with store_of() as first:
        begun = first.open("eu", "orders")
        take(first, BIG, 10, 20, 30, 2**63 - 2)
        for number in (30, 10, 2**63 - 2):
            first.settle("eu", BIG, number)

    second = store_of()
    resume = second.open("eu")

    assert (begun.positions, resume.positions) == ({}, {BIG: 10})
    settled = [second.is_settled("eu", BIG, n) for n in (10, 20, 30, 2**63 - 2)]
    assert settled == [True, False, True, True]


def test_a_position_without_settled_messages_resumes_before_the_first(
    store_of: Open,
) -> None:
    with store_of() as first:
        first.open("eu", "orders")
        take(first, "a", 0, 1)
        first.settle("eu", "a", 1)
    second = store_of()

    assert second.open("eu", "orders").positions == {"a": None}
    assert not second.is_settled("eu", "a", 0)


def test_each_of_two_publishers_resumes_at_the_lesser_of_its_places(
    store_of: Open,
) -> None:
    with store_of() as first:
        first.open("eu", "orders")
        for number in range(1, 101):
            for publisher in ("a", BIG):
                take(first, publisher, number)
                first.settle("eu", publisher, number)
        first.persisted("eu", BIG, 40)
        first.persisted("eu", "a", 250)

    assert store_of().open("eu", "orders").positions == {"a": 100, BIG: 40}


def test_a_fenced_holder_cannot_settle(store_of: Open) -> None:
    old, new = store_of(), store_of()
    old.open("eu", "orders")
    take(old, "a", 1, 2)
    old.settle("eu", "a", 1)
    old.flush()
    resume = new.open("eu", "orders")
    old.settle("eu", "a", 2)

    with pytest.raises(Fenced):
        old.flush()

    assert resume.positions == {"a": 1}
    assert old.fenced == {"eu"}
    assert new.open("eu", "orders").positions == {"a": 1}


def test_a_holder_resumes_where_a_person_moved_it(
    store_of: Open, caller: Caller
) -> None:
    moved: list[dict[str, int | None]] = []

    def reopen(sub_id: str) -> None:
        moved.append(store.open(sub_id).positions)

    store: BookmarkStore = store_of(on_fenced=reopen)
    store.open("eu", "orders")
    take(store, "a", *range(1, 11))
    for number in range(1, 10):
        store.settle("eu", "a", number)
    store.flush()
    position = BookmarkPosition.objects.get()

    ask = {"to": {"a": 4}, "reason": "five was handled badly", "fence": True}
    answer = caller.post(f"positions/{position.pk}/move", ask)
    store.settle("eu", "a", 10)
    store.flush()

    assert answer.status == 200
    assert moved == [{"a": 4}]
    assert not store.is_settled("eu", "a", 5)


def test_holes_beyond_the_limit_are_refused_and_nothing_is_lost(
    store_of: Open,
) -> None:
    store = store_of()
    store.open("eu", "orders")
    last = 2 * RUNS_LIMIT + 4
    take(store, "a", *range(1, last + 1))
    for number in range(2, last + 1, 2):
        store.settle("eu", "a", number)
    with pytest.raises(Refused, match="runs"):
        store.flush()

    for number in range(1, last + 1, 2):
        store.settle("eu", "a", number)
    store.close()

    assert store_of().open("eu").positions == {"a": last}


def test_a_publisher_that_the_server_refuses_does_not_delay_others(
    store_of: Open,
) -> None:
    store = store_of()
    store.open("eu", "orders")
    for publisher in ("x" * 1_000_000, "a\0b", "half \ud800", "p"):
        take(store, publisher, 1)
        store.settle("eu", publisher, 1)

    with pytest.raises(Refused, match="position of eu is not taken") as refused:
        store.flush()

    health = store.health()
    assert len(str(refused.value)) < 1_000
    assert (health.unwritten, len(health.warnings)) == (3, 1)
    assert store_of().open("eu").positions == {"p": 1}


def test_a_new_subscription_from_now_on_resumes_before_its_first_message(
    store_of: Open,
) -> None:
    first = store_of()
    first.open("eu", "orders", start=Start.NOW)
    take(first, "a", 500)
    first.flush()

    assert store_of().open("eu", "orders", start=Start.NOW).positions == {"a": 499}


def test_a_key_without_the_scope_is_refused_with_the_remedy(
    live_server: LiveServer, store_of: Open
) -> None:
    key = program(topics=["refunds"], now=clock.now())
    secret = key.headers["Authorization"].removeprefix("Bearer ")
    with (
        BookmarkStore(live_server.url, secret, client_name="x") as store,
        pytest.raises(Refused, match="topic orders"),
    ):
        store.open("eu", "orders")
