"""How much is sent at once, and how long a row waits that was not sent."""

from __future__ import annotations

import random
from dataclasses import dataclass

from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.policy import double_pause

# A window without answers is followed by ones of a quarter, until a row is alone.
SHRINK = 4
MOST_LONE_ROWS = 100
# The share of a claim that one call to the broker may take, and the rows of the first.
CALL_SHARE, FIRST_CALL_ROWS = 0.25, 500


def row_pause(attempts: int, settings: SweeperSettings) -> float:
    """Draw the seconds until an unsent outbox row is tried again, with full jitter."""
    floor, cap = settings.row_pause, settings.longest_row_pause
    highest = double_pause(floor, max(attempts, 1), cap=cap)
    return random.uniform(floor, max(floor, highest))  # noqa: S311 - no secret


class WindowSize:
    """The rows of the next window: fewer after one to which the broker said nothing."""

    def __init__(self, most: int) -> None:
        self._most = self.rows = most
        self._doubtful_up_to: int | None = None

    def note_silence(self, row_ids: list[int]) -> None:
        """Shrink the next window: one of these rows may have silenced the broker."""
        self.rows = max(1, min(self.rows, len(row_ids)) // SHRINK)
        self._doubtful_up_to = None if len(row_ids) == 1 else max(row_ids)

    def note_answers(self, row_ids: list[int]) -> None:
        """Double the sweeper's window again, once the doubtful rows have answers."""
        doubtful = self._doubtful_up_to
        if doubtful is None or max(row_ids) >= doubtful:
            self._doubtful_up_to = None
            self.rows = min(self._most, self.rows * 2)


class CallSize:
    """The most rows of one call to the broker, so that it ends well before their claim.

    It begins with few, and doubles while calls are fast.
    """

    def __init__(self, settings: SweeperSettings) -> None:
        self._most = settings.window_rows
        self._longest = CALL_SHARE * settings.claim_seconds
        self.rows = min(FIRST_CALL_ROWS, self._most)

    def note_call(self, rows: int, seconds: float) -> None:
        """Adapt the number of rows of a publishing call to how long this one took."""
        if seconds > self._longest:
            self.rows = max(1, int(rows * self._longest / seconds))
        elif seconds < self._longest / 2 and rows == self.rows:
            self.rows = min(self._most, self.rows * 2)


@dataclass(slots=True)
class LoneRow:
    """A row that got no answer when it was alone in its window."""

    tries: int
    answers_before: int
    retry_at: float


class LoneRows:
    """Rows that are sent alone, because the broker said nothing to them.

    They may close the channel: in a window they would take the answers of the others.
    """

    def __init__(self, settings: SweeperSettings) -> None:
        self._settings = settings
        self._rows: dict[int, LoneRow] = {}
        self._answers = 0
        self._is_turn_of_others = False

    @property
    def row_ids(self) -> list[int]:
        return list(self._rows)

    def note_answers(self, row_ids: list[int]) -> None:
        """Count a window that the broker answered; send its rows no longer alone."""
        self._answers += 1
        for row_id in row_ids:
            self._rows.pop(row_id, None)

    def note_silence(self, row_id: int, *, now: float) -> tuple[float, bool]:
        """Note that the broker did not answer for an outbox row that was sent alone.

        Return the seconds to its next try, and whether this was the last one. It is the
        last of enough tries if others were answered meanwhile: otherwise the broker may
        be at fault.
        """
        row = self._rows.setdefault(row_id, LoneRow(0, self._answers, now))
        row.tries += 1
        is_last = row.tries >= self._settings.tries_alone
        if is_last and self._answers > row.answers_before:
            del self._rows[row_id]
            return 0.0, True
        seconds = row_pause(row.tries, self._settings)
        row.retry_at = now + seconds
        if len(self._rows) > MOST_LONE_ROWS:
            self._rows.clear()
        return seconds, False

    def next_due(self, now: float) -> int | None:
        """Return the id of a doubtful row to try alone now; every other time None."""
        if self._is_turn_of_others:
            self._is_turn_of_others = False
            return None
        due = (i for i, row in self._rows.items() if row.retry_at <= now)
        row_id = next(due, None)
        self._is_turn_of_others = row_id is not None
        return row_id

    def forget(self, row_id: int) -> None:
        """Stop tracking a doubtful outbox row that waits no longer."""
        self._rows.pop(row_id, None)
