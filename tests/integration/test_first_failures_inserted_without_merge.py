"""First failures go straight into their tables: the record is that of a merge."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext

from apps.brokers.adapter_contract import DeadLetter
from apps.brokers.errors import Removed
from apps.brokers.models import Topic
from apps.capture.intake import (
    first_failure_inserts_without_merge,
    repeat_folding,
    services,
)
from apps.capture.intake.occurrence import (
    Occurrence,
    from_dead_letter,
    from_report,
)
from apps.capture.intake.staged_occurrences_merge import merge
from apps.poison.models import Alias, Body, Failure, Poison, Problem
from poisonguard.contract import parse_failure
from tests.failure_report_builders import GUARD, capture, failure
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import topic_on_queues
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.races import together
from tests.skip_builders_and_list_mirror import topic_named
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
# NUL, half a pair, a right-to-left mark, quotes, what SQL and COPY may stumble over.
HOSTILE = "a\0b\ud800\u202e'\"\\N\\x00{,}\t\n;--%s"
Batch = Sequence[Occurrence]
Store = Callable[[CursorWrapper, Batch], list[tuple[str, int]]]

# Each row without what differs from one run to the next: its ids and transaction.
RECORD = {
    "poison": """
        SELECT to_jsonb(poison) - 'id' - 'captured_xid' - 'problem_id'
               || jsonb_build_object('problem', encode(problem.fingerprint, 'hex'))
        FROM poison_poison poison JOIN poison_problem problem
             ON problem.id = problem_id
        ORDER BY identity, reuse
    """,
    "body": """
        SELECT to_jsonb(body) - 'poison_id' FROM poison_body body
        JOIN poison_poison poison ON poison.id = poison_id ORDER BY identity, reuse
    """,
    "failure": """
        SELECT to_jsonb(failure) - 'id' - 'captured_xid' - 'problem_id' - 'poison_id'
               || jsonb_build_object('of', encode(poison.identity, 'hex'),
                                     'reuse', poison.reuse)
        FROM poison_failure failure JOIN poison_poison poison ON poison.id = poison_id
        ORDER BY failure.id
    """,
    "problem": """
        SELECT to_jsonb(problem) - 'id' FROM poison_problem problem
        ORDER BY topic_id, consumer_group, fingerprint
    """,
    "skip": """
        SELECT to_jsonb(skip) - 'id' - 'poison_id' FROM poison_skip skip
        ORDER BY value, consumer_group
    """,
    "folded": """
        SELECT jsonb_agg(report ORDER BY report)
        FROM poison_folded_reports, unnest(reports) AS report
    """,
    "delivery": "SELECT to_jsonb(row) FROM capture_delivery row ORDER BY report_id",
    "alias": "SELECT to_jsonb(row) - 'poison_id' FROM poison_alias row ORDER BY 1",
}


def record() -> dict[str, list[object]]:
    with connection.cursor() as cursor:
        rows = {}
        for table, statement in RECORD.items():
            cursor.execute(statement)
            rows[table] = [row for (row,) in cursor.fetchall()]
    return rows


def stored(
    store: Callable[..., list[tuple[str, int]]], batches: Sequence[Batch], now: datetime
) -> tuple[list[list[str]], dict[str, list[object]]]:
    """Store batches, return the statuses and the record, and roll all of it back."""
    with transaction.atomic(), connection.cursor() as cursor:
        statuses = []
        for turn, batch in enumerate(batches):
            answers = store(cursor, batch, now=now + turn * SECOND)
            statuses.append([status for status, _ in answers])
            numbers = {pk for _, pk in answers}
            assert Poison.objects.filter(pk__in=numbers).count() == len(numbers)
        whole = statuses, record()
        transaction.set_rollback(True)
    return whole


def one_by_one(
    _: CursorWrapper, batch: Batch, *, now: datetime
) -> list[tuple[str, int]]:
    """Store a batch as single reports come in."""
    answers = [services.write(occurrences=[each], now=now)[0] for each in batch]
    return [(str(answer.status), answer.poison or 0) for answer in answers]


def same_either_way(batches: Sequence[Batch], now: datetime) -> list[list[str]]:
    """Store batches with and without a merge; return the statuses, which are equal.

    And so are those of single reports.
    """
    statuses, rows = stored(first_failure_inserts_without_merge.write, batches, now)
    assert (statuses, rows) == stored(merge, batches, now)
    assert rows["poison"]
    singles = [[each] for batch in batches for each in batch]
    assert stored(one_by_one, singles, now) == stored(merge, singles, now)
    return statuses


def occurrence(now: datetime, topic: Topic, **changes: object) -> Occurrence:
    report = parse_failure(failure(now, topic=topic.name, **changes))
    return from_report(report, topic=topic, now=now)


def rows_written(table: str) -> tuple[int, int]:
    """Return how many rows this transaction has inserted and updated in a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n_tup_ins, n_tup_upd FROM pg_stat_xact_user_tables"
            " WHERE relname = %s",
            [table],
        )
        inserted, updated = cursor.fetchone()
        return inserted, updated


@pytest.mark.parametrize("field", ["type", "message", "traceback"])
def test_hostile_texts_are_stored_as_by_a_merge(now: datetime, field: str) -> None:
    exception = {"type": "E", "message": "m", "traceback": "", field: HOSTILE}
    batch = [
        occurrence(
            now,
            topic_named("orders"),
            bookmark=f"{number}{HOSTILE}",
            message_id=HOSTILE,
            content_type=HOSTILE,
            client_name="billing \u202e",
            handler_version='2.0"\\N',
            host="h\u00e4st",
            headers=[(HOSTILE, HOSTILE.encode("utf-8", "surrogatepass")), ("k", b"")],
            exception=exception,
            body=bytes(range(256)) * number,
        )
        for number in range(3)
    ]

    assert same_either_way([batch], now) == [["created"] * 3]


def test_huge_and_empty_values_are_stored_as_by_a_merge(now: datetime) -> None:
    exception = {"type": "x" * 50_000, "message": "y" * 2**20, "traceback": "z" * 2**20}
    batch = [
        occurrence(
            now,
            topic_named("orders"),
            bookmark="b" * 100_000,
            message_id="m" * 10_000,
            body=b"\0" * 5 * 2**20,
            headers=[("k" * 1_000, b"v" * 1_000)] * 500,
            exception=exception,
            attempts=2**31 - 1,
            failures=2**31 - 1,
            crashes=2**31 - 1,
        ),
        occurrence(now, topic_named("orders"), body=b"", exception=None, bookmark="b"),
    ]

    assert same_either_way([batch], now) == [["created"] * 2]


@pytest.mark.parametrize("seed", range(40))
def test_batches_of_new_known_and_repeated_messages_are_stored_as_by_a_merge(
    now: datetime, seed: int
) -> None:
    dice = random.Random(seed)
    topics = [topic_named("orders"), topic_named("logs", replays=dice.random() < 0.2)]
    doubts = dice.random() < 0.3
    reports: list[Occurrence] = []
    batches = []
    for _ in range(dice.randrange(2, 6)):
        batch = []
        for _ in range(dice.randrange(1, 9)):
            if reports and dice.random() < 0.2:
                batch.append(dice.choice(reports)._replace(suspected=False))
                continue
            batch.append(
                occurrence(
                    now - dice.randrange(100) * SECOND,
                    dice.choice(topics),
                    bookmark=f"{dice.randrange(12)}-0",
                    body=b"odd" if dice.random() < 0.1 else b"even",
                    consumer_group=dice.choice(["billing", "shipping"]),
                    suspected=doubts and dice.random() < 0.5,
                    exception={
                        "type": dice.choice(["KeyError", "ValueError"]),
                        "message": f"order {dice.randrange(9)}",
                        "traceback": "",
                    },
                )
            )
        reports += batch
        batches.append(batch)

    same_either_way(batches, now)


@pytest.mark.parametrize("seed", range(8))
def test_batches_with_many_repeats_are_folded_alike(now: datetime, seed: int) -> None:
    dice = random.Random(seed)
    topic = topic_named("orders")
    exceptions = [
        {"type": kind, "message": f"{number}{HOSTILE}", "traceback": HOSTILE}
        for kind in ("KeyError", "ValueError")
        for number in range(3)
    ]
    reports: list[Occurrence] = []
    batches = [
        [
            occurrence(now, topic, bookmark="1-0")
            for _ in range(repeat_folding.MOST_SINGLE - 3)
        ]
    ]
    for _ in range(5):
        batch = []
        for _ in range(dice.randrange(1, 16)):
            if reports and dice.random() < 0.15:
                batch.append(dice.choice(reports)._replace(suspected=False))
                continue
            batch.append(
                occurrence(
                    now - dice.randrange(90) * SECOND,
                    topic,
                    bookmark="1-0" if dice.random() < 0.85 else f"{dice.random()}",
                    client_name=dice.choice(["billing-1", "billing-1", "\u202e2"]),
                    attempts=dice.choice([0, 1, 3, 2_000]),
                    crashes=dice.randrange(3),
                    suspected=dice.random() < 0.1,
                    exception=dice.choice(exceptions),
                )
            )
        reports += batch
        batches.append(batch)

    same_either_way(batches, now)


@pytest.mark.parametrize("names", [True, False], ids=["named", "nameless"])
def test_letters_are_stored_as_by_a_merge(
    broker: Queues, now: datetime, *, names: bool
) -> None:
    topic = topic_on_queues(now)
    batches = [
        [
            from_dead_letter(
                DeadLetter(
                    receipt=f"{turn}/{number}",
                    size=100,
                    queue="mail-dead",
                    bookmark=f"{number}-0" if names else "",
                    body=b"%d" % number,
                    headers=((b"k", HOSTILE.encode("utf-8", "surrogatepass")),),
                    dequeue_count=3,
                    redelivered=False,
                ),
                topic=topic,
                capabilities=broker.capabilities,
                now=now,
            )
            for number in range(3)
        ]
        for turn in range(2)
    ]

    again = "duplicate" if names else "created"
    assert same_either_way(batches, now) == [["created"] * 3, [again] * 3]


def test_a_new_message_is_written_once(now: datetime) -> None:
    capture(now, failure(now))
    inserted, updated = rows_written("poison_poison")

    capture(now, *(failure(now) for _ in range(20)), failure(now, consumer_group="x"))

    assert rows_written("poison_poison") == (inserted + 21, updated)


@pytest.mark.django_db(transaction=True)
def test_a_single_new_message_takes_two_statements(now: datetime) -> None:
    capture(now, failure(now))

    with CaptureQueriesContext(connection) as queries:
        capture(now, failure(now))

    # One finds the topic, and one stores it all.
    assert len(queries) == 2
    poison = Poison.objects.latest("id")
    assert (poison.failures, poison.bodies.count()) == (1, 1)
    assert poison.failures_seen.get().is_first


@pytest.mark.django_db(transaction=True)
def test_a_single_failure_of_a_known_message_takes_four_statements(
    now: datetime,
) -> None:
    capture(now, failure(now, bookmark="1-0"))

    with CaptureQueriesContext(connection) as queries:
        capture(now, failure(now, bookmark="1-0"))

    # Find the topic, try to insert the message, lock it, store the failure.
    transaction_ends = {"BEGIN", "COMMIT"}
    assert len([each for each in queries if each["sql"] not in transaction_ends]) == 4
    assert Poison.objects.get().failures == 2


@pytest.mark.django_db(transaction=True)
def test_a_single_message_whose_topic_is_removed_meanwhile_is_not_stored(
    now: datetime,
) -> None:
    topic = topic_named("orders")
    capture(now, failure(now))
    late = occurrence(now, topic)
    for model in (Failure, Body, Poison, Problem, Topic):
        model.objects.all().delete()

    with pytest.raises(Removed):
        services.write(occurrences=[late], now=now)

    assert not Body.objects.exists()


def test_reports_that_are_sent_again_write_nothing(now: datetime) -> None:
    reports = [failure(now) for _ in range(20)]
    capture(now, *reports)
    tables = ("poison_poison", "poison_problem")
    before = [rows_written(table) for table in tables]

    answers = capture(now + SECOND, *reports)

    assert {answer.status for answer in answers} == {"duplicate"}
    assert [rows_written(table) for table in tables] == before


def test_failures_are_numbered_in_the_order_of_their_reports(now: datetime) -> None:
    capture(now, failure(now, bookmark="1-0"), failure(now, bookmark="3-0"))

    bookmarks = ["3-0", "4-0", "1-0", "2-0", "4-0"]
    capture(now, *(failure(now, bookmark=mark) for mark in bookmarks))

    newest = Failure.objects.order_by("id").values_list("bookmark", flat=True)[2:]
    assert [bytes(bookmark).decode() for bookmark in newest] == bookmarks


def test_a_known_alias_is_no_new_message(now: datetime) -> None:
    (answer,) = capture(now, failure(now, bookmark="1-0"))
    other = occurrence(now, topic_named("orders"), bookmark="9-0")
    poison = Poison.objects.get()
    Alias.objects.create(
        identity=other.identity, poison=poison, bookmark=other.bookmark
    )

    answers = capture(now, failure(now, bookmark="9-0"), failure(now))

    assert [each.status for each in answers] == ["updated", "created"]
    assert answers[0].poison == answer.poison


@pytest.mark.django_db(transaction=True)
def test_a_message_that_is_inserted_meanwhile_is_merged(now: datetime) -> None:
    same = failure(now, bookmark="1-0")
    inserted, commits = threading.Event(), threading.Event()

    def write(turn: int) -> list[str]:
        if turn == 0:
            with transaction.atomic():
                answers = capture(now, failure(now, bookmark="1-0"), same)
                inserted.set()
                assert commits.wait(60)
        elif turn == 1:
            assert inserted.wait(60)
            mine = [failure(now, bookmark=f"{number}-0") for number in range(3)]
            answers = capture(now, *mine, same)
        else:
            wait_until(waits_for_a_lock)
            commits.set()
            answers = []
        return [str(answer.status) for answer in answers]

    (first, second, _) = together(3, write)

    assert first == ["created", "updated"]
    assert second == ["created", "updated", "created", "duplicate"]
    assert (Poison.objects.count(), Failure.objects.count()) == (3, 5)
    assert Poison.objects.get(bookmark=b"1-0").failures == 3


@pytest.mark.django_db(transaction=True)
def test_writers_of_the_same_single_reports_count_each_once(now: datetime) -> None:
    reports = [failure(now, bookmark=f"{number // 2}-0") for number in range(30)]

    def write(turn: int) -> list[str]:
        order = random.Random(turn).sample(reports, len(reports))
        return [str(capture(now, report)[0].status) for report in order]

    statuses = [status for each in together(6, write) for status in each]

    assert (statuses.count("created"), statuses.count("updated")) == (15, 15)
    assert set(Poison.objects.values_list("failures", flat=True)) == {2}
    assert (Poison.objects.count(), Failure.objects.count()) == (15, 30)
    assert Failure.objects.filter(is_first=True).count() == 15


@pytest.mark.django_db(transaction=True)
def test_writers_of_new_and_known_messages_count_each_report_once(
    now: datetime,
) -> None:
    def write(turn: int) -> None:
        dice = random.Random(turn)
        for _ in range(6):
            marks = [f"{dice.randrange(80)}-0" for _ in range(12)]
            members = [
                failure(
                    now - dice.randrange(60) * SECOND,
                    bookmark=mark,
                    exception={
                        "type": f"E{dice.randrange(4)}",
                        "message": "",
                        "traceback": "",
                    },
                )
                for mark in marks
            ]
            services.capture(members=members, principal=GUARD, now=now)
            again = services.capture(members=members, principal=GUARD, now=now)
            assert {answer.status for answer in again} == {"duplicate"}

    together(6, write)

    assert Failure.objects.count() == 6 * 6 * 12
    assert sum(Poison.objects.values_list("failures", flat=True)) == 6 * 6 * 12
    assert Failure.objects.filter(is_first=True).count() == Poison.objects.count()
    for problem in Problem.objects.all():
        times = Failure.objects.filter(problem=problem).values_list(
            "failed_at", flat=True
        )
        assert (problem.first_seen, problem.last_seen) == (min(times), max(times))
