"""The settings of a sweeper, which the loop and its statements share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from poisonguard.errors import Misconfigured
from poisonguard.outbox.limits import MOST_DELAY

# A hundred years: threads, `timedelta` and Postgres take no endless times.
LONGEST_SECONDS = 100 * 365 * 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SweeperSettings:
    """Sizes are bytes, times seconds; `schema` is where the tables are.

    A window, which is what is claimed and sent at once, ends at `window_rows` or
    `window_bytes`. A body of more than `row_bytes`, or headers of more than
    `header_bytes`, are quarantined unread. A row whose `due_at` is more than
    `most_delay` ahead is quarantined: a clock was wrong.

    A row waits between tries from `row_pause` up to `longest_row_pause`, the loop after
    errors from `pause` up to `longest_pause`. After `breaker_errors` equal errors in a
    row the breaker opens. A row that is alone in its window and gets no answer from the
    broker `tries_alone` times, while others are sent, is quarantined.

    Figures, reports and pruning are done that often, and after an error once in
    `housekeeping_pause`. Sent rows stay for `rows_for`, and their ids and digests for
    `ids_for`.
    """

    schema: str | None = None
    window_rows: int = 500
    window_bytes: int = 16 * 2**20
    row_bytes: int = 128 * 2**20
    header_bytes: int = 2**20
    most_delay: timedelta = MOST_DELAY
    claim_seconds: float = 60.0
    poll: float = 1.0
    row_pause: float = 1.0
    longest_row_pause: float = 300.0
    pause: float = 0.5
    longest_pause: float = 30.0
    breaker_errors: int = 5
    tries_alone: int = 5
    lock_seconds: float = 2.0
    statement_seconds: float = 30.0
    figures_every: float = 0.5
    reports_every: float = 5.0
    prune_every: float = 60.0
    housekeeping_pause: float = 30.0
    rows_for: timedelta = timedelta(days=7)
    ids_for: timedelta = timedelta(days=30)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, timedelta):
                value = value.total_seconds()
            if isinstance(value, int | float) and not value > 0:
                raise Misconfigured(f"Sweeper: {field.name} must be more than 0.")
            if field.type in {"float", "timedelta"} and value > LONGEST_SECONDS:
                raise Misconfigured(f"Sweeper: {field.name} is over 100 years.")
        if self.ids_for < self.rows_for:
            raise Misconfigured(
                "Sweeper: ids_for is shorter than rows_for: the ids of sent messages"
                " must stay at least as long as their rows."
            )
