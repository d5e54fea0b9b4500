"""The errors of a sweeper: counted by kind, logged seldom, equal ones pause it."""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from poisonguard.outbox.sweeping.row_quarantine_and_report import clean
from poisonguard.policy import double_pause

log = logging.getLogger(__name__)

LOG_EVERY = 60.0
# Kinds of errors that are told apart; more count as one.
MOST_KINDS = 200
TEXT_LIMIT, STACK_LIMIT = 1_000, 20_000
OTHER_KINDS = "other kinds"


class Stage(StrEnum):
    """What the sweeper was doing."""

    CONNECT = "connect"
    LOCK = "lock"
    CLAIM = "claim"
    IDS = "look up ids"
    PUBLISH = "publish"
    MARK = "mark"
    QUARANTINE = "quarantine"
    GIVE_BACK = "give back"
    REPORT = "report"
    FIGURES = "figures"
    PRUNE = "prune"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedError:
    """One kind of error at one stage; the stack is that of the first one."""

    stage: Stage
    kind: str
    count: int
    last_text: str
    first_stack: str
    first_at: float
    last_at: float


class ErrorLog:
    """Count errors by stage and kind; times are seconds since 1970."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._timer = clock, timer
        self._errors: dict[tuple[Stage, str], LoggedError] = {}
        self._logged_at: dict[tuple[Stage, str], float] = {}

    @property
    def errors(self) -> list[LoggedError]:
        """Return the sweeper's errors by kind, the latest first."""
        return sorted(self._errors.values(), key=lambda e: e.last_at, reverse=True)

    @property
    def count(self) -> int:
        return sum(error.count for error in self._errors.values())

    def note(self, stage: Stage, error: Exception) -> None:
        """Count an exception of the sweeper by its kind, and log it now and then."""
        lines = "".join(traceback.format_exception(error)).splitlines()
        stack = "\n".join(clean(line) for line in lines)[-STACK_LIMIT:]
        self._note(stage, kind_of(error), str(error), stack)

    def note_event(self, stage: Stage, kind: str, text: str) -> None:
        """Count a trouble of the sweeper that raised no exception, and log it."""
        self._note(stage, kind, text, "")

    def _note(self, stage: Stage, kind: str, text: str, stack: str) -> None:
        key = stage, kind
        if key not in self._errors and len(self._errors) >= MOST_KINDS:
            key = stage, OTHER_KINDS
        now, text = self._clock(), one_line(text)
        before = self._errors.get(key)
        self._errors[key] = (
            LoggedError(
                stage=stage,
                kind=key[1],
                count=1,
                last_text=text,
                first_stack=stack,
                first_at=now,
                last_at=now,
            )
            if before is None
            else replace(before, count=before.count + 1, last_text=text, last_at=now)
        )
        self._write(key)

    def _write(self, key: tuple[Stage, str]) -> None:
        """Log a kind of sweeper error at most once a minute, first with its stack."""
        error, now = self._errors[key], self._timer()
        if now < self._logged_at.get(key, 0.0):
            return
        self._logged_at[key] = now + LOG_EVERY
        is_first = error.count == 1 and error.first_stack
        stack = f"\n{error.first_stack}" if is_first else ""
        log.log(
            logging.ERROR if error.first_stack else logging.WARNING,
            "Sweeper, %s: %s (%d times): %s%s",
            *(error.stage, error.kind, error.count, error.last_text, stack),
        )


class SweeperBreaker:
    """Open after so many equal errors in a row; the pauses grow until one success."""

    def __init__(self, *, limit: int, pause: float, longest_pause: float) -> None:
        self._limit, self._pause, self._longest = limit, pause, longest_pause
        self._last: tuple[Stage, str] | None = None
        self._equal_errors = self.errors_in_a_row = 0
        self.opened_at: float | None = None
        self.reason = ""

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None

    def note_error(self, stage: Stage, error: Exception) -> float:
        """Note an error of the sweeper; return the seconds to pause, with jitter.

        They grow with each error in a row.
        """
        key = stage, kind_of(error)
        self._equal_errors = self._equal_errors + 1 if key == self._last else 1
        self._last = key
        self.errors_in_a_row += 1
        self.reason = one_line(f"failed to {stage}: {error}")
        if self._equal_errors >= self._limit and not self.is_open:
            self.opened_at = time.time()
            log.error(
                "The sweeper pauses: %d times in a row it %s",
                *(self._equal_errors, self.reason),
            )
        highest = double_pause(self._pause, self.errors_in_a_row - 1, cap=self._longest)
        return random.uniform(highest / 2, highest)  # noqa: S311 - no secret

    def note_success(self) -> None:
        """Reset the sweeper's back-off after a success: short pauses again."""
        if self.is_open:
            log.warning("The sweeper works again: it %s before", self.reason)
        self._last, self._equal_errors, self.errors_in_a_row = None, 0, 0
        self.opened_at, self.reason = None, ""


def one_line(text: str) -> str:
    """Return a foreign text without control characters, as a log can show it."""
    return " ".join(clean(text).split())[:TEXT_LIMIT]


def kind_of(error: Exception) -> str:
    """Name the kind of an error; Postgres's own are told apart by their codes."""
    code = getattr(error, "sqlstate", None)
    name = type(error).__name__
    return f"{name} {code}" if code else name
