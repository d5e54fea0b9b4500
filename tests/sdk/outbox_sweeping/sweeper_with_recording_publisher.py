"""A sweeper of a test, with a publisher that records what it is given."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from poisonguard.locks.postgres import PostgresLocks
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import Publish, SendKind, SendOutcome
from poisonguard.outbox.sweeping.connection import Connect, connecting_to
from poisonguard.outbox.sweeping.row_quarantine_and_report import (
    QuarantinedRow,
    QuarantineReporter,
    ReportAnswer,
)
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper import Sweeper

SENT = SendOutcome(kind=SendKind.SENT)
# As fast as a test wishes.
FAST: dict[str, Any] = {
    "poll": 0.01,
    "row_pause": 0.01,
    "longest_row_pause": 0.05,
    "pause": 0.01,
    "longest_pause": 0.05,
    "reports_every": 0.01,
    "housekeeping_pause": 0.05,
    "claim_seconds": 20.0,
}


class RecordingPublisher:
    """Sends nothing, and answers as a test wishes: `sent_messages` got a yes."""

    def __init__(self) -> None:
        self.windows: list[list[OutboxMessage]] = []
        self.sent_messages: list[OutboxMessage] = []
        self.before: Callable[[Sequence[OutboxMessage]], object] = lambda batch: None
        self.answer: Callable[[OutboxMessage], SendOutcome] = lambda message: SENT

    def __call__(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        self.windows.append(list(batch))
        self.before(batch)
        outcomes = [self.answer(message) for message in batch]
        self.sent_messages += [
            message
            for message, outcome in zip(batch, outcomes, strict=True)
            if outcome.kind is SendKind.SENT
        ]
        return outcomes

    @property
    def counts(self) -> Counter[str]:
        """Count how often each message id was sent."""
        return Counter(message.message_id for message in self.sent_messages)


class RecordingReporter:
    """Takes all reports, or those that `accepts` lets pass."""

    def __init__(self) -> None:
        self.rows: list[QuarantinedRow] = []
        self.before: Callable[[], object] = lambda: None
        self.accepts: Callable[[QuarantinedRow], bool] = lambda row: True

    def report(self, rows: Sequence[QuarantinedRow]) -> list[ReportAnswer]:
        self.before()
        self.rows += [row for row in rows if self.accepts(row)]
        return [
            ReportAnswer(is_accepted=self.accepts(row), detail="no") for row in rows
        ]

    def by_row(self) -> dict[int, QuarantinedRow]:
        return {row.row_id: row for row in self.rows}


@contextmanager
def sweeping(
    dsn: str,
    publish: Publish,
    *,
    reporter: QuarantineReporter | None = None,
    connect: Connect | None = None,
    slowed_topics: Callable[[], Collection[str]] = tuple,
    **settings: Any,
) -> Iterator[Sweeper]:
    sweeper = Sweeper(
        connect or connecting_to(dsn),
        PostgresLocks(dsn),
        publish,
        reporter=reporter,
        slowed_topics=slowed_topics,
        settings=SweeperSettings(**(FAST | settings)),
    )
    try:
        yield sweeper
    finally:
        sweeper.close()


def work_until(
    sweeper: Sweeper, is_done: Callable[[], object], *, seconds: float = 60.0
) -> None:
    """Let the sweeper work, turn by turn, until a condition is true.

    Between turns it waits as long as the sweeper asks for: where there is work, not at
    all.
    """
    deadline = time.monotonic() + seconds
    pause = sweeper.work_once()
    while not is_done():
        in_time = time.monotonic() < deadline
        assert in_time, f"not done within {seconds:g} s: {sweeper.errors.errors}"
        time.sleep(min(pause, 0.1))
        pause = sweeper.work_once()
