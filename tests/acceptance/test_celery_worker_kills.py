"""A worker that dies at any instant loses nothing, and its work goes on.

Every kill takes the worker's whole process group; the next worker is started by hand,
as a supervisor would. As soon as it works, it is killed at a random instant, while a
consumer answers what it has sent, and people pause, slow and cancel the operation.
After a cancel, another operation takes what was not sent. Where all is sent before
there were enough kills, more messages are captured.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest
from redis import Redis

from apps.audit import verification
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.core import clock
from apps.core.errors import Refused
from apps.poison.models import Body, Hold, Poison, Redrive
from apps.poison.query_language import Query
from apps.poison.redrive_signatures import redrive_of
from apps.poison.states import SILENT_AFTER, PoisonState
from apps.team.rights import Principal
from apps.triage import operation_enqueueing
from apps.triage.errors import Stale
from apps.triage.models import WINDOW_SIZE, Operation
from apps.triage.operation_states import FINISHED, OperationState, Verb
from apps.triage.progress import counts_of
from apps.triage.services import control, previews
from apps.triage.services.control import CANCEL, PAUSE, RESUME, ControlStep
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from tests import triage_operation_runner
from tests.acceptance.answering_consumer import (
    MARK,
    TOPIC,
    AnsweringConsumer,
    capture_many,
    messages,
)
from tests.acceptance.product_celery_processes import StartWorker
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

KILLS, ITEMS = (200, 100_000) if os.environ.get("SOAK") else (20, 5_000)
# In every tenth life of a worker, a person cancels the operation.
LIVES_TO_A_CANCEL = 10
CANCELLED = 2_000
# A worker that lives this long sends some thousand messages.
LONGEST_LIFE = 0.3
# What is promised, where nothing else works beside it.
RECOVERY_SECONDS = 5.0 if os.environ.get("SOAK") else 60.0
PATIENCE = 60 + ITEMS / 500


def begin(operator: Principal, *, batch: str) -> Operation | None:
    """Decide to requeue what is open of a batch; None if nothing is."""
    selection = SelectionRequest(
        verb=Verb.REDRIVE, query=Query.parse(f"topic:{TOPIC} is:open error:{batch}")
    )
    operation = operation_enqueueing.preview(
        selection=selection, principal=operator, now=clock.now()
    )
    previews.take(operation_id=operation.pk, now=clock.now())
    try:
        return operation_enqueueing.confirm(
            token=operation.token, reason="kills", principal=operator, now=clock.now()
        )
    except Stale:
        return None


def is_over(operation: Operation) -> bool:
    return Operation.objects.get(pk=operation.pk).state in FINISHED


def runs(operation: Operation) -> int:
    """Count the runs that have taken the operation up."""
    return Operation.objects.get(pk=operation.pk).run


def change(step: ControlStep, operation: Operation, operator: Principal) -> None:
    operation_enqueueing.change_state(
        step, operation_id=operation.pk, principal=operator, now=clock.now()
    )


def resume(operation: Operation, operator: Principal) -> None:
    """Have the operation go on without a limit, unless it is over or cancelled."""
    with suppress(Refused):
        change(RESUME, operation, operator)
        set_rate(operation, operator, None)


def interfere(operation: Operation, operator: Principal, *, life: int) -> None:
    """Do one of the things that people do to a running operation, or none."""
    time.sleep(random.uniform(0, LONGEST_LIFE))
    with suppress(Refused):
        chance = random.random()
        if life % LIVES_TO_A_CANCEL == LIVES_TO_A_CANCEL // 2:
            change(CANCEL, operation, operator)
        elif chance < 0.25:
            change(PAUSE, operation, operator)
        elif chance < 0.5:
            set_rate(operation, operator, random.choice((500, 2_000, 20_000)))


def set_rate(operation: Operation, operator: Principal, rate: int | None) -> None:
    control.set_rate(
        operation_id=operation.pk, rate=rate, principal=operator, now=clock.now()
    )


def await_run(operation: Operation, *, after: int) -> None:
    """Wait until the next run has begun, or the operation is over."""
    wait_until(
        lambda: runs(operation) != after or is_over(operation),
        seconds=RECOVERY_SECONDS,
    )


def test_kills_lose_nothing_and_send_nothing_under_two_ids(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    beat: None,
    start_worker: StartWorker,
) -> None:
    operations, batches, kills = list[Operation](), 0, 0
    with AnsweringConsumer(stream) as consumer:
        while kills < KILLS:
            batch, batches = f"Batch{batches}", batches + 1
            capture_many(ITEMS, batch=batch)
            while operation := begin(operator, batch=batch):
                operations.append(operation)
                kills = run_under_kills(operation, operator, start_worker, kills=kills)
        wait_until(partial(all_are_answered, operations), seconds=PATIENCE)
    consumer.answer_rest()
    again = send_again_what_is_silent(operator)
    consumer.answer_rest()

    expect_all_ended(operations, messages=batches * ITEMS, again=again)
    expect_a_true_stream(stream, kills=kills)
    expect_a_true_trail(operations)
    assert {each.state for each in Operation.objects.all()} >= set(FINISHED)


def run_under_kills(
    operation: Operation, operator: Principal, start_worker: StartWorker, *, kills: int
) -> int:
    """Kill one worker after the other until there were KILLS; then let it end.

    Returns the number of kills, those before it included.
    """
    while not is_over(operation):
        resume(operation, operator)
        before = runs(operation)
        worker = start_worker()
        wait_until(worker.is_ready)
        await_run(operation, after=before)
        if kills < KILLS:
            interfere(operation, operator, life=kills)
        else:
            wait_until(partial(is_over, operation), seconds=PATIENCE)
        time.sleep(random.uniform(0, LONGEST_LIFE))
        # One that is killed after the work is done was not killed during it.
        kills += not is_over(operation)
        worker.kill()
    return kills


def send_again_what_is_silent(operator: Principal) -> int:
    """Send what a cancelled operation had claimed and not sent; return how many.

    The consumer has answered all that was sent, so these are all that is unknown. They
    fall silent in ten minutes: act as if these were over.
    """
    later = clock.now() + 2 * SILENT_AFTER
    unknown = Poison.objects.filter(state=PoisonState.REDRIVEN)
    if not unknown.exists():
        return 0
    operation = triage_operation_runner.confirm(
        operator,
        triage_operation_runner.preview(
            operator, later, query=Query.parse(f"topic:{TOPIC} is:sent")
        ),
        later,
    )
    while triage_operation_runner.run(operation, later) is not SliceEnd.DONE:
        pass
    return operation.total


def test_a_cancel_among_kills_loses_nothing_and_frees_what_was_not_sent(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    beat: None,
    start_worker: StartWorker,
) -> None:
    capture_many(CANCELLED, batch="Batch")
    operation = begin(operator, batch="Batch")
    assert operation is not None
    # On a busy machine, too, some are left when it is cancelled.
    set_rate(operation, operator, CANCELLED // 20)
    for number in range(3):
        before = runs(operation)
        worker = start_worker()
        wait_until(worker.is_ready)
        await_run(operation, after=before)
        wait_until(lambda: stream.xlen(TOPIC))
        time.sleep(random.uniform(0.5, 1))
        if number == 1:
            change(CANCEL, operation, operator)
        if number < 2:
            worker.kill()
    wait_until(lambda: Operation.objects.get(pk=operation.pk).state == "cancelled")

    counts = counts_of(operation)
    ids = Counter(str(redrive_of(fields[MARK].decode())) for fields in messages(stream))
    assert sum(counts.values()) == CANCELLED
    assert 0 < counts["waiting"] < CANCELLED
    assert len(ids) <= counts["sent"] + counts["unknown"]
    assert counts["sent"] <= len(ids)
    assert Poison.objects.filter(state=PoisonState.OPEN).count() == counts["waiting"]
    assert not Hold.objects.exists()


def all_are_answered(operations: Sequence[Operation]) -> bool:
    return not any(counts_of(operation)["sent"] for operation in operations)


def expect_all_ended(
    operations: Sequence[Operation], *, messages: int, again: int
) -> None:
    """Every item has ended, the counts add up, and no poison is kept from others."""
    totals = Counter[str]()
    for operation in operations:
        current = Operation.objects.get(pk=operation.pk)
        counts = counts_of(current)
        assert current.state in FINISHED
        assert (current.total, current.trouble) == (sum(counts.values()), "")
        # Only a cancel leaves items that were not sent, or that are unknown.
        if current.state == OperationState.DONE:
            assert counts["waiting"] == counts["unknown"] == 0
        assert counts["unknown"] <= WINDOW_SIZE
        assert counts["sending"] == counts["sent"] == counts["refused"] == 0
        totals += counts
    assert totals["unknown"] == again
    assert totals["confirmed"] + totals["recurred"] + again == messages
    assert not Hold.objects.exists()
    states = Poison.objects.values_list("state", "recurrences")
    assert Counter(states) == {
        (PoisonState.CONFIRMED, 0): messages // 2,
        (PoisonState.OPEN, 1): messages // 2,
    }
    assert Poison.objects.filter(redrives=2).count() == again
    assert Poison.objects.filter(redrives=1).count() == messages - again


def expect_a_true_stream(stream: Redis, *, kills: int) -> None:
    """Each message is in the stream, byte for byte, and all its copies are one send."""
    sends = defaultdict[bytes, Counter[str]](Counter)
    for fields in messages(stream):
        token = fields.pop(MARK).decode()
        sends[fields.pop(b"body")][str(redrive_of(token))] += 1
        assert fields == {}
    rows = Redrive.objects.exclude(outcome="unknown")
    redrives = {
        poison: (str(pk), copies)
        for poison, pk, copies in rows.values_list("poison_id", "id", "copies")
    }
    bodies = {bytes(b.content): b.poison_id for b in Body.objects.iterator()}

    assert set(sends) == set(bodies)
    for body, counted in sends.items():
        redrive, copies = redrives[bodies[body]]
        assert set(counted) == {redrive}
        assert counted[redrive] <= copies
    twice = sum(counted.total() for counted in sends.values()) - len(sends)
    assert twice <= WINDOW_SIZE * kills


def expect_a_true_trail(operations: Sequence[Operation]) -> None:
    """Each decision is on record once, and so is its end."""
    ends = (Action.OPERATION_FINISHED, Action.OPERATION_CANCELLED)
    for operation in operations:
        entries = Entry.objects.filter(
            subject=f"operation:{operation.pk}",
            action__in=[Action.OPERATION_CONFIRMED, *ends],
        )
        state = Operation.objects.get(pk=operation.pk).state
        assert list(entries.order_by("seq").values_list("action", flat=True)) == [
            Action.OPERATION_CONFIRMED,
            ends[state == OperationState.CANCELLED],
        ]
    assert verification.verify().ok
