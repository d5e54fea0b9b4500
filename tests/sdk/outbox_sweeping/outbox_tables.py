"""The tables of an outbox, as a producer, a corrupter or a person changes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from poisonguard.outbox.postgres_schema import schema

DROP_ALL = """
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
"""
# As when their time has passed: a short time would end while a busy machine stalls.
CLAIMS_END = """
UPDATE poisonguard_outbox SET due_at = now() WHERE due_at > now()
"""
PUT = """
INSERT INTO poisonguard_outbox (producer, message_id, topic, key, body, headers)
SELECT %s, 'm-' || number, %s, %s, convert_to('body ' || number, 'UTF8'), '{}'
FROM generate_series(%s::int, %s::int) AS number
"""


class OutboxTables:
    """One connection of a producer named `shop`, and questions about the tables."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection: psycopg.Connection[Any] = psycopg.connect(
            dsn, autocommit=True, application_name="shop"
        )

    def close(self) -> None:
        self.connection.close()

    def make(self) -> None:
        self.connection.execute(DROP_ALL)
        self.connection.execute(schema())
        # Row numbers do not begin at 1.
        self.connection.execute(
            "ALTER TABLE poisonguard_outbox ALTER row_id RESTART WITH 101"
        )

    def drop_unique_index(self) -> None:
        """Make it the table of the article, whose ids may come twice."""
        self.connection.execute(
            "ALTER TABLE poisonguard_outbox"
            " DROP CONSTRAINT poisonguard_outbox_one_message"
        )

    def allow_nulls(self) -> None:
        for column in ("producer", "message_id", "topic", "key", "body", "headers"):
            self.execute(f"ALTER TABLE poisonguard_outbox ALTER {column} DROP NOT NULL")

    def put_many(
        self, count: int, *, topic: str = "orders", key: str = "", first: int = 1
    ) -> None:
        """Put messages `m-1` and so on into the outbox, each with its body."""
        last = first + count - 1
        self.connection.execute(PUT, ["shop", topic, key, first, last])

    def put(
        self,
        message_id: str | None,
        body: bytes | None = b"body",
        *,
        topic: str | None = "orders",
        key: str = "",
        headers: Sequence[bytes | None] | None = (),
    ) -> int:
        """Put one message into the outbox; return its row."""
        ((row_id,),) = self.execute(
            "INSERT INTO poisonguard_outbox"
            " (producer, message_id, topic, key, body, headers)"
            " VALUES ('shop', %s, %s, %s, %s, %s::bytea[]) RETURNING row_id",
            [
                *(message_id, topic, key, body),
                None if headers is None else list(headers),
            ],
        )
        return int(row_id)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def count(self, condition: str = "true") -> int:
        ((number,),) = self.execute(
            f"SELECT count(*) FROM poisonguard_outbox WHERE {condition}"
        )
        return int(number)

    @property
    def waiting(self) -> int:
        return self.count(
            "sent_at IS NULL AND duplicate_of IS NULL AND quarantined_at IS NULL"
        )

    def column(self, name: str, row_id: int) -> Any:
        ((value,),) = self.execute(
            f"SELECT {name} FROM poisonguard_outbox WHERE row_id = %s", [row_id]
        )
        return value

    def reasons(self) -> dict[int, str]:
        """Return the reason of each quarantined row."""
        return dict(
            self.execute(
                "SELECT row_id, quarantine_reason FROM poisonguard_outbox"
                " WHERE quarantined_at IS NOT NULL ORDER BY row_id"
            )
        )

    def row_ids(self, message_ids: Iterable[str]) -> list[int]:
        rows = self.execute(
            "SELECT row_id FROM poisonguard_outbox WHERE message_id = ANY (%s)"
            " ORDER BY row_id",
            [list(message_ids)],
        )
        return [row_id for (row_id,) in rows]
