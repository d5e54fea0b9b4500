"""Answers that come while a worker stands still between a send and its record.

Celery's worker is stopped with all its processes just after it has sent something. The
consumer answers by the API all that was sent: half is handled, half has failed. Then
the worker is killed, and another one goes on.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from redis import Redis

from apps.audit import verification
from apps.brokers.models import Topic
from apps.core import clock
from apps.poison.models import Body, Hold, Poison, Redrive
from apps.poison.query_language import Query
from apps.poison.redrive_signatures import redrive_of
from apps.team.rights import Principal
from apps.triage import operation_enqueueing
from apps.triage.models import Operation
from apps.triage.operation_states import OperationState, Verb
from apps.triage.progress import counts_of
from apps.triage.services import previews
from apps.triage.services.selection_requests import SelectionRequest
from tests.acceptance.answering_consumer import (
    MARK,
    AnsweringConsumer,
    Entries,
    capture_many,
    is_even,
)
from tests.acceptance.api_client import ApiClient
from tests.acceptance.product_celery_processes import Celery, StartWorker
from tests.acceptance.web_server_process import Web, api_key
from tests.failure_report_builders import failure
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

SOAK = "SOAK" in os.environ
# Stops between a send and its record; messages of an operation.
STOPS, ITEMS = (50, 20_000) if SOAK else (2, 2_000)
# A worker that lives this long sends some thousand messages.
LONGEST_LIFE = 0.3
# Answers to a worker that holds no lock do not wait for its end.
PROMPT_SECONDS = 10.0 if SOAK else 60.0
MOST_MEMBERS = 500

Statuses = Counter[str]
Member = Mapping[str, object]


def begin(operator: Principal, *, batch: str) -> Operation:
    """Decide to requeue a batch."""
    selection = SelectionRequest(
        verb=Verb.REDRIVE, query=Query.parse(f"topic:orders is:open error:{batch}")
    )
    preview = operation_enqueueing.preview(
        selection=selection, principal=operator, now=clock.now()
    )
    previews.take(operation_id=preview.pk, now=clock.now())
    return operation_enqueueing.confirm(
        token=preview.token, reason="stops", principal=operator, now=clock.now()
    )


def is_done(operation: Operation) -> bool:
    return Operation.objects.get(pk=operation.pk).state == OperationState.DONE


def unrecorded(entries: Entries) -> int:
    """Count the redrives among these messages of which there is no row."""
    redrives = {str(redrive_of(fields[MARK].decode())) for _, fields in entries}
    return len(redrives) - Redrive.objects.filter(pk__in=redrives).count()


def holds_locks() -> bool:
    """Tell whether another session has written, or locked rows, and not committed.

    It is stopped, so this does not change any more once its statement has ended.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        (number,) = cursor.fetchone()
    return bool(number)


def members_of(entries: Entries) -> tuple[list[Member], list[Member]]:
    """Build what a consumer reports: confirmations, and failures."""
    now = clock.now()
    handled, failed = list[Member](), list[Member]()
    for bookmark, fields in entries:
        body, token = fields[b"body"], fields[MARK].decode()
        if is_even(body):
            member = failure(now, redrive=token)
            names = ("topic", "consumer_group", "client_name", "redrive")
            handled.append({**{n: member[n] for n in names}, "at": member["failed_at"]})
        else:
            failed.append(
                failure(now, body=body, redrive=token, bookmark=bookmark.decode())
            )
    return handled, failed


def answer(client: ApiClient, entries: Entries) -> Statuses:
    """Answer all messages by the API; count the statuses."""
    handled, failed = members_of(entries)
    statuses = Statuses()
    for path, members in (("confirmations", handled), ("failures", failed)):
        for some in slices(members):
            results = client.post(path, {path: some})["results"]
            statuses.update(f"{path}: {each['status']}" for each in results)
    return statuses


def slices(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    for start in range(0, len(members), MOST_MEMBERS):
        yield members[start : start + MOST_MEMBERS]


def read_all(consumer: AnsweringConsumer) -> Entries:
    entries: Entries = []
    while page := consumer.read(most=5_000):
        entries += page
    return entries


def test_every_answer_between_send_and_record_stands_once_on_its_poison(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    beat: None,
    start_worker: StartWorker,
    web: Web,
) -> None:
    client, consumer = ApiClient(url=web.url, key=api_key()), AnsweringConsumer(stream)
    statuses, batches, stops = Statuses(), list[Operation](), 0
    while stops < STOPS:
        batch = f"Batch{len(batches)}/"
        capture_many(ITEMS, batch=batch)
        operation = begin(operator, batch=batch)
        batches.append(operation)
        while not is_done(operation):
            worker = start_worker()
            wait_until(worker.is_ready)
            await_send(stream, operation)
            worker.suspend()
            is_between, some = answer_and_kill(worker, client, read_all(consumer))
            stops += is_between
            statuses += some

    number = len(batches) * ITEMS
    copies = stream.xlen("orders") - number
    expect_one_answer_each(number)
    expect_the_right_poisons()
    assert [counts(each) for each in batches] == [
        {"confirmed": ITEMS // 2, "recurred": ITEMS // 2}
    ] * len(batches)
    assert statuses["confirmations: confirmed"] == number // 2
    assert statuses["failures: updated"] == number // 2
    assert statuses.total() == number + copies
    duplicates = {"confirmations: duplicate", "failures: duplicate"}
    assert set(statuses) <= duplicates | {
        "confirmations: confirmed",
        "failures: updated",
    }
    assert verification.verify().ok


def await_send(stream: Redis, operation: Operation) -> None:
    """Wait until something is sent and a moment more, or until nothing is left."""
    life = random.uniform(0, LONGEST_LIFE)
    time.sleep(life)
    length, deadline = stream.xlen("orders"), time.monotonic() + 60
    while stream.xlen("orders") == length and not is_done(operation):
        assert time.monotonic() < deadline, "nothing is sent"
    time.sleep(life / 10)


def answer_and_kill(
    worker: Celery, client: ApiClient, entries: Entries
) -> tuple[bool, Statuses]:
    """Answer what a stopped worker has sent, and kill the worker.

    Returns whether it stood between a send and its record. Then it locks nothing, so
    its end is not waited for.
    """
    is_between = unrecorded(entries) > 0 and not holds_locks()
    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(answer, client, entries)
        try:
            answers.result(timeout=PROMPT_SECONDS if is_between else 1.0)
        except TimeoutError:
            assert not is_between, "it waits for a worker that locks nothing"
        finally:
            worker.kill()
        return is_between, answers.result()


def counts(operation: Operation) -> dict[str, int]:
    return {name: number for name, number in counts_of(operation).items() if number}


def expect_one_answer_each(number: int) -> None:
    """Half of the messages is handled, half has failed again, each once."""
    ends = Poison.objects.values_list("state", "redrives", "recurrences", "failures")
    assert Counter(ends) == {
        ("confirmed", 1, 0, 1): number // 2,
        ("open", 1, 1, 2): number // 2,
    }
    outcomes = Redrive.objects.values_list("outcome", "n")
    assert Counter(outcomes) == {
        ("confirmed", 1): number // 2,
        ("recurred", 1): number // 2,
    }
    assert not Hold.objects.exists()


def expect_the_right_poisons() -> None:
    """The poisons of even numbers are handled, and those of odd numbers are open."""
    states = dict(Poison.objects.values_list("pk", "state"))
    for body in Body.objects.iterator():
        is_handled = json.loads(bytes(body.content))["n"] % 2 == 0
        assert states[body.poison_id] == ("confirmed" if is_handled else "open")
