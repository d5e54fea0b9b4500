"""One process works on a lane: the lock that it holds, and what follows its loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import pytest
from django.db import connection

from apps.brokers.models import Topic
from apps.core import advisory_locks, clock
from apps.core.advisory_locks import Lock, Locks
from apps.poison.models import Poison
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import serving, topic_on_queues
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lock_attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the locks that were asked for since."""
    names, attempt = list[str](), Locks.attempt

    def note(locks: Locks, name: str) -> AbstractContextManager[Lock | None]:
        names.append(name)
        return attempt(locks, name)

    monkeypatch.setattr(Locks, "attempt", note)
    return names


def end_session_of_locks() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'poisonweb lane locks'"
            "   AND datname = current_database()"
        )


def test_all_lanes_start_again_when_the_session_of_their_locks_ends(
    broker: Queues, mail: Topic
) -> None:
    topics = [
        topic_on_queues(clock.now(), name=name) for name in ("post", "fax", "wire")
    ]
    names = [f"lane:{topic.pk}" for topic in topics]
    with serving():
        wait_until(lambda: len(broker.readers) == 3)
        before = list(broker.readers)
        end_session_of_locks()
        wait_until(lambda: not any(reader in broker.readers for reader in before))
        wait_until(lambda: advisory_locks.names_locked(names) == set(names))
        for topic in topics:
            broker.put(topic.dead_letter_queue, b"x")
        wait_until(lambda: Poison.objects.count() == 3)

    assert not broker.readers
    assert advisory_locks.names_locked(names) == set()


def test_a_lane_that_lost_its_lock_to_another_process_stops(
    broker: Queues, mail: Topic, lock_attempts: list[str]
) -> None:
    post = topic_on_queues(clock.now(), name="post")
    with serving(), ExitStack() as theirs:
        wait_until(lambda: broker.readers)
        # The quicker of the two gets it.
        while not lock_of(post, theirs):
            end_session_of_locks()
        wait_until(lambda: not broker.readers)
        broker.put("post-dead", b"x")
        reads = broker.reads
        lock_attempts.clear()
        # It asks for its lock each second, and does nothing when it does not get it.
        wait_until(lambda: lock_attempts.count(f"lane:{post.pk}") == 2)
        still = (broker.reads - reads, Poison.objects.count())
        theirs.close()
        wait_until(lambda: Poison.objects.count() == 1)

    assert still == (0, 0)


def lock_of(topic: Topic, stack: ExitStack) -> Lock | None:
    return stack.enter_context(advisory_locks.attempt(f"lane:{topic.pk}"))
