"""A connection is cut when its server has been silent for too long, and only then."""

from __future__ import annotations

import threading
import time
from functools import partial

import psycopg
import pytest

from poisonguard.locks.postgres_connection import cut_connection
from poisonguard.outbox.sweeping import connection as connection_module
from poisonguard.outbox.sweeping.connection import (
    AnswerWatch,
    OutboxConnection,
    connecting_to,
)
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

SECONDS = 0.2


class StillClock:
    """Moves by hand only, so that a stall of the machine is no silence of a server."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.seconds

    def wait_for_a_look(self) -> None:
        before = self.looks
        wait_until(lambda: self.looks > before)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock()
    monkeypatch.setattr(connection_module, "time", clock)
    return clock


class CutCount:
    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self) -> None:
        self.times.append(time.monotonic())


def threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return names.count("poisonguard sweeper watch")


def test_silence_is_cut_after_its_time_and_not_before() -> None:
    cut = CutCount()
    watch = AnswerWatch(SECONDS, cut)
    began = time.monotonic()
    with watch:
        wait_until(lambda: cut.times)
    watch.close()

    assert cut.times[0] - began > SECONDS


def test_answers_in_time_and_pauses_between_them_are_not_cut(still: StillClock) -> None:
    cut = CutCount()
    watch = AnswerWatch(SECONDS, cut)
    for _ in range(5):
        with watch:
            still.seconds += SECONDS / 2
            still.wait_for_a_look()
    still.seconds += 60  # nothing is asked
    time.sleep(3 * SECONDS)
    watch.close()

    assert cut.times == []


def test_a_statement_that_fails_is_an_answer(still: StillClock) -> None:
    cut = CutCount()
    watch = AnswerWatch(SECONDS, cut)
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError
    still.seconds += 60
    time.sleep(3 * SECONDS)
    watch.close()

    assert cut.times == []


def test_a_closed_watch_has_no_thread_and_cuts_nothing_more(still: StillClock) -> None:
    before, cut = threads(), CutCount()
    watch = AnswerWatch(SECONDS, cut)
    assert threads() == before + 1
    with watch:
        watch.close()
        assert threads() == before
        still.seconds += 60
        time.sleep(3 * SECONDS)

    assert cut.times == []
    watch.close()


def test_a_statement_without_an_answer_ends_with_its_connection(
    outbox: OutboxTables,
) -> None:
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        watch = AnswerWatch(SECONDS, partial(cut_connection, connection))
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError), watch:
            connection.execute("SELECT pg_sleep(60)")
        watch.close()

    assert time.monotonic() - began < 30


def test_a_sweeper_s_connection_is_watched_for_longer_than_its_statements_last(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", SECONDS)
    settings = SweeperSettings(statement_seconds=0.5)
    connection = OutboxConnection(connecting_to(outbox.dsn), settings)
    states = list[bool]()
    # Postgres ends it itself, and the connection stays.
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(60)")
    states.append(connection.is_usable)
    # As a frozen server, it does not.
    connection.execute("SET statement_timeout = 0")
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT pg_sleep(60)")

    assert time.monotonic() - began < 30
    assert [*states, connection.is_usable] == [True, False]
    connection.close()
