"""Positions: settling in batches against a raw upsert of the same values.

Targets: at least 0.8 of the upsert, and 0.3 over HTTP; at least 95 % of the updates
stay on their page (HOT), and the table does not grow; a client writes about once a
second, however many messages its consumers settle.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from benchmarks._benchmark_harness import (
    ROUNDS,
    api_key,
    compare,
    product,
    seconds,
    web,
)
from poisonguard import BookmarkStore
from poisonguard.server.http_client import Client

if TYPE_CHECKING:
    from apps.team.rights import Principal

CONSUMERS = 1_000  # each with a position of its own, so a batch has as many rows
BATCHES = 10  # in each turn
STEP = 100  # messages that a consumer settles from one batch to the next
UPDATES = 300_000
SETTLES = 1_000_000
IN_FLIGHT = 10
SINGLES = 2_000
TOPIC, CLIENT, PUBLISHER = "orders", "billing-1", "eu"

Member = dict[str, Any]
Row = tuple[object, ...]

# The marks without what makes settling safe: epochs, merging and the watermark.
BARE = """
CREATE TABLE bare (
    client_name text, sub_id text, topic text, publisher text, epoch int8,
    settled int8multirange, received int8, bookmark text, settled_at timestamptz,
    PRIMARY KEY (client_name, sub_id, topic, publisher)
) WITH (fillfactor = 50)
"""
UPSERT = """
INSERT INTO bare
SELECT *, now()
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int8[],
            %s::int8multirange[], %s::int8[], %s::text[])
ON CONFLICT (client_name, sub_id, topic, publisher) DO UPDATE
SET epoch = excluded.epoch, settled = excluded.settled, received = excluded.received,
    bookmark = excluded.bookmark, settled_at = excluded.settled_at
"""


def sub_ids(name: str) -> list[str]:
    """Make the ids of the benchmark's subscriptions, which begin with a name."""
    return [f"{name}-{n}" for n in range(CONSUMERS)]


def consumer_principal() -> Principal:
    """Build the principal of the benchmark's consumers, which may settle positions."""
    from apps.core.actor import Actor
    from apps.team.rights import Principal, Scope

    return Principal(actor=Actor.key(CLIENT), scopes=frozenset({Scope.POSITIONS_WRITE}))


def open_positions() -> int:
    """Open a position for each consumer; return the epoch of all of them."""
    from apps.bookmarks.consumer_request_parsing import Holder
    from apps.bookmarks.services import position_opening
    from apps.core import clock

    def epoch(**members: str) -> int:
        holder = Holder.parse({"client_name": CLIENT, **members})
        return position_opening.open_positions(
            holder=holder, principal=consumer_principal(), now=clock.now()
        ).epoch

    for sub_id in sub_ids("sub"):
        epoch(sub_id=sub_id, topic=TOPIC)
    return epoch()


def batches(epoch: int) -> Iterator[list[Member]]:
    """Yield the benchmark's batches of settles, one per consumer, as from JSON."""
    for low in count(step=STEP):
        high = low + STEP - 1
        yield [
            {
                "client_name": CLIENT,
                "sub_id": sub_id,
                "topic": TOPIC,
                "publisher": PUBLISHER,
                "epoch": epoch,
                "settled": [[low, high]],
                "received": high,
                "bookmark": f"{high}-0",
            }
            for sub_id in sub_ids("sub")
        ]


def row(member: Member) -> Row:
    """Return a client's settle of a position as parameters of the raw upsert."""
    [[low, high]] = member["settled"]
    return (*({**member, "settled": f"{{[{low},{high}]}}"}).values(),)


def settle(batch: list[Member]) -> None:
    """Settle positions by the service; raises AssertionError if any is refused."""
    from apps.bookmarks.services import position_settling
    from apps.core import clock

    answers = position_settling.settle(
        members=batch, principal=consumer_principal(), now=clock.now()
    )
    if any(answer != position_settling.OK for answer in answers):
        raise AssertionError(answers)


def post(client: Client, batch: list[Member]) -> None:
    """Settle positions over HTTP; raises AssertionError if any is refused."""
    answer = client.post("/positions/settle", {"updates": batch})
    if any(each["status"] != "ok" for each in answer["results"]):
        raise AssertionError(answer)


def upsert(rows: list[Row]) -> None:
    """Write position rows to the bare table by one statement."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(UPSERT, [list(column) for column in zip(*rows, strict=True)])


def upsert_one_by_one(rows: list[Row]) -> None:
    """Write position rows to the bare table by a statement for each."""
    for each in rows:
        upsert([each])


def statistics_of_marks() -> tuple[int, int, int]:
    """Return how many position marks were written, how many HOT, and their size."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT n_tup_ins + n_tup_upd, n_tup_hot_upd, pg_total_relation_size(relid)"
            " FROM pg_stat_user_tables WHERE relname = 'bookmarks_mark'"
        )
        writes, hot_updates, size = cursor.fetchone()
    return writes, hot_updates, size


def measure_batches(key: str, some: Iterator[list[Member]]) -> None:
    """Print rates of settling positions, by service and HTTP, and of raw upserts."""
    turns = range(ROUNDS + 1)
    same = batches(1)

    def turn(each: Any, prepared: Iterator[list[Any]]) -> None:
        for batch in next(prepared):
            each(batch)

    def members() -> Iterator[list[Any]]:
        return iter([[*islice(some, BATCHES)] for _ in turns])

    def rows() -> Iterator[list[Any]]:
        return iter([[[*map(row, b)] for b in islice(same, BATCHES)] for _ in turns])

    compare(
        "settle",
        number=BATCHES * CONSUMERS,
        ours=partial(turn, settle, members()),
        baseline=partial(turn, upsert, rows()),
        named="raw upsert",
    )
    with web() as url:
        compare(
            "settle over HTTP",
            number=BATCHES * CONSUMERS,
            ours=partial(turn, partial(post, Client([url], key)), members()),
            baseline=partial(turn, upsert, rows()),
            named="raw upsert",
        )


def measure_table(some: Iterator[list[Member]]) -> None:
    """Print how many updates of positions were HOT, and the table's growth."""
    writes, hot, before = statistics_of_marks()
    for batch in islice(some, UPDATES // CONSUMERS):
        settle(batch)
    writes_now, hot_now, after = statistics_of_marks()
    share = (hot_now - hot) / (writes_now - writes)
    print(f"{UPDATES:,} updates: {share:.1%} HOT", end=", ")
    print(f"table {before / 1024:,.0f} KiB before, {after / 1024:,.0f} after")


def measure_conflation(key: str) -> None:
    """Print how fast a client settles a million messages, and upserts one by one."""
    calls = count()

    def secret() -> str:
        next(calls)  # the client calls this for every request
        return key

    before, _, _ = statistics_of_marks()
    with web() as url, BookmarkStore(url, secret, client_name="conflated") as store:
        for sub_id in sub_ids("conflated"):
            store.open(sub_id, TOPIC)
        calls_to_open = next(calls)
        took = seconds(lambda: settle_all(store))
        requests = next(calls) - calls_to_open - 1
    # The statistics are complete only after the server has ended.
    rows = statistics_of_marks()[0] - before
    singles = [*map(row, next(batches(1)))] * (SINGLES // CONSUMERS)
    alone = SINGLES / seconds(lambda: upsert_one_by_one(singles))
    print(f"{SETTLES:,} settles of {CONSUMERS:,} consumers: {SETTLES / took:,.0f}/s")
    print(f"in {took:.1f} s {requests} requests wrote {rows:,} rows", end=", ")
    print(f"{SETTLES / rows:.0f} settles each")
    print(f"raw upserts one by one: {alone:,.0f}/s, ratio {SETTLES / took / alone:.1f}")


def settle_all(store: BookmarkStore) -> None:
    """Receive the benchmark's messages for each consumer; settle them in any order."""
    subscriptions = sub_ids("conflated")
    for first in range(0, SETTLES // CONSUMERS, IN_FLIGHT):
        window = [*range(first, first + IN_FLIGHT)]
        for sub_id in subscriptions:
            for seq in window:
                store.received(sub_id, PUBLISHER, seq)
            for seq in random.sample(window, k=IN_FLIGHT):
                store.settle(sub_id, PUBLISHER, seq)
    store.flush()


def main() -> None:
    from django.db import connection

    logging.disable()
    key, some = api_key(), batches(open_positions())
    settle(next(some))  # the first settle of each consumer creates its mark
    with connection.cursor() as cursor:
        cursor.execute(BARE)
    measure_batches(key, some)
    measure_table(some)
    measure_conflation(key)


if __name__ == "__main__":
    with product():
        main()
