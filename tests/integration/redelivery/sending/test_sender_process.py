"""The sender as a process, against a back end in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from apps.core import clock
from apps.redelivery.models import Attempt, Delivery, Endpoint, EndpointActivity
from apps.redelivery.sending.sender_process import cancel_until_ended
from apps.redelivery.services.request_acceptance import accept_all
from tests.delivery_back_end import BackEnd, back_end_in
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    endpoint,
    request,
)
from tests.sender_processes import SenderProcess, senders
from tests.waiting import wait_until

pytestmark = [pytest.mark.together, pytest.mark.django_db(transaction=True)]

OURS = "is ours, by fence"
NOT_OURS = ("is not ours any more", "a newer sender owns it")


@pytest.fixture
def back_end(tmp_path: Path) -> Iterator[BackEnd]:
    with back_end_in(tmp_path / "back-end") as back_end:
        yield back_end


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[SenderProcess]:
    with senders(tmp_path, number=1) as [sender]:
        yield sender


def accept(of: Endpoint, *paths: str, **changes: Any) -> None:
    accept_all(
        endpoint=of,
        deliveries=[
            request(path=path.encode(), idempotency_key=str(uuid4()), **changes)
            for path in paths
        ],
        now=clock.now(),
    )


def states() -> list[tuple[str, int, int]]:
    rows = Delivery.objects.order_by("pk")
    return list(rows.values_list("state", "attempts", "retry_count"))


def unfinished() -> int:
    return Delivery.objects.filter(finished_at=None).count()


def test_what_is_due_is_delivered_and_the_rest_is_tried_by_its_plan(
    back_end: BackEnd, sender: SenderProcess
) -> None:
    stock = endpoint(target=back_end.url, retries=2, interval=1.0)

    accept(stock, "/ok", "/status/503", "/down-for/2", "/status/404")

    wait_until(lambda: not unfinished(), describe=sender.said)
    assert states() == [
        ("delivered", 1, 0),
        ("given_up", 3, 3),
        ("delivered", 3, 2),
        ("delivered", 1, 0),
    ]
    attempts = Attempt.objects.filter(delivery__path=b"/down-for/2").order_by("number")
    assert [(each.outcome, each.status) for each in attempts] == [
        *(("failed", 503), ("failed", 503), ("succeeded", 200)),
    ]
    assert bytes(attempts[2].answer) == b"answer 200"
    arrived = [each for each in back_end.requests() if each["target"] == "/down-for/2"]
    delivery = Delivery.objects.get(path=b"/down-for/2")
    assert {(each["key"], each["delivery"]) for each in arrived} == {
        (delivery.idempotency_key, str(delivery.pk))
    }
    assert arrived[0]["body"] == request().body.decode("latin-1")
    wait_until(lambda: EndpointActivity.objects.get().is_heard(clock.now()))
    assert sender.stop() == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM poisonguard_lock_tickets")
        assert cursor.fetchone() == (0,)


def test_a_thousand_that_are_due_at_once_are_delivered_once(
    back_end: BackEnd, sender: SenderProcess
) -> None:
    stock = endpoint(
        target=back_end.url, attempt_timeout=100, claim_timeout=200, client_timeout=200
    )
    wait_until(lambda: EndpointActivity.objects.exclude(heard_at=None).exists())
    began = time.monotonic()

    accept(stock, *["/ok"] * 1_000)

    wait_until(lambda: not unfinished(), seconds=300, describe=sender.said)
    print(f"1,000 due at once: {time.monotonic() - began:.2f} s")  # noqa: T201
    assert set(states()) == {("delivered", 1, 0)}
    assert len(back_end.effects()) == len(back_end.requests()) == 1_000


def test_a_sender_that_is_stopped_lets_its_calls_end_and_gives_its_locks_back(
    back_end: BackEnd, sender: SenderProcess
) -> None:
    stock = endpoint(target=back_end.url)
    accept(stock, "/slow/0.5")
    wait_until(back_end.requests, describe=sender.said)
    accept(stock, "/ok")

    assert sender.stop() == 0

    assert states()[0] == ("delivered", 1, 0)
    assert len(back_end.requests()) == sum(attempts for _, attempts, _ in states())
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM poisonguard_lock_tickets")
        assert cursor.fetchone() == (0,)


def test_a_task_that_loses_its_cancel_is_cancelled_again() -> None:
    async def lose_the_first_cancel() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        await asyncio.sleep(600)

    async def cancel() -> asyncio.Task[None]:
        task = asyncio.create_task(lose_the_first_cancel())
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await cancel_until_ended([task])
        return task

    assert asyncio.run(cancel()).cancelled()


def test_a_frozen_sender_loses_its_endpoint_and_is_fenced_when_it_goes_on(
    back_end: BackEnd, tmp_path: Path
) -> None:
    stock = endpoint(
        target=back_end.url,
        retries=5,
        interval=1.0,
        # Over before the session of the frozen owner is, after 10 s.
        attempt_timeout=4.0,
        claim_timeout=9.0,
    )
    with senders(tmp_path, number=2) as both:
        back_end.hold()
        accept(stock, "/ok")
        wait_until(back_end.requests, describe=both[0].said)
        owner, standby = sorted(both, key=lambda each: OURS not in each.said())
        owner.send(signal.SIGSTOP)
        back_end.let_go()

        wait_until(lambda: not unfinished(), describe=standby.said)
        before = states()
        owner.send(signal.SIGCONT)
        accept(stock, *["/ok"] * 20)

        wait_until(lambda: any(each in owner.said() for each in NOT_OURS))
        wait_until(lambda: not unfinished(), describe=standby.said)
        assert standby.stop() == owner.stop() == 0
    first = Delivery.objects.order_by("pk")[0]
    assert before == states()[:1]
    assert before[0][0] == "delivered"
    assert before[0][1] > 1
    assert Attempt.objects.get(delivery=first, number=1).outcome == "unknown"
    assert set(states()[1:]) == {("delivered", 1, 0)}
