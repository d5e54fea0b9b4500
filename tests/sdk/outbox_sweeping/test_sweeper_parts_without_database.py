"""Parts of a sweeper without a database: settings, errors, rows it leaves out."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import AskError, MovedError, ResponseError

from poisonguard.errors import Misconfigured
from poisonguard.outbox.outcome import SendKind
from poisonguard.outbox.publishers.redis_streams import _outcome
from poisonguard.outbox.sweeping.error_log import ErrorLog, Stage, SweeperBreaker
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.unmarkable_rows import (
    LEFT_OUT_SECONDS,
    UnmarkableRows,
)


@pytest.mark.parametrize(
    "settings",
    [
        {"poll": float("inf")},
        {"poll": 1e300},
        {"pause": 10**12},
        {"ids_for": timedelta.max},
    ],
)
def test_times_that_no_thread_can_wait_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="is over 100 years"):
        SweeperSettings(**settings)


def test_sizes_may_be_larger_than_any_row() -> None:
    assert SweeperSettings(window_bytes=2**60).window_bytes == 2**60


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MovedError("3999 127.0.0.1:6381"), SendKind.UNSENT),
        (AskError("3999 127.0.0.1:6381"), SendKind.UNSENT),
        (ResponseError("WRONGTYPE no stream"), SendKind.REFUSED),
    ],
)
def test_a_node_of_another_slot_refuses_no_message(
    error: ResponseError, kind: SendKind
) -> None:
    assert _outcome(error).kind is kind


def test_no_control_character_of_others_reaches_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "no\x1b]0;title\x07 queue\nSweeper, publish: all is well\x9b2J"
    errors = ErrorLog()
    breaker = SweeperBreaker(limit=1, pause=1.0, longest_pause=1.0)

    errors.note_event(Stage.PUBLISH, "unsent", text)
    errors.note(Stage.PUBLISH, ValueError(text))
    breaker.note_error(Stage.PUBLISH, ValueError(text))
    breaker.note_success()

    assert len(caplog.messages) == 4
    for message in caplog.messages:
        # A stack has lines of its own.
        assert all(line.isprintable() for line in message.split("\n")), message
    assert [message.count("\n") > 0 for message in caplog.messages] == [
        *(False, True, False, False),
    ]
    assert "no ]0;title queue Sweeper" in errors.errors[0].last_text
    assert "ValueError" in errors.errors[0].first_stack


def test_rows_come_back_by_time_and_not_because_of_a_look() -> None:
    rows = UnmarkableRows()
    rows.add(101, "a trigger", now=7.0)

    assert rows.left_out(7.0 + LEFT_OUT_SECONDS) == []
    assert rows.left_out(7.0) == [101]


def test_other_threads_may_look_while_rows_are_added() -> None:
    rows, is_over, errors = UnmarkableRows(), threading.Event(), list[Exception]()

    def look() -> None:
        try:
            while not is_over.is_set():
                rows.left_out(0.0)
        except (RuntimeError, KeyError) as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in "abc"]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for row_id in range(101, 10_000):
            rows.add(row_id, "", now=float(row_id % 7) - LEFT_OUT_SECONDS - 3.0)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)

    assert errors == []
