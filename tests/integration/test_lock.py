"""Exclusive work: one at a time, free as soon as it is over, lost with its session."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection

from apps.core import lock
from apps.core.sessions import open_session

pytestmark = pytest.mark.django_db

NAME = "operation:1"
END_THE_HOLDER = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND database = (
        SELECT oid FROM pg_database WHERE datname = current_database())
"""


def test_what_one_holds_nobody_else_gets_and_everybody_sees() -> None:
    with lock.attempt(NAME) as ours, lock.attempt(NAME) as theirs:
        seen = lock.held([NAME, "operation:2"])

    assert ours
    assert theirs is None
    assert seen == {NAME}


def test_it_is_free_before_the_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    close = psycopg.Connection.close

    def look_first(session: psycopg.Connection[Any]) -> None:
        seen.append(lock.held([NAME]))
        close(session)

    monkeypatch.setattr(psycopg.Connection, "close", look_first)

    with lock.attempt(NAME) as ours:
        assert ours

    # A busy Postgres takes its time to notice that a connection was closed.
    assert seen == [set()]


def test_a_dead_network_is_found_out_whether_or_not_something_was_sent() -> None:
    with open_session("test") as session:
        told = session.info.get_parameters()

    # 5 s of silence, and 3 questions 2 s apart, are as long as what is sent may wait.
    waits = [int(told[f"keepalives_{name}"]) for name in ("idle", "interval", "count")]
    idle, interval, count = waits
    assert int(told["tcp_user_timeout"]) == 1_000 * (idle + interval * count) == 11_000


def test_one_whose_session_has_ended_knows_it_and_can_let_go() -> None:
    with lock.attempt(NAME) as ours:
        assert ours
        assert not ours.lost()
        with connection.cursor() as cursor:
            cursor.execute(END_THE_HOLDER)

        assert ours.lost()
        assert lock.held([NAME]) == set()
