"""Drop a database of the tests, also while sessions or the vacuum use it."""

from __future__ import annotations

from typing import Any, Protocol

# DROP DATABASE itself waits 5 seconds for them: on a busy machine they may take longer.
END_SESSIONS = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = %s AND backend_type = 'client backend'
"""


class Session(Protocol):
    def execute(self, query: str, params: Any = ..., /) -> object: ...


def drop_database(name: str, session: Session) -> None:
    """Drop a database, where it exists, by a connection to another one.

    WITH (FORCE) would be refused whenever the vacuum is at work there, which only a
    superuser may end so.
    """
    session.execute(END_SESSIONS, [name])
    session.execute(f"DROP DATABASE IF EXISTS {name}")
