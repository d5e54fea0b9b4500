"""Import psycopg, or raise an error that says what to install."""

from __future__ import annotations

try:
    import psycopg
    from psycopg import adapt, pq, sql
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as missing:
    raise ImportError(
        "poisonguard.outbox.sweeping needs psycopg: pip install 'poisonguard[postgres]'"
    ) from missing

__all__ = ["adapt", "conninfo_to_dict", "make_conninfo", "pq", "psycopg", "sql"]
