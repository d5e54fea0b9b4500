"""Record what an attempt gave, and what follows: the end, or another try.

Only the owner of a delivery records its result: who lost it to another owner, because
its claim ended, changes nothing. Its late answer is kept on its attempt.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import compress
from operator import not_
from typing import NamedTuple

from django.db import connection, transaction

from apps.core.text_cleaning import storable
from apps.redelivery.call_and_delivery_dataclasses import CallResult, EndedAttempt
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome, DeliveryState
from apps.redelivery.models import Attempt, Delivery, Endpoint
from apps.redelivery.request_message_headers import REDRIVE
from apps.redelivery.retry_plan import (
    FailedTry,
    NextTry,
    NoMoreTries,
    after_failure,
)
from apps.redelivery.services import (
    call_counts,
    circuit_breaker,
    delivery_endings,
    successes_and_retries,
)
from apps.redelivery.services.successes_and_retries import (
    DETAIL_LIMIT,
    SuccessOrRetry,
)
from poisonguard.contract import Cause

log = logging.getLogger(__name__)

# A delivery, and the claim of the sender that called for it.
_Claim = tuple[uuid.UUID, uuid.UUID]

OWNER_DIED = "its sender ended, or lost it, before it knew the answer"
_LOCK = """
SELECT id, claim, dedupe IS NOT NULL OR %(redrive)s = ANY (headers),
    retry_count, last_wait, is_repeatable, expires_at
FROM redelivery_delivery WHERE id = ANY (%(ids)s) ORDER BY id FOR UPDATE
"""
_RESULT_COLUMNS = (
    *("state", "retry_count", "attempts", "due_at", "last_wait", "claim", "fence"),
    *("claimed_until", "last_status", "last_error", "cause", "finished_at", "poison"),
)


class _LockedDelivery(NamedTuple):
    """What a result depends on, of a delivery whose row is locked.

    `is_requeued`: more than the delivery itself changes with a success.
    """

    id: uuid.UUID
    claim: uuid.UUID
    is_requeued: bool
    retry_count: int
    last_wait: float
    is_repeatable: bool
    expires_at: datetime | None


def record(
    *, endpoint: Endpoint, attempts: Sequence[EndedAttempt], now: datetime
) -> list[bool]:
    """Record the results of an endpoint's attempts; False for each that lost its claim.

    Each transaction locks deliveries in the order of their ids, so that two recorders
    cannot wait for each other.
    """
    recorded = [False] * len(attempts)
    # The breaker counts failures in their order: where one is, none goes ahead.
    if endpoint.response_hook_id is None and all(map(_is_plain_success, attempts)):
        recorded = _record_successes(endpoint, attempts, now=now)
    rest = [*compress(attempts, map(not_, recorded))]
    are_ours = iter(_record_after_lock(endpoint, rest, now=now) if rest else ())
    return [is_in or next(are_ours) for is_in in recorded]


@transaction.atomic
def _record_successes(
    endpoint: Endpoint, attempts: Sequence[EndedAttempt], *, now: datetime
) -> list[bool]:
    """Record attempts that succeeded, by one statement; False for each it does not.

    Those have lost their claim, or change more than their delivery.
    """
    recorded = successes_and_retries.record(
        [SuccessOrRetry(attempt=attempt, following=None) for attempt in attempts]
    )
    numbers = [each.attempt for each in compress(attempts, recorded)]
    counts = Counter(map(call_counts.success_at, numbers))
    call_counts.add(endpoint_id=endpoint.pk, counts=counts, now=now)
    outcomes = [True] * len(numbers)
    circuit_breaker.note(endpoint=endpoint, outcomes=outcomes, now=now)
    return recorded


@transaction.atomic
def _record_after_lock(
    endpoint: Endpoint, attempts: Sequence[EndedAttempt], *, now: datetime
) -> list[bool]:
    """Record the results of attempts, whatever they are; False for each without claim.

    What follows depends on their deliveries, which are locked first.
    """
    locked = _lock(attempts)
    ours = [attempt for attempt in attempts if _claim_of(attempt) in locked]
    outcomes = _end_attempts(endpoint, ours, locked, now=now)
    circuit_breaker.note(endpoint=endpoint, outcomes=outcomes, now=now)
    for attempt in attempts:
        if _claim_of(attempt) not in locked:
            _keep_late_answer(attempt, now=now)
    return [_claim_of(attempt) in locked for attempt in attempts]


@transaction.atomic
def end_orphaned_attempts(*, endpoint: Endpoint, most: int, now: datetime) -> int:
    """End attempts whose claim is over as unknown, for a dead sender; return how many.

    What the back end did with them cannot be told: they are tried again only where they
    are repeatable.
    """
    expired = Delivery.objects.filter(
        endpoint=endpoint, state=DeliveryState.TRYING, claimed_until__lt=now
    )
    rows = expired.select_for_update(skip_locked=True).order_by("claimed_until")
    unknown = CallResult(outcome=AttemptOutcome.UNKNOWN, detail=OWNER_DIED)
    attempts = [
        EndedAttempt(
            delivery=pk, claim=claim, attempt=number, ended_at=now, result=unknown
        )
        for pk, claim, number in rows.values_list("pk", "claim", "attempts")[:most]
        if claim is not None
    ]
    _end_attempts(endpoint, attempts, _lock(attempts), now=now)
    return len(attempts)


@transaction.atomic
def end_expired(*, endpoint: Endpoint, most: int, now: datetime) -> int:
    """End deliveries that wait beyond their expiry; return how many."""
    expired = Delivery.objects.filter(
        endpoint=endpoint,
        state=DeliveryState.WAITING,
        due_at__lte=now,
        expires_at__lte=now,
    )
    rows = list(expired.select_for_update(skip_locked=True).order_by("due_at")[:most])
    for delivery in rows:
        delivery.endpoint = endpoint
    delivery_endings.end_all(rows, cause=Cause.EXPIRED, now=now)
    counts = {call_counts.GIVEN_UP: len(rows)}
    call_counts.add(endpoint_id=endpoint.pk, counts=counts, now=now)
    return len(rows)


def add_attempt(delivery: Delivery, *, begun_at: datetime) -> None:
    """Insert the next attempt of a delivery, and count it on the delivery."""
    delivery.attempts += 1
    Attempt.objects.create(
        delivery=delivery, number=delivery.attempts, begun_at=begun_at
    )


def end_attempt(
    delivery: Delivery, endpoint: Endpoint, result: CallResult, *, ended_at: datetime
) -> bool:
    """End the last attempt of a locked delivery, and decide; return its success."""
    Attempt.objects.filter(delivery=delivery, number=delivery.attempts).update(
        outcome=result.outcome.value,
        ended_at=ended_at,
        status=result.status,
        detail=storable(result.detail, limit=DETAIL_LIMIT),
        answer_headers=[part for header in result.headers for part in header],
        answer=result.body,
        is_answer_cut=result.is_cut,
    )
    delivery.last_status = result.status
    delivery.last_error = storable(result.detail, limit=DETAIL_LIMIT)
    delivery.claim = delivery.fence = delivery.claimed_until = None
    succeeded = result.outcome is AttemptOutcome.SUCCEEDED
    if succeeded:
        delivery_endings.deliver(delivery, endpoint, result, now=ended_at)
    else:
        _fail(delivery, endpoint, result, now=ended_at)
    delivery.save(update_fields=_RESULT_COLUMNS)
    return succeeded


def _end_attempts(
    endpoint: Endpoint,
    attempts: Sequence[EndedAttempt],
    locked: Mapping[_Claim, _LockedDelivery],
    *,
    now: datetime,
) -> list[bool]:
    """End attempts of locked deliveries, and count them.

    Tells of each attempt whether it succeeded.
    """
    results = {
        attempt.delivery: result
        for attempt in attempts
        if (result := _success_or_retry(attempt, locked[_claim_of(attempt)], endpoint))
    }
    successes_and_retries.record(list(results.values()))
    rest = Delivery.objects.in_bulk(
        [each.delivery for each in attempts if each.delivery not in results]
    )
    outcomes, counts = list[bool](), Counter[str]()
    for attempt in attempts:
        if attempt.delivery in rest:
            delivery = rest[attempt.delivery]
            succeeded = _end_attempt_with_begin(delivery, endpoint, attempt)
            counts += call_counts.counts_of(delivery, succeeded=succeeded)
        else:
            succeeded = results[attempt.delivery].following is None
            success = call_counts.success_at(attempt.attempt)
            counts[success if succeeded else call_counts.FAILED] += 1
        outcomes.append(succeeded)
    call_counts.add(endpoint_id=endpoint.pk, counts=counts, now=now)
    return outcomes


def _end_attempt_with_begin(
    delivery: Delivery, endpoint: Endpoint, attempt: EndedAttempt
) -> bool:
    """End a claimed delivery's attempt, with the time it began if it has one.

    That may be later than its claim.
    """
    if attempt.begun_at is not None:
        Attempt.objects.filter(delivery=delivery, number=attempt.attempt).update(
            begun_at=attempt.begun_at
        )
    return end_attempt(delivery, endpoint, attempt.result, ended_at=attempt.ended_at)


def _fail(
    delivery: Delivery, endpoint: Endpoint, result: CallResult, *, now: datetime
) -> None:
    """Count a delivery's failure; let it wait for its next try, or end it."""
    following = _following(delivery, endpoint, result, now=now)
    delivery.retry_count += 1
    if isinstance(following, NextTry):
        delivery.state = DeliveryState.WAITING.value
        delivery.due_at = following.due_at
        delivery.last_wait = (following.due_at - now).total_seconds()
    else:
        delivery_endings.end(delivery, endpoint, cause=following.cause, now=now)


def _following(
    delivery: Delivery | _LockedDelivery,
    endpoint: Endpoint,
    result: CallResult,
    *,
    now: datetime,
) -> NextTry | NoMoreTries:
    """Decide what follows a delivery's failure that is not counted yet.

    That is its next try, or no more tries.
    """
    failure = FailedTry(
        retry_count=delivery.retry_count + 1,
        may_have_arrived=result.outcome is AttemptOutcome.UNKNOWN,
        last_wait=delivery.last_wait,
        retry_after=(
            result.retry_after(now=now) if endpoint.respects_retry_after else None
        ),
    )
    return after_failure(
        endpoint.plan,
        failure,
        is_repeatable=delivery.is_repeatable,
        expires_at=delivery.expires_at,
        now=now,
    )


def _lock(attempts: Sequence[EndedAttempt]) -> dict[_Claim, _LockedDelivery]:
    """Lock the deliveries of attempts, in the order of their ids.

    Returns those whose claim is still that of the attempt.
    """
    claims = {_claim_of(attempt) for attempt in attempts}
    ids = list({delivery for delivery, _ in claims})
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, {"ids": ids, "redrive": REDRIVE})
        rows = map(_LockedDelivery._make, cursor.fetchall())
    return {(row.id, row.claim): row for row in rows if (row.id, row.claim) in claims}


def _claim_of(attempt: EndedAttempt) -> _Claim:
    return attempt.delivery, attempt.claim


def _success_or_retry(
    attempt: EndedAttempt, delivery: _LockedDelivery, endpoint: Endpoint
) -> SuccessOrRetry | None:
    """Return an attempt's result if it changes nothing but its delivery, else None.

    That is a success or a retry.
    """
    if _is_success(attempt):
        is_alone = endpoint.response_hook_id is None and not delivery.is_requeued
        return SuccessOrRetry(attempt=attempt, following=None) if is_alone else None
    following = _following(delivery, endpoint, attempt.result, now=attempt.ended_at)
    if isinstance(following, NextTry):
        return SuccessOrRetry(attempt=attempt, following=following)
    return None


def _is_success(attempt: EndedAttempt) -> bool:
    return attempt.result.outcome is AttemptOutcome.SUCCEEDED


def _is_plain_success(attempt: EndedAttempt) -> bool:
    """Tell whether an attempt succeeded, and nothing but its delivery changes."""
    return _is_success(attempt) and not attempt.is_requeued


def _keep_late_answer(attempt: EndedAttempt, *, now: datetime) -> None:
    """Store an answer that came after its delivery's claim on its attempt, once.

    A result that is recorded already, by a commit of which the sender did not hear, is
    no late answer.
    """
    if Attempt.objects.filter(
        delivery=attempt.delivery, number=attempt.attempt, ended_at=attempt.ended_at
    ).exists():
        return
    log.warning(
        "the sender of delivery %s was too late with attempt %d: another owns it",
        attempt.delivery,
        attempt.attempt,
    )
    if attempt.result.status is not None:
        keep_late_answer(
            delivery=attempt.delivery,
            number=attempt.attempt,
            result=attempt.result,
            now=now,
        )


def keep_late_answer(
    *, delivery: uuid.UUID, number: int, result: CallResult, now: datetime
) -> None:
    """Store a late answer on its attempt, which has ended; nothing else changes."""
    Attempt.objects.filter(delivery=delivery, number=number, late_at=None).update(
        late_at=now, late_status=result.status, late_answer=result.body
    )
