"""A visit ends after half an hour without a page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from apps.dashboard import last_visit
from tests.conftest import NOON


def test_a_visit_ends_after_half_an_hour() -> None:
    session: dict[str, Any] = {}
    minutes = (0, 20, 40, 71, 72)

    visits = [
        last_visit.record_visit(session, now=NOON + timedelta(minutes=minute))
        for minute in minutes
    ]

    forty = NOON + timedelta(minutes=40)
    assert visits == [None, None, None, forty, forty]


def test_asking_when_somebody_was_here_is_no_visit() -> None:
    session: dict[str, Any] = {}
    last_visit.record_visit(session, now=NOON)
    before = dict(session)

    assert last_visit.previous_visit(session) is None
    assert session == before


def test_views_within_a_minute_write_the_session_once() -> None:
    session: dict[str, Any] = {}
    stored = []

    for second in (0, 59, 60):
        last_visit.record_visit(session, now=NOON + timedelta(seconds=second))
        stored.append(dict(session))

    assert stored[0] == stored[1] != stored[2]


def test_a_clock_that_was_set_back_does_not_stop_the_record() -> None:
    session: dict[str, Any] = {}
    last_visit.record_visit(session, now=NOON + timedelta(days=1))
    ahead = dict(session)

    last_visit.record_visit(session, now=NOON)

    assert session != ahead
