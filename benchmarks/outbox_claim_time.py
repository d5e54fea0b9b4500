"""Claiming a window while 100,000 rows wait, against one while only that window does.

Both look up what else has the ids, as each window does. A ratio near 1 says that the
time does not depend on what waits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from uuid import uuid4

from benchmarks._benchmark_harness import compare
from poisonguard.outbox.postgres_schema import schema
from poisonguard.outbox.sweeping import duplicates
from poisonguard.outbox.sweeping.claims import ClaimOrder, Claims
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonweb.embedded import postgres

WINDOW, MANY = 500, 100_000
PUT = """
INSERT INTO {outbox} (producer, message_id, topic, body)
SELECT 'shop', 'm-' || n, 'orders', convert_to(repeat('x', 500), 'UTF8')
FROM generate_series(1, %(rows)s) AS n
"""


class Outbox:
    """The outbox of one schema."""

    def __init__(self, dsn: str, name: str, *, rows: int) -> None:
        self._settings = SweeperSettings(schema=name, window_rows=WINDOW)
        self._connection = OutboxConnection(connecting_to(dsn), self._settings)
        sql = schema().replace("{", "{{").replace("}", "}}")
        for statement in (f"CREATE SCHEMA {name}", f"SET search_path = {name}", sql):
            self._connection.execute(statement)
        self._connection.execute(PUT, {"rows": rows})
        self._connection.execute("UPDATE {sweeper} SET fence = 1")
        self._connection.execute("VACUUM ANALYZE {outbox}")

    def claim(self) -> None:
        """Claim a window, look its ids up, and give it back."""
        claims, token = Claims(self._connection, self._settings), uuid4()
        rows = claims.claim_next(ClaimOrder(token=token, fence=1, rows=WINDOW))
        assert len(rows) == WINDOW
        duplicates.look_up(self._connection, rows)
        claims.give_back_all(token)

    def close(self) -> None:
        self._connection.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pw-bench-") as folder,
        postgres.temporary(Path(folder) / "postgres") as dsn,
    ):
        few = Outbox(dsn, "few", rows=WINDOW)
        many = Outbox(dsn, "many", rows=MANY)
        compare(
            f"rows claimed while {MANY:,} wait",
            number=WINDOW,
            ours=many.claim,
            baseline=few.claim,
            named=f"while {WINDOW:,} wait",
        )
        few.close()
        many.close()


if __name__ == "__main__":
    main()
