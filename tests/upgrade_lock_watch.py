"""Watch what writers suffer from an upgrade: how long locks last, and who waits.

A lock that a migration waits for counts from its request on, because everybody who
comes later waits behind it. While the machine stands still, no time passes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from tests.waiting import stall_free_timer

WATCH_EVERY, WRITE_EVERY = 0.02, 0.05  # seconds
# These keep writers away from a table, or are waited for by all who come later.
STRONG = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")

LOCKS = """
SELECT pid, relation::regclass::text, mode, xact_start, left(query, 200)
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'relation' AND mode = ANY(%s) AND backend_type = 'client backend'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND EXISTS (SELECT FROM pg_class
              WHERE pg_class.oid = relation AND relkind IN ('r', 'p'))
"""
INSERT = """
INSERT INTO poison_failure (day, poison_id, problem_id, report_id, is_first, bookmark,
    cause, error_type, error_message, traceback, client_name, attempts, failures,
    crashes, first_failed_at, failed_at, captured_at)
SELECT (now() AT TIME ZONE 'UTC')::date, id, problem_id, gen_random_uuid(), false,
       bookmark, cause, error_type, error_message, '', 'writer', 1, 1, 0, now(), now(),
       now()
FROM poison_poison WHERE id = %s
"""
UPDATE = """
UPDATE poison_poison SET failures = failures + 1, last_failed_at = now() WHERE id = %s
"""


@dataclass(kw_only=True)
class LockWatch:
    """Times in seconds: of each lock, with its statement, and of each write.

    A lock is one of a session on a table, with its mode.
    """

    locks: dict[tuple[int, str, str], tuple[float, str]] = field(default_factory=dict)
    writes: list[float] = field(default_factory=list)

    @property
    def longest_lock(self) -> tuple[float, tuple[object, ...]]:
        """Return the time of the upgrade's longest lock, and which one it was."""
        return max((seconds, (*of, text)) for of, (seconds, text) in self.locks.items())

    @property
    def longest_write(self) -> float:
        """Return the time of the slowest write in the upgrade, its locks included."""
        return max(self.writes)


@contextmanager
def watched(database_url: str, *, poisons: list[int]) -> Iterator[LockWatch]:
    """Watch all locks, and write to these poisons and their failures, meanwhile."""
    watch, end = LockWatch(), threading.Event()
    with stall_free_timer() as timer, ThreadPoolExecutor(2) as threads:
        work = [
            threads.submit(_note_locks, database_url, watch, end, timer),
            threads.submit(_write, database_url, watch, end, poisons, timer),
        ]
        try:
            yield watch
        finally:
            end.set()
    for each in work:
        each.result()


def _note_locks(
    database_url: str,
    watch: LockWatch,
    end: threading.Event,
    timer: Callable[[], float],
) -> None:
    # Of one transaction: it may end, and the next one begin, between two looks.
    since: dict[tuple[int, str, str, datetime], float] = {}
    with psycopg.connect(database_url, autocommit=True) as session:
        while not end.wait(WATCH_EVERY):
            rows = session.execute(LOCKS, [list(STRONG)]).fetchall()
            now = timer()
            texts = {tuple(lock): text for *lock, text in rows}
            since = {lock: since.get(lock, now) for lock in texts}
            for lock, began in since.items():
                longest = watch.locks.get(lock[:3], (0.0, ""))
                watch.locks[lock[:3]] = max(longest, (now - began, texts[lock]))


def _write(
    database_url: str,
    watch: LockWatch,
    end: threading.Event,
    poisons: list[int],
    timer: Callable[[], float],
) -> None:
    numbers = itertools.cycle(poisons)
    with psycopg.connect(database_url, autocommit=True) as session:
        while not end.wait(WRITE_EVERY):
            number = next(numbers)
            for statement in (INSERT, UPDATE):
                began = timer()
                session.execute(statement, [number])
                watch.writes.append(timer() - began)
