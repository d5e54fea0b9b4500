"""Ports of a sweeper that count their calls, and fail at one of them.

Each wait for an answer of Postgres is a call, so that also BEGIN and COMMIT are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from poisonguard.locks.lock_server import LockAttempt
from poisonguard.locks.postgres import PostgresLocks
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendOutcome
from poisonguard.outbox.sweeping.connection import Connect, connecting_to
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
)


class InjectedFault(Exception):
    """What no code expects."""


class Faults:
    """Counts the calls of all ports; fails before or after the one numbered `at`."""

    def __init__(self, at: int | None, *, is_late: bool) -> None:
        self.calls: list[str] = []
        self.is_over = at is None
        self._at = at
        self._is_late = is_late

    def call(
        self, name: str, work: Callable[[], Any], ruin: Callable[[Any], object] = bool
    ) -> Any:
        """Do the work of a port; `ruin` is what else a late fault breaks."""
        is_chosen = len(self.calls) == self._at
        self.calls.append(name)
        if is_chosen and not self._is_late:
            self.fail()
        value = work()
        if is_chosen and self._is_late:
            ruin(value)
            self.fail()
        return value

    def fail(self) -> None:
        self.is_over = True
        raise InjectedFault


def faulty_connect(dsn: str, faults: Faults) -> Connect:
    """Return a connect whose connections fail; a late fault loses the connection."""

    class FaultyConnection(psycopg.Connection[Any]):
        is_ready = False

        def wait(self, *arguments: Any, **options: Any) -> Any:
            if not self.is_ready:  # the connection is being made
                return super().wait(*arguments, **options)
            return faults.call(
                "wait",
                lambda: super(FaultyConnection, self).wait(*arguments, **options),
                lambda _: self.pgconn.finish(),
            )

    settings = connecting_to(dsn).keywords  # type: ignore[attr-defined]

    def connect() -> psycopg.Connection[Any]:
        connection: FaultyConnection = faults.call(
            "connect",
            lambda: FaultyConnection.connect("", **settings),
            FaultyConnection.close,
        )
        connection.is_ready = True
        return connection

    return connect


class FaultyPublisher(RecordingPublisher):
    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def __call__(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        work = super().__call__
        outcomes: list[SendOutcome] = self._faults.call("publish", lambda: work(batch))
        return outcomes


class FaultyReporter(RecordingReporter):
    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def report(self, rows: Sequence[QuarantinedRow]) -> Any:
        work = super().report
        return self._faults.call("report", lambda: work(rows))


class FaultyLocks(PostgresLocks):
    def __init__(self, dsn: str, faults: Faults) -> None:
        super().__init__(dsn)
        self._faults = faults

    def attempt(self, resource: str) -> LockAttempt:
        work = super().attempt
        attempt: LockAttempt = self._faults.call("lock", lambda: work(resource))
        return attempt
