"""A delivery from its acceptance to its end, and who may record what."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum

from apps.core.actor import Actor
from apps.core.queryset_sql import binary_rows
from apps.poison.models import Body, Failure, Poison
from apps.redelivery.call_and_delivery_dataclasses import (
    ClaimedDelivery,
    EndedAttempt,
)
from apps.redelivery.delivery_order_keys import order_key_of
from apps.redelivery.endpoint_and_delivery_choices import AtEnd, IntervalGrowth
from apps.redelivery.gateway import delivery_store
from apps.redelivery.gateway.key_and_endpoint_cache import _breakers
from apps.redelivery.models import (
    Attempt,
    CallCount,
    Delivery,
    Endpoint,
    EndpointActivity,
)
from apps.redelivery.services import (
    attempt_results,
    delivery_claims,
    delivery_endings,
    successes_and_retries,
)
from apps.redelivery.services.delivery_claims import EndpointTaken, next_due
from apps.redelivery.services.endpoints import change_endpoint, remove_endpoint
from apps.redelivery.services.request_acceptance import accept, accept_all
from poisonguard.contract import Cause
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    BROKEN,
    DOWN,
    NOW,
    SUCCESS,
    UNKNOWN,
    claim,
    end,
    endpoint,
    later,
    request,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


def stored(**changes: Any) -> Delivery:
    return Delivery.objects.get(**changes)


def test_a_failed_first_try_is_stored_once_with_retry_count_1() -> None:
    stock = endpoint(retries=10, interval=3.0)
    new = request(DOWN)

    accept(endpoint=stock, new=new, now=NOW)

    delivery = stored()
    assert (delivery.pk, delivery.state) == (new.id, "waiting")
    assert (delivery.retry_count, delivery.attempts) == (1, 1)
    assert delivery.due_at == later(3)
    assert bytes(delivery.body.content) == new.body
    assert bytes(delivery.path) == new.path
    assert [bytes(part) for part in delivery.headers] == [
        *(b"SOAPAction", b"urn:getQuote", b"X-Twice", b"\xff"),
    ]
    attempt = Attempt.objects.get()
    assert (attempt.number, attempt.outcome) == (1, "failed")
    assert attempt.detail == "connection refused"


@pytest.mark.parametrize("retries", [0, 1, 2, 10])
def test_an_endpoint_is_called_exactly_once_and_n_times_again(retries: int) -> None:
    stock = endpoint(retries=retries)
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    calls, at = 1, 0.0

    while Delivery.objects.filter(state="waiting").exists():
        at += 3
        [claimed] = claim(stock, at=at)
        calls += 1
        end(stock, claimed, DOWN, at=at)

    assert calls == 1 + retries
    delivery = stored()
    assert (delivery.state, delivery.cause) == ("given_up", "exhausted")
    # The article's retry_count > N.
    assert delivery.retry_count == delivery.attempts == retries + 1


def test_what_is_given_up_is_a_poison_with_every_attempt() -> None:
    stock = endpoint(retries=1)
    new = request(BROKEN)
    accept(endpoint=stock, new=new, now=NOW)
    [claimed] = claim(stock, at=3)

    end(stock, claimed, BROKEN, at=3)

    poison = Poison.objects.get()
    assert poison.pk == stored().poison
    assert (poison.topic.name, poison.cause) == ("gateway/stock-quote", "exhausted")
    assert (poison.error_type, poison.attempts) == ("HTTP 503", 2)
    body = Body.objects.get(poison=poison)
    assert bytes(body.content) == new.body
    headers = [bytes(part) for part in body.headers]
    assert headers[:4] == [b"SOAPAction", b"urn:getQuote", b"X-Twice", b"\xff"]
    assert dict(zip(headers[4::2], headers[5::2], strict=True)) == {
        b"x-poisonweb-method": b"POST",
        b"x-poisonweb-path": new.path,
        b"x-poisonweb-delivery": str(new.id).encode(),
        b"x-poisonweb-idempotency-key": b"order-13",
    }
    failure = Failure.objects.get()
    assert failure.traceback.count("HTTP 503") >= 2


def test_a_report_has_the_newest_attempts_without_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apps.redelivery.services.delivery_endings.MOST_ATTEMPTS", 1)
    stock = endpoint(retries=1)
    accept(endpoint=stock, new=request(replace(BROKEN, body=b"secret")), now=NOW)
    [claimed] = claim(stock, at=3)

    end(stock, claimed, replace(BROKEN, body=b"secret"), at=3)

    assert Failure.objects.get().traceback == (
        "attempt 2 at 2026-05-18T12:00:03.000+00:00: failed HTTP 503 HTTP 503"
    )
    assert Failure.objects.get().first_failed_at == NOW
    status = delivery_store.status(
        claimed.id, replace(ADMIN, actor=Actor(request().caller))
    )
    assert status is not None
    assert [each["number"] for each in cast(list[Any], status["attempts"])] == [2]


def test_what_is_given_up_leaves_no_body_in_memory() -> None:
    stock = endpoint()
    accept(endpoint=stock, new=request(), now=NOW)
    delivery = stored()

    delivery_endings.end(delivery, stock, cause=Cause.MANUAL, now=NOW)

    assert not Delivery.body.is_cached(delivery)


def test_a_success_ends_a_delivery_and_counts_it() -> None:
    stock = endpoint()
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    [claimed] = claim(stock, at=3)

    assert end(stock, claimed, SUCCESS, at=3)

    delivery = stored()
    assert (delivery.state, delivery.retry_count) == ("delivered", 1)
    assert (delivery.last_status, delivery.finished_at) == (200, later(3))
    counts = CallCount.objects.get()
    assert (counts.failed, counts.succeeded_later, counts.given_up) == (1, 1, 0)
    assert not Poison.objects.exists()


@pytest.mark.parametrize(
    ("is_repeatable", "state", "cause"),
    [(True, "waiting", ""), (False, "given_up", "unknown")],
)
def test_an_unknown_outcome_is_tried_again_only_where_that_is_harmless(
    is_repeatable: bool, state: str, cause: str
) -> None:
    stock = endpoint()

    accept(endpoint=stock, new=request(UNKNOWN, is_repeatable=is_repeatable), now=NOW)

    assert (stored().state, stored().cause) == (state, cause)


def test_a_delivery_that_ends_at_its_first_try_was_accepted_before() -> None:
    stock = endpoint(expiry=60.0)

    accept(endpoint=stock, new=request(UNKNOWN, is_repeatable=False), now=later(0.01))

    delivery = stored()
    assert (delivery.state, delivery.finished_at) == ("given_up", NOW)
    assert (delivery.accepted_at, delivery.expires_at) == (NOW, later(60))


def test_without_retries_a_delivery_ends_at_its_expiry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stock = endpoint(
        retries=None,
        expiry=10.0,
        interval=4.0,
        backoff=IntervalGrowth.EXPONENTIAL.value,
    )
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    [claimed] = claim(stock, at=4)
    end(stock, claimed, DOWN, at=4)

    assert stored().due_at == later(10)
    assert claim(stock, at=10) == []
    assert attempt_results.end_expired(endpoint=stock, most=10, now=later(10)) == 1
    assert (stored().state, stored().cause) == ("given_up", "expired")
    assert Poison.objects.get().cause == Cause.EXPIRED
    assert f"Giving up on delivery {claimed.id} to stock" in caplog.text
    assert "expired after 2 failures" in caplog.text


def test_a_dropped_delivery_is_kept_and_makes_no_poison(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stock = endpoint(retries=0, at_end=AtEnd.DROP.value)

    accept(endpoint=stock, new=request(DOWN), now=NOW)

    assert stored().state == "dropped"
    assert bytes(stored().body.content) == request().body
    assert not Poison.objects.exists()
    assert "Giving up on delivery" in caplog.text
    assert "after 1 failures" in caplog.text


def test_a_delivery_is_forwarded_to_another_endpoint_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spare = endpoint("spare")
    stock = endpoint(retries=0, at_end="forward", forward_endpoint="spare")

    accept(endpoint=stock, new=request(DOWN), now=NOW)

    assert stored(endpoint=stock).state == "forwarded"
    assert "Giving up on delivery" in caplog.text
    copy = stored(endpoint=spare)
    assert (copy.state, copy.retry_count) == ("waiting", 0)
    assert bytes(copy.body.content) == request().body


def test_what_cannot_be_forwarded_to_a_removed_endpoint_is_given_to_triage() -> None:
    endpoint("spare")
    stock = endpoint(retries=0, at_end="forward", forward_endpoint="spare")
    # A sender has read the settings before these changes.
    change_endpoint(
        name=stock.name,
        changes={"at_end": "triage", "forward_endpoint": ""},
        principal=ADMIN,
        now=NOW,
    )
    remove_endpoint(name="spare", principal=ADMIN, now=NOW)

    accept(endpoint=stock, new=request(DOWN), now=NOW)

    assert stored().state == "given_up"
    assert Poison.objects.get().pk == stored().poison


def test_an_answer_is_delivered_to_the_response_hook() -> None:
    hook = endpoint("answers")
    stock = endpoint(mode="async", response_hook="answers")
    accept(endpoint=stock, new=request(), now=NOW)
    [claimed] = claim(stock)

    end(stock, claimed, SUCCESS)

    answer = stored(endpoint=hook)
    assert bytes(answer.body.content) == b"fine"
    assert [bytes(part) for part in answer.headers] == [
        *(b"x-poisonweb-answer-of", str(claimed.id).encode()),
        *(b"x-poisonweb-answer-status", b"200"),
    ]


def test_a_hook_gets_what_it_needs_to_read_an_answer_and_to_count_hops() -> None:
    hook = endpoint("answers")
    stock = endpoint(mode="async", response_hook="answers")
    hops = (b"x-poisonweb-hops", b"3")
    accept(endpoint=stock, new=request(headers=(hops,)), now=NOW)
    [claimed] = claim(stock)
    of_content = [(b"Content-Encoding", b"gzip"), (b"Content-Language", b"nl")]

    end(stock, claimed, replace(SUCCESS, headers=of_content, is_cut=True))

    headers = delivery_endings.headers_of(stored(endpoint=hook))
    assert [*headers[:2], *headers[-2:]] == [
        *of_content,
        (b"x-poisonweb-answer-is-cut", b"1"),
        hops,
    ]


def test_an_endpoint_that_is_forwarded_to_has_its_own_rules() -> None:
    spare = endpoint("spare", repeatable="never", order_header="x-order")
    stock = endpoint(retries=0, at_end="forward", forward_endpoint="spare")
    new = request(DOWN, headers=((b"X-Order", b"7"),))

    accept(endpoint=stock, new=new, now=NOW)

    copy = stored(endpoint=spare)
    assert not copy.is_repeatable
    assert copy.order_key is not None
    assert bytes(copy.order_key) == b"7"


def test_a_long_order_key_is_its_digest() -> None:
    stock = endpoint(order_header="X-Order")
    longest, longer = b"x" * 255, b"x" * 256

    assert order_key_of(stock, [(b"x-order", longest)]) == longest
    assert order_key_of(stock, [(b"x-order", longer)]) == sha256(longer).digest()


def test_a_sender_that_lost_its_claim_changes_nothing() -> None:
    stock = endpoint(claim_timeout=20.0)
    accept(endpoint=stock, new=request(), now=NOW)
    [frozen] = claim(stock, fence=1)
    assert (
        attempt_results.end_orphaned_attempts(endpoint=stock, most=10, now=later(21))
        == 1
    )
    [owned] = claim(stock, fence=2, at=24)

    assert not end(stock, frozen, SUCCESS, at=25)

    delivery = stored()
    assert (delivery.state, delivery.claim) == ("trying", owned.claim)
    first = Attempt.objects.get(number=1)
    assert (first.outcome, first.late_status) == ("unknown", 200)
    assert bytes(first.late_answer or b"") == b"fine"
    assert end(stock, owned, SUCCESS, at=26)


def test_a_sender_with_an_older_fence_claims_nothing() -> None:
    stock = endpoint()
    accept(endpoint=stock, new=request(), now=NOW)
    claim(stock, fence=7, most=0)
    accept(endpoint=stock, new=request(), now=NOW)
    assert len(claim(stock, fence=7)) == 2
    accept(endpoint=stock, new=request(), now=NOW)

    with pytest.raises(EndpointTaken):
        claim(stock, fence=6)

    assert Delivery.objects.filter(state="waiting").count() == 1


def test_no_delivery_is_rescued_before_its_claim_ends() -> None:
    stock = endpoint(claim_timeout=20.0)
    accept(endpoint=stock, new=request(), now=NOW)
    claim(stock)

    assert (
        attempt_results.end_orphaned_attempts(endpoint=stock, most=10, now=later(19))
        == 0
    )


def test_deliveries_of_one_key_are_claimed_one_after_the_other() -> None:
    stock = endpoint()
    for key in (b"a", b"a", b"b", None, None):
        accept(endpoint=stock, new=request(order_key=key), now=NOW)

    first = claim(stock)
    assert len(first) == 4
    assert claim(stock, at=1) == []
    # The second of key a follows only when the first is done.
    end(stock, first[0], DOWN, at=1)
    assert claim(stock, at=2) == []
    [again] = claim(stock, at=4)
    assert again.id == first[0].id
    end(stock, again, SUCCESS, at=4)
    [second] = claim(stock, at=4)
    assert second.id not in {each.id for each in first}


def test_a_dead_back_end_costs_one_probe_an_interval() -> None:
    stock = endpoint(
        retries=100, interval=1.0, breaker_failures=3, breaker_interval=10.0
    )
    for _ in range(5):
        accept(endpoint=stock, new=request(), now=NOW)
    for claimed in claim(stock):
        end(stock, claimed, DOWN)

    assert claim(stock, at=9) == []
    [probe] = claim(stock, at=10)
    assert claim(stock, at=10) == []
    end(stock, probe, DOWN, at=10)
    assert claim(stock, at=19) == []
    [probe] = claim(stock, at=20)
    end(stock, probe, SUCCESS, at=20)

    assert len(claim(stock, at=21)) == 4
    assert EndpointActivity.objects.get(endpoint=stock).opened_at is None


def test_a_success_that_lost_its_claim_closes_no_breaker() -> None:
    stock = endpoint(retries=100, breaker_failures=1)
    for _ in range(2):
        accept(endpoint=stock, new=request(), now=NOW)
    late, failed = claim(stock)
    end(stock, failed, DOWN)

    assert not end(stock, replace(late, claim=uuid.uuid4()), SUCCESS)

    assert EndpointActivity.objects.get(endpoint=stock).open_until is not None


@pytest.mark.django_db(transaction=True)
def test_successes_do_not_wait_for_a_claim_that_is_being_made() -> None:
    stock = endpoint(breaker_failures=3)
    accept(endpoint=stock, new=request(), now=NOW)
    [claimed] = claim(stock)

    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT FROM redelivery_endpoint_activity FOR UPDATE")
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'")
        try:
            assert end(stock, claimed, SUCCESS)
        finally:
            connection.close()


def test_an_open_breaker_that_its_endpoint_has_no_more_is_ignored_and_closed() -> None:
    stock = endpoint(breaker_failures=2)
    for _ in range(3):
        accept(endpoint=stock, new=request(), now=NOW)
    for claimed in claim(stock, most=2):
        end(stock, claimed, DOWN)
    assert EndpointActivity.objects.get().open_until is not None
    Endpoint.objects.update(breaker_failures=0)
    stock.refresh_from_db()

    assert not _breakers()[stock.pk].is_open
    assert not delivery_store.store_with_breaker(stock, request()).is_breaker_open
    [claimed] = claim(stock, at=1)
    end(stock, claimed, DOWN, at=1)

    assert EndpointActivity.objects.get().open_until is None


def test_a_result_without_its_claim_does_not_end_the_next_attempt() -> None:
    stock = endpoint(claim_timeout=20.0)
    accept(endpoint=stock, new=request(), now=NOW)
    [lost] = claim(stock)
    attempt_results.end_orphaned_attempts(endpoint=stock, most=10, now=later(21))
    [owned] = claim(stock, at=24)
    both = [
        EndedAttempt(
            delivery=each.id,
            claim=each.claim,
            attempt=each.attempt,
            ended_at=later(25),
            result=result,
        )
        for each, result in ((lost, DOWN), (owned, SUCCESS))
    ]

    recorded = attempt_results.record(endpoint=stock, attempts=both, now=later(25))

    assert recorded == [False, True]
    assert (stored().state, stored().attempts) == ("delivered", 2)
    assert CallCount.objects.get().failed == 1  # by the rescue


def test_successes_are_recorded_together_but_not_what_is_lost_or_a_requeue() -> None:
    stock = endpoint(claim_timeout=20.0, breaker_failures=3)
    accept(endpoint=stock, new=request(), now=NOW)
    [lost] = claim(stock)
    attempt_results.end_orphaned_attempts(endpoint=stock, most=10, now=later(21))
    for dedupe in (None, "requeue-1", None):
        accept(endpoint=stock, new=request(dedupe=dedupe), now=later(21))
    owned = claim(stock, at=24)
    attempts = (owned[2], lost, *owned[:2], owned[3])
    # The statement sees for itself which is one.
    ended = [replace(ended_of(each, at=25), is_requeued=False) for each in attempts]

    recorded = attempt_results.record(endpoint=stock, attempts=ended, now=later(25))

    assert recorded == [True, False, True, True, True]
    assert Delivery.objects.filter(state="delivered", claim=None).count() == 4
    ends = Attempt.objects.filter(outcome="succeeded", ended_at=later(25))
    assert ends.filter(begun_at=later(24.5), status=SUCCESS.status).count() == 4
    late = Attempt.objects.get(delivery=lost.id, number=1)
    assert (late.outcome, late.late_at) == ("unknown", later(25))
    counts = CallCount.objects.aggregate(
        *map(Sum, ("succeeded_at_first", "succeeded_later", "failed"))
    )
    assert [*counts.values()] == [3, 1, 1]
    assert EndpointActivity.objects.get().failures_in_a_row == 0


def test_only_what_may_be_repeated_is_claimed_ahead() -> None:
    stock = endpoint()
    new = [request(is_repeatable=number != 3) for number in range(6)]
    for number, each in enumerate(new):
        accept(endpoint=stock, new=each, now=later(number - 10))

    claimed = delivery_claims.claim(endpoint=stock, fence=1, most=2, ahead=3, now=NOW)

    assert {each.id for each in claimed} == {new[n].id for n in (0, 1, 2, 4)}
    claimed = delivery_claims.claim(endpoint=stock, fence=1, most=0, ahead=5, now=NOW)
    assert [each.id for each in claimed] == [new[5].id]
    [late] = claim(stock, most=1)
    assert late.id == new[3].id


def test_nothing_is_claimed_ahead_behind_an_open_breaker() -> None:
    stock = endpoint(retries=100, breaker_failures=1, breaker_interval=10.0)
    for _ in range(5):
        accept(endpoint=stock, new=request(), now=NOW)
    [first] = claim(stock, most=1)
    end(stock, first, DOWN)

    for at, number in ((9.0, 0), (10.0, 1), (10.0, 0)):
        claimed = delivery_claims.claim(
            endpoint=stock, fence=1, most=2, ahead=3, now=later(at)
        )
        assert len(claimed) == number


def test_what_is_given_back_was_never_called() -> None:
    stock = endpoint(claim_timeout=20.0)
    for _ in range(3):
        accept(endpoint=stock, new=request(DOWN), now=NOW)
    ours, lost, ended = claim(stock, at=3)
    end(stock, ended, SUCCESS, at=3)
    Delivery.objects.filter(pk=lost.id).update(claim=uuid.UUID(int=13))

    assert delivery_claims.give_back(deliveries=[ours, lost, ended]) == 1

    states = dict(Delivery.objects.values_list("pk", "state"))
    assert states == {ours.id: "waiting", lost.id: "trying", ended.id: "delivered"}
    delivery = stored(pk=ours.id)
    assert (delivery.attempts, delivery.retry_count) == (1, 1)
    assert (delivery.claim, delivery.due_at) == (None, later(3))
    assert [each.number for each in Attempt.objects.filter(delivery=ours.id)] == [1]
    [again] = claim(stock, at=3)
    assert (again.id, again.attempt) == (ours.id, 2)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the list of statements that recorded results, past Django's cursors."""
    statements = list[str]()

    def rows_of(statement: str, values: Any) -> list[tuple[Any, ...]]:
        statements.append(statement)
        return binary_rows(statement, values)

    monkeypatch.setattr(successes_and_retries, "binary_rows", rows_of)
    return statements


def test_successes_are_recorded_by_one_statement_without_a_lock_before(
    django_assert_num_queries: Any, recording: list[str]
) -> None:
    stock = endpoint()
    for dedupe in (*[None] * 20, "requeue-1"):
        accept(endpoint=stock, new=request(dedupe=dedupe), now=NOW)
    claimed = claim(stock, most=10) + claim(stock, most=10) + claim(stock, most=10)
    # All are due at one time, so that any of them may be claimed first.
    claimed.sort(key=lambda each: each.is_requeued)
    assert [each.is_requeued for each in claimed] == [False] * 20 + [True]
    ended = [ended_of(each) for each in claimed]

    # Counts and breaker, with those that begin and end the transaction.
    with django_assert_num_queries(4):
        attempt_results.record(endpoint=stock, attempts=ended[:20], now=later(1))
    assert len(recording) == 1
    assert Delivery.objects.filter(state="delivered").count() == 20
    # It is locked first, and no statement tries it before.
    attempt_results.record(endpoint=stock, attempts=ended[20:], now=later(1))
    assert len(recording) == 1
    assert Delivery.objects.filter(state="delivered").count() == 21


def ended_of(claimed: ClaimedDelivery, *, at: float = 1.0) -> EndedAttempt:
    return EndedAttempt(
        delivery=claimed.id,
        claim=claimed.claim,
        attempt=claimed.attempt,
        begun_at=later(at - 0.5),
        ended_at=later(at),
        result=SUCCESS,
        is_requeued=claimed.is_requeued,
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_claimed_again", [True, False])
def test_a_success_does_not_end_a_claim_that_was_lost_while_it_waited(
    is_claimed_again: bool,
) -> None:
    stock = endpoint(claim_timeout=20.0)
    for _ in range(3):
        accept(endpoint=stock, new=request(), now=NOW)
    claimed = claim(stock)
    lost = claimed[1]
    ended = [ended_of(each) for each in reversed(claimed)]

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            assert delivery_claims.give_back(deliveries=[lost]) == 1
            if is_claimed_again:
                [again] = claim(stock, at=2)
                assert again.id == lost.id
            recording = threads.submit(record_and_close, stock, ended)
            wait_until(is_anyone_waiting)
        recorded = recording.result(30)

    assert recorded == [True, False, True]
    state = "trying" if is_claimed_again else "waiting"
    assert (stored(pk=lost.id).state, stored(pk=lost.id).attempts) == (
        *(state, int(is_claimed_again)),
    )
    assert not Attempt.objects.filter(delivery=lost.id, outcome="succeeded").exists()
    assert CallCount.objects.get().succeeded_at_first == 2


def record_and_close(stock: Endpoint, ended: list[EndedAttempt]) -> list[bool]:
    try:
        return attempt_results.record(endpoint=stock, attempts=ended, now=later(3))
    finally:
        connection.close()


def is_anyone_waiting() -> bool:
    """Tell whether a session of this database waits for another's transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM pg_locks WHERE NOT granted"
            " AND pid IN (SELECT pid FROM pg_locks"
            " JOIN pg_database ON oid = database WHERE datname = current_database())"
        )
        return bool(cursor.rowcount)


def test_failures_that_are_tried_again_take_as_many_statements_as_one(
    django_assert_num_queries: Any, recording: list[str]
) -> None:
    stock = endpoint(retries=3, breaker_failures=5)
    for _ in range(30):
        accept(endpoint=stock, new=request(), now=NOW)
    claimed = claim(stock, most=10) + claim(stock, most=10) + claim(stock, most=10)
    results_of = [
        EndedAttempt(
            delivery=each.id,
            claim=each.claim,
            attempt=each.attempt,
            begun_at=later(0.5),
            ended_at=later(1),
            result=replace(
                BROKEN, headers=[(b"X-\xff", b'"\\{},')], detail="a\0b\ud800"
            ),
        )
        for each in claimed
    ]
    for attempts in (results_of[:1], results_of[1:]):
        recording.clear()
        # With those that begin and end the transaction.
        with django_assert_num_queries(6):
            assert all(
                attempt_results.record(endpoint=stock, attempts=attempts, now=later(1))
            )
        assert len(recording) == 1

    assert Delivery.objects.filter(state="waiting", retry_count=1).count() == 30
    delivery = stored(pk=claimed[13].id)
    assert (delivery.due_at, delivery.last_status) == (later(1 + stock.interval), 503)
    assert (delivery.last_wait, delivery.finished_at) == (stock.interval, None)
    attempt = Attempt.objects.get(delivery=delivery)
    assert (attempt.outcome, attempt.begun_at, attempt.ended_at) == (
        *("failed", later(0.5), later(1)),
    )
    assert [bytes(part) for part in attempt.answer_headers] == [b"X-\xff", b'"\\{},']
    assert attempt.detail == delivery.last_error
    assert "\0" not in attempt.detail
    assert CallCount.objects.get().failed == 30
    assert EndpointActivity.objects.get().failures_in_a_row == 30


def test_a_requeued_message_is_stored_once() -> None:
    stock = endpoint()
    twice = [request(dedupe="poisonweb-1-1"), request(dedupe="poisonweb-1-1")]

    assert accept_all(endpoint=stock, deliveries=twice, now=NOW) == {twice[0].id}
    assert accept_all(endpoint=stock, deliveries=twice[1:], now=NOW) == set()
    assert Delivery.objects.count() == 1


def test_many_requests_are_stored_by_one_round_trip(tmp_path: Path) -> None:
    stock = endpoint(order_header="Account")
    new = [request(headers=(), order_key=None), request(order_key=b"\xff", body=b"")]
    new += [request() for _ in range(20)]
    with traced_round_trips(tmp_path) as trips:
        accept_all(endpoint=stock, deliveries=new, now=NOW)

    # The savepoint has two of them, and the notice one.
    assert trips() == 4
    rows = Delivery.objects.order_by("pk").select_related("body")
    assert [
        (each.id, [bytes(part) for part in each.headers], each.order_key, each.size)
        for each in rows[:2]
    ] == [
        (new[0].id, [], None, len(new[0].body)),
        (new[1].id, [part for pair in new[1].headers for part in pair], b"\xff", 0),
    ]
    assert [bytes(each.body.content) for each in rows] == [each.body for each in new]


@contextmanager
def traced_round_trips(folder: Path) -> Iterator[Callable[[], int]]:
    """Count how often this test's session waits for Postgres; ask after the end."""
    session, trace = connection.connection.pgconn, folder / "trace"
    with trace.open("wb") as file:
        session.trace(file.fileno())
        try:
            yield lambda: trace.read_text().count("ReadyForQuery")
        finally:
            session.untrace()


def test_the_next_due_delivery_of_each_endpoint_is_known() -> None:
    stock, idle = endpoint(), endpoint("idle")
    accept(endpoint=stock, new=request(is_delayed_by=60), now=NOW)

    assert next_due(endpoint_ids=[stock.pk, idle.pk]) == {stock.pk: later(60)}


def test_large_deliveries_are_claimed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apps.redelivery.services.delivery_claims.MOST_BYTES", 10)
    stock = endpoint()
    for _ in range(3):
        accept(endpoint=stock, new=request(body=b"x" * 8), now=NOW)

    assert [len(claim(stock)), len(claim(stock))] == [2, 1]


@pytest.mark.parametrize(
    "columns",
    [
        {"state": "trying"},
        {"state": "delivered"},
        {"state": "given_up", "finished_at": NOW},
        {"retry_count": 1},
        {"claim": uuid.UUID(int=1)},
        {"state": "lost"},
    ],
)
def test_an_impossible_delivery_cannot_be_stored(columns: dict[str, Any]) -> None:
    accept(endpoint=endpoint(), new=request(), now=NOW)

    with pytest.raises(IntegrityError), transaction.atomic():
        Delivery.objects.update(**columns)
