"""The tables of the record of failed messages, and for how long rows stay there."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

from poisonguard.journal.failed_attempts_record import stamp

# An older crash says nothing about the next one.
DECAY = timedelta(hours=72)
KEEP = timedelta(days=30)
# A consumer killed between poisoning and settling a message gets it again within this
# time; a later delivery means that a producer sent it again.
UNSETTLED = timedelta(minutes=15)
# By then all processes of this consumer have the skip of a poisoned message.
SKIP_COMES = timedelta(minutes=1)
ROW_LIMIT = 100_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS failures (
    identity BLOB PRIMARY KEY, number INTEGER NOT NULL, failures INTEGER NOT NULL,
    first_at INTEGER NOT NULL, at INTEGER NOT NULL, due_at INTEGER,
    first_enqueued_at INTEGER
);
CREATE TABLE IF NOT EXISTS crashes (
    number INTEGER PRIMARY KEY, crashes INTEGER NOT NULL, suspected INTEGER NOT NULL,
    first_at INTEGER NOT NULL, at INTEGER NOT NULL, cause TEXT NOT NULL,
    reason TEXT NOT NULL, stacks TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS poisoned (
    bookmark BLOB PRIMARY KEY, number INTEGER NOT NULL, at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS deaths (incarnation BLOB PRIMARY KEY, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS told (identity BLOB PRIMARY KEY, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS redrives (
    message TEXT, n TEXT, at INTEGER NOT NULL, PRIMARY KEY (message, n)
);
"""
KEPT = {
    "failures": KEEP,
    "crashes": DECAY,
    "poisoned": UNSETTLED,
    "deaths": KEEP,
    "told": KEEP,
    "redrives": KEEP,
}

FAIL = """
INSERT INTO failures VALUES (:identity, :number, 1, :now, :now, :due, :enqueued)
ON CONFLICT (identity) DO UPDATE SET
    number = excluded.number, failures = failures + 1, at = excluded.at,
    due_at = excluded.due_at,
    first_enqueued_at = coalesce(first_enqueued_at, excluded.first_enqueued_at)
"""
# A count that has decayed starts again from 0.
CRASH = """
INSERT INTO crashes
VALUES (:number, :crashes, :suspected, :now, :now, :cause, :reason, :stacks)
ON CONFLICT (number) DO UPDATE SET
    crashes = excluded.crashes + CASE WHEN at < :decayed THEN 0 ELSE crashes END,
    suspected = excluded.suspected, at = excluded.at, cause = excluded.cause,
    reason = excluded.reason, stacks = excluded.stacks
"""
PRUNE = (
    "UPDATE {table} SET at = :now WHERE at > :now",
    "DELETE FROM {table} WHERE at < :oldest",
    "DELETE FROM {table} WHERE rowid IN "
    "(SELECT rowid FROM {table} ORDER BY at DESC LIMIT -1 OFFSET :rows)",
)


def prune(db: sqlite3.Connection, now: datetime) -> None:
    """Delete rows that are old, or beyond ROW_LIMIT, from the failed-attempt tables."""
    # Rows from the future were written before the clock was set back.
    db.execute(
        "UPDATE failures SET due_at = due_at - at + :now WHERE at > :now",
        {"now": stamp(now)},
    )
    for table, keep in KEPT.items():
        limits = {"now": stamp(now), "oldest": stamp(now - keep), "rows": ROW_LIMIT}
        for statement in PRUNE:
            db.execute(statement.format(table=table), limits)
