"""Count the used sessions of Postgres against their limits.

Without a free session nothing new starts: no process, no lane, no command. What has its
sessions already goes on, so the shortage stays unnoticed for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection

# Fewer free sessions than this run out soon: one web process may open sixteen at once.
SPARE: Final = 10

REMEDIES: Final = {
    "server": "raise max_connections of Postgres",
    "database": "raise the connection limit of the database",
    "role": "raise the connection limit of our role",
}

# Of other roles' sessions, a role without further rights sees little but the database.
_USAGE = """
WITH sessions AS (
    SELECT datid, usesysid FROM pg_stat_activity
    WHERE backend_type = 'client backend'
       OR (backend_type IS NULL AND datid IS NOT NULL)
), bounds(kind, used, most) AS (
    SELECT 'server', (SELECT count(*) FROM sessions),
           current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0)
    UNION ALL
    SELECT 'database', (SELECT count(*) FROM sessions WHERE datid = oid), datconnlimit
    FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0
    UNION ALL
    SELECT 'role', (SELECT count(*) FROM sessions WHERE usesysid = oid), rolconnlimit
    FROM pg_roles WHERE rolname = session_user AND rolconnlimit >= 0
)
SELECT kind, used, most FROM bounds ORDER BY most - used LIMIT 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The limit with the fewest free sessions: of the server, database or role."""

    kind: str
    used: int
    most: int

    @property
    def is_short(self) -> bool:
        """Tell whether few sessions of Postgres are left."""
        return self.most - self.used < SPARE

    @property
    def remedy(self) -> str:
        """Say what to do when sessions of Postgres run short."""
        return f"{REMEDIES[self.kind]}, or run fewer processes"

    def __str__(self) -> str:
        return f"{self.used} of {self.most} are in use"


def usage() -> Usage:
    """Count the used sessions of Postgres against the limit that binds first."""
    with connection.cursor() as cursor:
        cursor.execute(_USAGE)
        kind, used, most = cursor.fetchone()
    return Usage(kind=kind, used=used, most=most)
