"""A sender claims ahead while calls succeed, and gives back what cannot begin soon."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from django.test import override_settings

from apps.core.bounded_threads import BoundedThreads
from apps.redelivery.call_and_delivery_dataclasses import ClaimedDelivery, EndedAttempt
from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.http_caller import HttpCaller
from apps.redelivery.sending import calls_and_claims_ahead, result_recorder
from apps.redelivery.sending.calls_and_claims_ahead import CallsUnderWay
from apps.redelivery.sending.result_recorder import ResultRecorder
from apps.redelivery.sending.shared_sender_resources import SharedSenderResources
from apps.redelivery.services import attempt_results, delivery_claims
from poisonguard.locks.postgres import PostgresLocks
from tests.manual_clock import ManualClock
from tests.unit.redelivery.scripted_back_end import (
    LOOPBACK,
    Script,
    Visit,
    answering,
    back_end,
)

T = TypeVar("T")

NOW = datetime(2026, 5, 18, 12, 0, tzinfo=UTC)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DOWN = b"HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def _loopback_allowed() -> Iterator[None]:
    with override_settings(POISONWEB_ENDPOINT_HOSTS=(LOOPBACK,)):
        yield


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Let no time pass while the machine stalls."""
    clock = ManualClock()
    monkeypatch.setattr(calls_and_claims_ahead, "monotonic", clock)
    return clock


class ClaimLedger:
    """Database work that keeps what is recorded, and what is given back."""

    def __init__(self) -> None:
        self.ended: list[EndedAttempt] = []
        self.given_back: list[ClaimedDelivery] = []

    async def run(self, work: Callable[[], T]) -> T:
        assert isinstance(work, partial)
        if work.func is attempt_results.record:
            self.ended += work.keywords["attempts"]
        else:
            assert work.func is delivery_claims.give_back
            self.given_back += work.keywords["deliveries"]
        return cast(T, None)


@dataclass(kw_only=True)
class EndpointCalls:
    """The calls of one endpoint, outside of their sender."""

    calls: CallsUnderWay
    recorder: ResultRecorder
    ledger: ClaimLedger
    tools: SharedSenderResources

    async def end(self) -> None:
        await self.calls.wait()
        self.calls.stop()
        await self.recorder.finish(seconds=30)
        assert self.tools.bytes_in_flight == 0


def deliveries(number: int) -> list[ClaimedDelivery]:
    return [
        ClaimedDelivery(
            id=uuid.uuid4(),
            claim=uuid.uuid4(),
            attempt=1,
            method="POST",
            path=b"/quotes",
            headers=(),
            body=b"quote",
            idempotency_key="order-13",
            begun_at=NOW,
            claimed_until=NOW + timedelta(seconds=30),
        )
        for _ in range(number)
    ]


def endpoint_at(url: str, **settings: Any) -> Endpoint:
    columns = asdict(EndpointSettings(target=url, **settings))
    for name in ("forward_topic", "forward_endpoint", "response_hook"):
        del columns[name]
    return Endpoint(pk=13, name="stock-quote", **columns)


def play(
    act: Callable[[EndpointCalls], Awaitable[None]], *, script: Script, **settings: Any
) -> EndpointCalls:
    """Act on the calls of an endpoint whose back end follows the script."""

    async def run(endpoint: Endpoint) -> EndpointCalls:
        ledger = ClaimLedger()
        with ThreadPoolExecutor(1) as errands:
            async with HttpCaller() as caller:
                tools = SharedSenderResources(
                    threads=ledger,
                    caller=caller,
                    locks=PostgresLocks(""),
                    waits=errands,
                    errands=errands,
                    publishers=BoundedThreads(1, name="test"),
                    clock=lambda: NOW,
                )
                recorder = ResultRecorder(
                    threads=ledger,
                    endpoint=lambda: endpoint,
                    clock=lambda: NOW,
                    on_recorded=lambda: None,
                )
                calls = CallsUnderWay(
                    tools,
                    lambda: endpoint,
                    recorder,
                    on_room=lambda: None,
                )
                stage = EndpointCalls(
                    calls=calls,
                    recorder=recorder,
                    ledger=ledger,
                    tools=tools,
                )
                await act(stage)
                await stage.end()
        return stage

    with back_end(script) as server:
        return asyncio.run(run(endpoint_at(server.url, **settings)))


def ids(these: Sequence[ClaimedDelivery] | Sequence[EndedAttempt]) -> set[uuid.UUID]:
    return {
        each.id if isinstance(each, ClaimedDelivery) else each.delivery
        for each in these
    }


async def warm_up(
    stage: EndpointCalls, clock: ManualClock, *, concurrency: int
) -> None:
    """Let as many calls end as open the whole window where they succeed."""
    assert stage.calls.numbers_to_claim() == (1, 0)
    while stage.calls.pace.window < concurrency:
        stage.calls.add(deliveries(concurrency))
        await stage.calls.wait()
        clock.now += calls_and_claims_ahead.AHEAD_SECONDS / 4


def test_more_is_claimed_ahead_once_calls_succeed_at_full_concurrency(
    clock: ManualClock,
) -> None:
    async def act(stage: EndpointCalls) -> None:
        await warm_up(stage, clock, concurrency=2)
        room, ahead = stage.calls.numbers_to_claim()
        assert (room, ahead > 0) == (2, True)

        all_at_once = deliveries(20)
        stage.calls.add(all_at_once)
        assert len(stage.calls.tasks) == 2
        await stage.calls.wait()
        await stage.recorder.finish(seconds=30)
        assert ids(all_at_once) <= ids(stage.ledger.ended)

    stage = play(act, script=answering(OK), concurrency=2)

    assert stage.ledger.given_back == []


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        (answering(DOWN), {"breaker_failures": 0}),
        (answering(OK), {"rate": 1_000.0}),
        (answering(OK), {"concurrency": 500}),
    ],
)
def test_nothing_is_claimed_ahead_of_failures_a_rate_or_the_slow_start(
    clock: ManualClock, script: Script, settings: dict[str, Any]
) -> None:
    async def act(stage: EndpointCalls) -> None:
        await warm_up(stage, clock, concurrency=4)

        assert stage.calls.numbers_to_claim()[1] == 0

    play(act, script=script, **{"concurrency": 4, **settings})


def has_no_more(stage: EndpointCalls, _: pytest.MonkeyPatch) -> None:
    stage.calls.claims_ahead = False


def is_full(stage: EndpointCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_and_claims_ahead, "MOST_BYTES_IN_FLIGHT", 0)


def is_behind(stage: EndpointCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_recorder, "MOST_BEHIND", 0)


def is_stopping(stage: EndpointCalls, _: pytest.MonkeyPatch) -> None:
    stage.calls.stop()


@pytest.mark.parametrize("stops", [has_no_more, is_full, is_behind, is_stopping])
def test_nothing_is_claimed_ahead_of_a_stop_or_beyond_what_can_be_handled(
    clock: ManualClock,
    stops: Callable[[EndpointCalls, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls_and_claims_ahead, "MOST_AHEAD", 3)

    async def act(stage: EndpointCalls) -> None:
        await warm_up(stage, clock, concurrency=2)
        assert stage.calls.numbers_to_claim()[1] == calls_and_claims_ahead.MOST_AHEAD

        stops(stage, monkeypatch)

        assert stage.calls.numbers_to_claim()[1] == 0

    play(act, script=answering(OK), concurrency=2)


def test_an_outage_gives_back_what_was_claimed_ahead() -> None:
    async def act(stage: EndpointCalls) -> None:
        stage.calls.add(deliveries(20))
        await stage.calls.wait()

    stage = play(act, script=answering(DOWN), concurrency=1, breaker_failures=5)

    assert (len(stage.ledger.ended), len(stage.ledger.given_back)) == (5, 15)
    assert not ids(stage.ledger.ended) & ids(stage.ledger.given_back)


def test_what_a_stop_leaves_is_given_back_and_what_runs_is_recorded() -> None:
    async def act(stage: EndpointCalls) -> None:
        stage.calls.add(deliveries(20))
        stage.calls.stop()

    stage = play(act, script=answering(OK), concurrency=1)

    assert (len(stage.ledger.ended), len(stage.ledger.given_back)) == (1, 19)


def test_what_waits_too_long_for_a_call_to_end_is_given_back(
    clock: ManualClock,
) -> None:
    may_answer = threading.Event()

    def answer(visit: Visit, _: bytes) -> None:
        assert may_answer.wait(30)
        visit.send(OK)

    async def act(stage: EndpointCalls) -> None:
        stage.calls.add(deliveries(1))
        stage.calls.add(deliveries(2))
        clock.now += calls_and_claims_ahead.LONGEST_WAIT + 0.1
        stage.calls.give_back_old()
        while not stage.ledger.given_back:
            await asyncio.sleep(0.001)
        assert stage.ledger.ended == []
        may_answer.set()

    stage = play(act, script=answer, concurrency=1)

    assert (len(stage.ledger.ended), len(stage.ledger.given_back)) == (1, 2)
