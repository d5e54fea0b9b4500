"""What a window reads does not depend on what waits, or on what was sent before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from poisonguard.outbox.sweeping.connection import Connect, connecting_to
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    sweeping,
)

WINDOW, MANY = 100, 20_000
REMOVED = ("Rows Removed by Filter", "Rows Removed by Join Filter")


def rows_read(node: dict[str, Any]) -> Iterator[float]:
    """Yield how many rows each node of a plan went through."""
    removed = sum(node.get(name, 0) for name in REMOVED)
    yield (node["Actual Rows"] + removed) * node["Actual Loops"]
    for part in node.get("Plans", ()):
        yield from rows_read(part)


def explaining_connect(dsn: str, most: list[float]) -> Connect:
    """Return a connect; `most` gets the largest node of each plan for a window."""

    class ExplainingConnection(psycopg.Connection[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            if "claim_token" in query or "given" in query:
                super().execute("BEGIN")
                explained = super().execute(
                    f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", params
                )
                ((((plan,)),),) = explained.fetchall()
                super().execute("ROLLBACK")
                most.append(max(rows_read(plan["Plan"])))
            return super().execute(query, params, **options)

    settings = connecting_to(dsn).keywords  # type: ignore[attr-defined]
    return lambda: ExplainingConnection.connect("", **settings)


@pytest.mark.parametrize("has_statistics", [False, True])
def test_a_window_reads_its_own_rows(
    outbox: OutboxTables, has_statistics: bool
) -> None:
    for table in ("poisonguard_outbox", "poisonguard_outbox_sent"):
        outbox.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    outbox.put_many(MANY)
    outbox.execute(
        "INSERT INTO poisonguard_outbox_sent"
        " SELECT 'shop', 'earlier-' || n, '' FROM generate_series(1, %s) AS n",
        [MANY],
    )
    if has_statistics:
        outbox.execute("ANALYZE")
    most, publisher = list[float](), RecordingPublisher()

    with sweeping(
        outbox.dsn,
        publisher,
        connect=explaining_connect(outbox.dsn, most),
        window_rows=WINDOW,
    ) as sweeper:
        for _ in range(3):
            sweeper.work_once()

    assert len(publisher.sent_messages) == 3 * WINDOW
    assert len(most) == 3 * 3  # claim, look up, mark
    assert max(most) <= 10 * WINDOW
