"""Locks: one owner at a time, released at once, lost with their session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from django.db import connection

from apps.capture.models import Lane
from apps.core import advisory_locks
from apps.core.advisory_locks import Locks
from apps.core.postgres_connections import open_session
from apps.triage.models import lock_name
from tests.races import at_once
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

NAME = "operation:1"
END_THE_HOLDER = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND database = (
        SELECT oid FROM pg_database WHERE datname = current_database())
    LIMIT 1
"""


def test_a_lock_has_one_owner_and_is_visible_to_others() -> None:
    with advisory_locks.attempt(NAME) as ours, advisory_locks.attempt(NAME) as theirs:
        names = advisory_locks.names_locked([NAME, "operation:2"])

    assert ours
    assert theirs is None
    assert names == {NAME}


def test_lanes_and_operations_lock_the_names_that_every_release_does() -> None:
    assert Lane(pk=7).lock_name == "lane:7"
    assert lock_name(7) == "operation:7"


def test_a_lock_is_released_before_its_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []
    close = psycopg.Connection.close

    def look_first(session: psycopg.Connection[Any]) -> None:
        names.append(advisory_locks.names_locked([NAME]))
        close(session)

    monkeypatch.setattr(psycopg.Connection, "close", look_first)

    with advisory_locks.attempt(NAME) as ours:
        assert ours

    # A busy Postgres may notice late that a connection was closed.
    assert names == [set()]


def test_keepalives_and_the_tcp_timeout_find_a_dead_network_equally_fast() -> None:
    with open_session("test") as session:
        parameters = session.info.get_parameters()

    # 5 s of silence and 3 probes 2 s apart are as long as sent data may wait.
    waits = [
        int(parameters[f"keepalives_{name}"]) for name in ("idle", "interval", "count")
    ]
    idle, interval, count = waits
    assert (
        int(parameters["tcp_user_timeout"])
        == 1_000 * (idle + interval * count)
        == 11_000
    )


def test_a_lock_is_lost_and_can_be_released_when_its_session_ended() -> None:
    with advisory_locks.attempt(NAME) as ours:
        assert ours
        assert not ours.lost()
        with connection.cursor() as cursor:
            cursor.execute(END_THE_HOLDER)

        assert ours.lost()
        assert advisory_locks.names_locked([NAME]) == set()


# --- many on one session


@pytest.fixture
def locks() -> Iterator[Locks]:
    with closing(Locks("test locks")) as locks:
        yield locks


def end_the_holder() -> None:
    with connection.cursor() as cursor:
        cursor.execute(END_THE_HOLDER)


def sessions_of_locks() -> int:
    """Count the sessions; one of the test before may still be ending."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'poisonweb test locks'"
        )
        return int(cursor.fetchone()[0])


def test_many_locks_are_on_one_session_each_for_one_owner(locks: Locks) -> None:
    names = [f"lane:{number}" for number in range(40)]
    with closing(Locks()) as others, ExitStack() as stack:
        ours = [stack.enter_context(locks.attempt(name)) for name in names]
        again = [stack.enter_context(locks.attempt(name)) for name in names]
        theirs = [stack.enter_context(others.attempt(name)) for name in names]
        # As a process of the previous release acquires it, on its own session.
        alone = stack.enter_context(advisory_locks.attempt(names[0]))

        assert all(ours)
        assert not any([*again, *theirs, alone])
        wait_until(lambda: sessions_of_locks() == 1)


def test_releasing_one_lock_keeps_the_others(locks: Locks) -> None:
    with locks.attempt("lane:1") as first:
        with locks.attempt("lane:2"):
            pass
        remaining = advisory_locks.names_locked(["lane:1", "lane:2"])
        with advisory_locks.attempt("lane:2") as theirs:
            assert theirs

        assert remaining == {"lane:1"}
        assert first
        assert not first.lost()


def test_all_locks_are_lost_with_their_session_and_can_be_acquired_again(
    locks: Locks,
) -> None:
    with locks.attempt("lane:1") as first, locks.attempt("lane:2") as second:
        assert first
        assert second
        end_the_holder()
        assert first.lost()
        # Without another query: all locks know what one has learned.
        assert second.lost()

        with (
            locks.attempt("lane:1") as renewed,
            advisory_locks.attempt("lane:1") as theirs,
        ):
            assert renewed
            assert not renewed.lost()
            assert theirs is None
            assert first.lost()


def test_releasing_a_lost_lock_leaves_its_new_owner_alone(locks: Locks) -> None:
    with ExitStack() as later:
        with locks.attempt(NAME) as lost:
            assert lost
            end_the_holder()
            assert lost.lost()
            renewed = later.enter_context(locks.attempt(NAME))
        with locks.attempt(NAME) as again, advisory_locks.attempt(NAME) as theirs:
            assert renewed
            assert not again
            assert not theirs
            assert not renewed.lost()


def test_the_first_lock_after_an_unnoticed_end_fails_and_the_next_succeeds(
    locks: Locks,
) -> None:
    with locks.attempt("lane:1") as first:
        end_the_holder()
        with pytest.raises(psycopg.OperationalError), locks.attempt("lane:2"):
            pass

        assert first
        assert first.lost()
        with locks.attempt("lane:2") as second:
            assert second


def test_a_session_counts_as_alive_for_a_while_after_an_answer() -> None:
    at = [100.0]
    with (
        closing(Locks(trust=0.5, timer=lambda: at[0])) as locks,
        locks.attempt(NAME) as ours,
    ):
        assert ours
        end_the_holder()
        at[0] += 0.4
        unseen = ours.lost()
        at[0] += 0.1

        assert not unseen
        assert ours.lost()
        with locks.attempt(NAME) as renewed:
            assert renewed
            assert ours.lost()
            assert not renewed.lost()


@pytest.mark.django_db(transaction=True)
def test_threads_take_turns(locks: Locks) -> None:
    inside: list[str] = []

    def work() -> None:
        for number in range(60):
            name = f"lane:{number % 3}"
            with locks.attempt(name) as acquired:
                if acquired:
                    inside.append(name)
                    assert inside.count(name) == 1
                    assert not acquired.lost()
                    inside.remove(name)

    at_once(*[work] * 8)

    assert (
        advisory_locks.names_locked([f"lane:{number}" for number in range(3)]) == set()
    )
    wait_until(lambda: sessions_of_locks() == 1)
