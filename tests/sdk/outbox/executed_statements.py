"""What a connection of psycopg executes."""

from __future__ import annotations

from typing import Any

import psycopg


class ExecutedStatements:
    """The texts of the statements that cursors of a connection execute, in order."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.texts = texts = list[str]()

        class NotingCursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, *values: Any, **options: Any) -> Any:
                texts.append(" ".join(str(query).split()))
                return super().execute(query, *values, **options)

        connection.cursor_factory = NotingCursor
