"""Claiming a window while 100,000 rows wait, against one while only that window does.

Both look up what else has the ids, as each window does; in the first as many were sent
before. They take turns first in new tables, which have no statistics yet, then in
analyzed ones. A ratio near 1 says that the time does not depend on what waits. It is
processor time, here and in Postgres, for on a busy machine only that has a meaning.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from uuid import uuid4

from benchmarks._benchmark_harness import compare
from poisonguard.outbox.postgres_schema import schema
from poisonguard.outbox.sweeping import repeated_message_ids
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.row_claims import ClaimOrder, Claims
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonweb.embedded import postgres

WINDOW, MANY = 500, 100_000
PUT = """
INSERT INTO {outbox} (producer, message_id, topic, body)
SELECT 'shop', 'm-' || n, 'orders', convert_to(repeat('x', 500), 'UTF8')
FROM generate_series(1, %(rows)s) AS n
"""
NOTE = """
INSERT INTO {sent} (producer, message_id, digest)
SELECT 'shop', 'earlier-' || n, '' FROM generate_series(1, %(rows)s) AS n
"""
TABLES = ("{outbox}", "{sent}")


class Outbox:
    """The outbox of one schema."""

    def __init__(self, dsn: str, name: str, *, rows: int, ids: int) -> None:
        self._settings = SweeperSettings(schema=name, window_rows=WINDOW)
        self._connection = OutboxConnection(connecting_to(dsn), self._settings)
        sql = schema().replace("{", "{{").replace("}", "}}").replace("%", "%%")
        for statement in (f"CREATE SCHEMA {name}", f"SET search_path = {name}", sql):
            self._connection.execute(statement)
        for table in TABLES:
            statement = f"ALTER TABLE {table} SET (autovacuum_enabled = false)"
            self._connection.execute(statement)
        self._connection.execute(PUT, {"rows": rows})
        self._connection.execute(NOTE, {"rows": ids})
        self._connection.execute("UPDATE {sweeper} SET fence = 1")

    def analyze(self) -> None:
        """Run VACUUM ANALYZE on the outbox's tables, as Postgres does in a minute."""
        for table in TABLES:
            self._connection.execute(f"VACUUM ANALYZE {table}")

    def claim(self) -> None:
        """Claim a window of outbox rows, look up their ids, and give the rows back."""
        claims, token = Claims(self._connection, self._settings), uuid4()
        rows = claims.claim_next(ClaimOrder(token=token, fence=1, rows=WINDOW))
        assert len(rows) == WINDOW
        repeated_message_ids.read_same_ids(self._connection, rows)
        claims.give_back_all(token)

    def processor_seconds(self) -> float:
        """Return the processor time of the outbox's session in Postgres."""
        ((pid,),) = self._connection.execute("SELECT pg_backend_pid()")
        text = Path(f"/proc/{pid}/schedstat").read_text()
        return int(text.split()[0]) / 1e9

    def close(self) -> None:
        self._connection.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pw-bench-") as folder,
        postgres.temporary(Path(folder) / "postgres") as dsn,
    ):
        few = Outbox(dsn, "few", rows=WINDOW, ids=0)
        many = Outbox(dsn, "many", rows=MANY, ids=MANY)
        claim_in_turn(many, few, "new tables")
        for outbox in (many, few):
            outbox.analyze()
        claim_in_turn(many, few, "analyzed tables")
        for outbox in (many, few):
            outbox.close()


def claim_in_turn(many: Outbox, few: Outbox, title: str) -> None:
    def clock() -> float:
        sessions = (outbox.processor_seconds() for outbox in (many, few))
        return time.thread_time() + sum(sessions)

    compare(
        f"{title}, rows claimed while {MANY:,} wait",
        number=WINDOW,
        ours=many.claim,
        baseline=few.claim,
        named=f"while {WINDOW:,} wait",
        clock=clock,
    )


if __name__ == "__main__":
    main()
