"""A ramp stops and a cancel ends an operation that Celery's worker runs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from redis import Redis

from apps.brokers.models import Broker, Topic
from apps.core import clock
from apps.poison.models import Hold, Poison
from apps.poison.query_language import Query
from apps.team.rights import Principal, Scope
from apps.triage import operation_enqueueing
from apps.triage.models import Operation
from apps.triage.operation_states import OperationState, Verb
from apps.triage.progress import counts_of
from apps.triage.ramps import Ramp
from apps.triage.services.selection_requests import SelectionRequest
from tests.acceptance.answering_consumer import AnsweringConsumer, capture_many
from tests.acceptance.api_client import ApiClient
from tests.acceptance.product_celery_processes import StartWorker
from tests.acceptance.web_server_process import Web, api_key
from tests.brokers.redis_server import RedisServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

SOAK = "SOAK" in os.environ
ITEMS = 10_000 if SOAK else 1_000
FIRST_FAILING = 30
MOST_SENT = 200
CANCELS = 10 if SOAK else 1
# What is promised, where nothing else works beside it.
TWO_SECONDS = 2.0 if SOAK else 60.0


def begin(
    operator: Principal,
    *,
    batch: str,
    ramp: Ramp | None = None,
    rate: int | None = None,
) -> Operation:
    """Decide to requeue a batch."""
    selection = SelectionRequest(
        verb=Verb.REDRIVE,
        query=Query.parse(f"topic:orders is:open error:{batch}"),
        ramp=ramp,
        rate=rate,
    )
    preview = operation_enqueueing.preview(
        selection=selection, principal=operator, now=clock.now()
    )
    return operation_enqueueing.confirm(
        token=preview.token, reason="a test", principal=operator, now=clock.now()
    )


def state_of(operation: Operation) -> str:
    return Operation.objects.get(pk=operation.pk).state


@pytest.fixture
def worker(beat: None, start_worker: StartWorker) -> None:
    wait_until(start_worker().is_ready)


@pytest.mark.parametrize(
    "ramp",
    # The time to wait is also the time that a consumer on a busy machine has to answer.
    [Ramp(), Ramp(steps=(20, 100), confirmed=None, wait=15)],
    ids=["confirmed", "did not come back"],
)
def test_a_ramp_stops_by_itself_when_the_consumer_fails_from_the_30th_message_on(
    orders: Topic, stream: Redis, operator: Principal, worker: None, ramp: Ramp
) -> None:
    capture_many(ITEMS, batch="Batch")
    numbers = count(1)

    with AnsweringConsumer(stream, is_handled=lambda _: next(numbers) < FIRST_FAILING):
        operation = begin(operator, batch="Batch", ramp=ramp)
        wait_until(lambda: state_of(operation) == OperationState.PAUSED, seconds=180)
        wait_until(lambda: not counts_of(operation)["sent"])

    sent_number = stream.xlen("orders")
    failed_number = sent_number - FIRST_FAILING + 1
    operation.refresh_from_db()
    counts = {name: number for name, number in counts_of(operation).items() if number}
    assert FIRST_FAILING <= sent_number < MOST_SENT
    assert counts == {
        "confirmed": FIRST_FAILING - 1,
        "recurred": failed_number,
        "waiting": ITEMS - sent_number,
    }
    assert "came back, more than 0 %" in operation.paused_because
    untouched = Poison.objects.filter(redrives=0, recurrences=0, failures=1)
    assert untouched.filter(state="open").count() == ITEMS - sent_number
    assert Hold.objects.count() == ITEMS - sent_number


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Start a broker that can go away: Celery's is another one."""
    folder = tmp_path / "broker"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


def hang(server: RedisServer) -> None:
    server.process.send_signal(signal.SIGSTOP)


def go_on(server: RedisServer) -> None:
    server.process.send_signal(signal.SIGCONT)


Act = Callable[[RedisServer], None]


@pytest.mark.parametrize(
    ("go_away", "come_back"),
    [(RedisServer.kill, RedisServer.start), (hang, go_on)],
    ids=["ended", "hung"],
)
def test_a_cancel_with_the_broker_away_is_over_in_time(
    orders: Topic,
    server: RedisServer,
    operator: Principal,
    worker: None,
    web: Web,
    go_away: Act,
    come_back: Act,
    record_property: Callable[[str, object], None],
) -> None:
    Broker.objects.update(url=server.url)
    client = ApiClient(url=web.url, key=api_key(*Scope))
    seconds = []
    for number in range(CANCELS):
        capture_many(ITEMS, batch=f"Batch{number}/")
        operation = begin(operator, batch=f"Batch{number}/", rate=ITEMS // 20)
        wait_until(partial(has_sent_some, operation))
        go_away(server)
        time.sleep(random.uniform(0, 3))
        seconds.append(cancel(client, operation))
        come_back(server)
        expect_an_end(operation)

    record_property("seconds", [round(each, 2) for each in seconds])
    assert max(seconds) < TWO_SECONDS
    assert not Hold.objects.exists()


def has_sent_some(operation: Operation) -> bool:
    return counts_of(operation)["sent"] > 0


def cancel(client: ApiClient, operation: Operation) -> float:
    """Cancel by the API; return the seconds until the operation is over."""
    since = time.monotonic()
    client.post(f"operations/{operation.pk}/cancel", {"reason": "away"})
    wait_until(lambda: state_of(operation) == OperationState.CANCELLED)
    return time.monotonic() - since


def expect_an_end(operation: Operation) -> None:
    """Its counts add up; what was not handed over is open, the rest is not."""
    counts = counts_of(operation)
    assert counts["waiting"] + counts["sent"] + counts["unknown"] == ITEMS
    assert counts["waiting"] > 0
    poisons = Poison.objects.filter(items__operation=operation)
    assert poisons.filter(state="open").count() == counts["waiting"]
    assert poisons.filter(state="redriven").count() == ITEMS - counts["waiting"]
