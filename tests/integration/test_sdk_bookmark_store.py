"""The SDK's own store against this server: settle, die, resume, be fenced, be moved."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.core.actor import Actor
from apps.team.rights import Principal, Scope
from apps.team.services import create_api_key
from apps.triage.services import position_moves
from apps.triage.services.position_moves import MoveTarget, Strategy
from poisonguard.bookmarks import BookmarkStore
from poisonguard.errors import Fenced

pytestmark = pytest.mark.django_db(transaction=True)

AMPS = "13948331409633568391"
FIRST = 1465596069899000013

OpenStore = Callable[[], BookmarkStore]


@pytest.fixture
def open_store(live_server: Any, now: datetime) -> Iterator[OpenStore]:
    """Return stores of one client name, as its processes would have them in turn."""
    key = create_api_key(
        name="billing",
        scopes=[Scope.POSITIONS_WRITE],
        actor=Actor.system("test"),
        now=now,
    )
    stores: list[BookmarkStore] = []

    def opened() -> BookmarkStore:
        store = BookmarkStore(live_server.url, key.secret, client_name="billing-1")
        stores.append(store)
        return store

    yield opened
    for store in stores:
        with suppress(Fenced):  # its successor has opened the position
            store.close()


def test_a_consumer_that_settles_out_of_order_gets_only_the_hole_again(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.open("eu", "orders")
    # Sparse, as for a consumer that does not receive every message.
    seqs = [FIRST + 7 * n for n in range(2_000)]
    hole = seqs[60]
    for seq in seqs:
        store.received("eu", AMPS, seq)
    settled = [seq for seq in seqs if seq != hole]
    random.Random(7).shuffle(settled)
    for seq in settled:
        store.settle("eu", AMPS, seq)
    store.flush()

    heir = open_store()
    resume = heir.open("eu", "orders")

    again = [seq for seq in seqs if not heir.is_settled("eu", AMPS, seq)]
    assert resume.positions == {AMPS: seqs[59]}
    assert again == [hole]
    mark = Mark.objects.get()
    assert (mark.processed, mark.received) == (seqs[59], seqs[-1])
    assert mark.ahead == ((hole + 1, seqs[-1]),)


def test_a_moved_consumer_is_fenced_and_resumes_at_the_new_place(
    open_store: OpenStore, operator: Principal, now: datetime
) -> None:
    store = open_store()
    store.open("eu", "orders")
    for seq in (10, 20, 30):
        store.received("eu", "", seq)
        store.settle("eu", "", seq)
    store.flush()
    position_moves.move(
        position_id=BookmarkPosition.objects.get().pk,
        wish=MoveTarget(strategy=Strategy.EXACT, to={"": 10}),
        reason="a bad deploy",
        fence=True,
        principal=operator,
        now=now,
    )

    store.received("eu", "", 40)
    store.settle("eu", "", 40)
    with pytest.raises(Fenced):
        store.flush()
    processed = Mark.objects.get().processed
    resume = store.open("eu", "orders")

    assert (processed, resume.positions) == (10, {"": 10})
    assert not store.is_settled("eu", "", 20)
