"""A sender makes each call that it claimed, and judges its answer by its status."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from django.test import override_settings

from apps.core.bounded_threads import BoundedThreads
from apps.redelivery.call_and_delivery_dataclasses import (
    KEPT_ANSWER,
    CallResult,
    ClaimedDelivery,
    EndedAttempt,
)
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.http_caller import HttpCaller
from apps.redelivery.sending import delivery_call
from apps.redelivery.sending.endpoint_sender import EndpointSender
from apps.redelivery.sending.sender_process import _without_lock
from apps.redelivery.sending.shared_sender_resources import SharedSenderResources
from apps.redelivery.services import delivery_claims
from poisonguard.locks.postgres import PostgresLocks
from tests.unit.redelivery.scripted_back_end import (
    LOOPBACK,
    answering,
    back_end,
    closing,
)

T = TypeVar("T")

NOW = datetime(2026, 5, 18, 12, 0, tzinfo=UTC)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CUT_OFF = b"HTTP/1.1 %d Any\r\nContent-Length: 9\r\n\r\nok"


@pytest.fixture(autouse=True)
def _loopback_allowed() -> Iterator[None]:
    with override_settings(POISONWEB_ENDPOINT_HOSTS=(LOOPBACK,)):
        yield


def endpoint_at(url: str) -> Endpoint:
    settings = asdict(EndpointSettings(target=url))
    for name in ("forward_topic", "forward_endpoint", "response_hook"):
        del settings[name]
    return Endpoint(pk=1, name="stock-quote", **settings)


def claimed() -> ClaimedDelivery:
    return ClaimedDelivery(
        id=uuid.uuid4(),
        claim=uuid.uuid4(),
        attempt=1,
        method="POST",
        path=b"/quotes",
        headers=(),
        body=b"",
        idempotency_key="order-13",
        begun_at=NOW,
        claimed_until=NOW + timedelta(seconds=30),
    )


def result_of_call(*answer: bytes) -> CallResult:
    """Call a back end that sends these bytes and closes the connection."""

    async def call() -> delivery_call.DeliveryCall:
        async with HttpCaller() as caller:
            endpoint = endpoint_at(server.url)
            return await delivery_call.call(caller, endpoint, claimed(), now=NOW)

    with back_end(closing(*answer)) as server:
        return asyncio.run(call()).result


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(503, AttemptOutcome.FAILED), (200, AttemptOutcome.UNKNOWN)],
)
def test_a_status_that_is_a_failure_says_it_all_though_its_body_breaks_off(
    status: int, outcome: AttemptOutcome
) -> None:
    result = result_of_call(CUT_OFF % status)

    assert result.outcome is outcome
    assert result.is_cut is (outcome is AttemptOutcome.FAILED)


@pytest.mark.parametrize(
    ("size", "outcome"),
    [(2**20 - 1, AttemptOutcome.UNKNOWN), (2**20 + 1, AttemptOutcome.SUCCEEDED)],
)
def test_an_answer_that_breaks_off_within_its_first_mebibyte_is_unknown(
    size: int, outcome: AttemptOutcome
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**21

    result = result_of_call(head, b"x" * size)

    assert result.outcome is outcome
    stored = (KEPT_ANSWER, True) if outcome is AttemptOutcome.SUCCEEDED else (0, False)
    assert (len(result.body), result.is_cut) == stored


class LosingSender:
    """A sender whose grant is taken away as soon as it was looked at."""

    def __init__(self) -> None:
        lost = SimpleNamespace(lost=True)
        self._grants = iter([lost, None])

    @property
    def grant(self) -> SimpleNamespace | None:
        """Return the grant once."""
        return next(self._grants)


def test_a_grant_may_be_taken_away_while_it_is_looked_at() -> None:
    sender = cast(EndpointSender, LosingSender())

    assert _without_lock([sender]) == [sender]


class SlowClaims:
    """Database work whose claim takes until `go` is set."""

    def __init__(self) -> None:
        self.has_begun, self.go = asyncio.Event(), asyncio.Event()
        self.ended: list[EndedAttempt] = []

    async def run(self, work: Callable[[], T]) -> T:
        """Give one delivery to a claim; keep the attempts of a record."""
        assert isinstance(work, partial)
        if work.func is not delivery_claims.claim:
            self.ended += work.keywords["attempts"]
            return cast(T, [True])
        self.has_begun.set()
        await self.go.wait()
        return cast(T, [claimed()])


def test_what_is_claimed_while_a_sender_stops_is_called() -> None:
    async def stop_during_a_claim() -> list[EndedAttempt]:
        threads = SlowClaims()
        with ThreadPoolExecutor(1) as errands:
            async with HttpCaller() as caller:
                tools = SharedSenderResources(
                    threads=threads,
                    caller=caller,
                    locks=PostgresLocks(""),
                    waits=errands,
                    errands=errands,
                    publishers=BoundedThreads(1, name="test"),
                    clock=lambda: NOW,
                )
                sender = EndpointSender(endpoint_at(server.url), tools)
                sender.wake()
                claiming = asyncio.create_task(sender._claim(1))
                await threads.has_begun.wait()
                stopping = asyncio.create_task(sender.stop(seconds=30))
                await asyncio.sleep(0)
                threads.go.set()
                await asyncio.gather(claiming, stopping)
        return threads.ended

    with back_end(answering(OK)) as server:
        [attempt] = asyncio.run(stop_during_a_claim())

    assert attempt.result.outcome is AttemptOutcome.SUCCEEDED
