"""Marking sent rows of an outbox: one statement for all, against a commit per row.

The baseline runs the same statement for each row, committed by itself: it also notes
the id and the digest, and compares the claim. The second baseline is a bare UPDATE of
each row, which does neither. Postgres is durable here, as in operation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from benchmarks._benchmark_harness import compare
from poisonguard.outbox.postgres_schema import schema
from poisonguard.outbox.sweeping import sent_marks
from poisonguard.outbox.sweeping.claimed_row_decoding import ClaimedRow
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.row_claims import ClaimOrder, Claims
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonweb.embedded import postgres, process_control
from poisonweb.embedded.free_ports import free_port

NUMBER = 500
# One warm-up and five rounds of each, twice.
ROWS = 2 * 2 * 6 * NUMBER
PUT = """
INSERT INTO {outbox} (producer, message_id, topic, key, body)
SELECT 'shop', 'm-' || n, 'orders', n::text, convert_to(repeat('x', 500), 'UTF8')
FROM generate_series(1, %(rows)s) AS n
"""
MARK_ONE = "UPDATE {outbox} SET sent_at = now() WHERE row_id = %(row_id)s"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as name:
        folder, port = Path(name) / "postgres", free_port()
        postgres.prepare(folder)
        program = postgres.program(folder, port=port)
        with process_control.running(program, folder=folder):
            run(postgres.url(folder, port=port))


def run(dsn: str) -> None:
    settings = SweeperSettings(window_rows=NUMBER)
    connection = OutboxConnection(connecting_to(dsn), settings)
    for statement in (schema(), "ANALYZE"):
        connection.execute(statement.replace("{", "{{").replace("}", "}}"))
    connection.execute(PUT, {"rows": ROWS})
    connection.execute("UPDATE {sweeper} SET fence = 1")
    connection.execute("ANALYZE {outbox}")
    token, claims = uuid4(), Claims(connection, settings)
    windows = [claim(claims, token) for _ in range(ROWS // NUMBER)]

    def at_once() -> None:
        rows = windows.pop()
        assert len(sent_marks.mark_sent(connection, token, rows)) == NUMBER

    def row_by_row() -> None:
        for row in windows.pop():
            sent_marks.mark_sent(connection, token, [row])

    def bare_row_by_row() -> None:
        for row in windows.pop():
            connection.execute(MARK_ONE, {"row_id": row.row_id})

    measure(at_once, row_by_row, named="a commit per row")
    measure(at_once, bare_row_by_row, named="a commit per row, and no note of its id")
    connection.close()


def claim(claims: Claims, token: object) -> list[ClaimedRow]:
    order = ClaimOrder(token=token, fence=1, rows=NUMBER)  # type: ignore[arg-type]
    rows = [row for row in claims.claim_next(order) if isinstance(row, ClaimedRow)]
    assert len(rows) == NUMBER
    return rows


def measure(
    at_once: Callable[[], None], row_by_row: Callable[[], None], *, named: str
) -> None:
    compare(
        "rows marked as sent",
        number=NUMBER,
        ours=at_once,
        baseline=row_by_row,
        named=named,
    )


if __name__ == "__main__":
    main()
