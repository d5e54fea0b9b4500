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

from django.db import connection, transaction

from apps.core.text_cleaning import storable
from apps.redelivery.calls import CallResult, EndedAttempt
from apps.redelivery.models import Attempt, Delivery, Endpoint
from apps.redelivery.requeued_requests import REDRIVE
from apps.redelivery.retry_plan import FailedTry, NextTry, after_failure
from apps.redelivery.services import breaker, call_counts, ends, successes
from apps.redelivery.states import AttemptOutcome, DeliveryState
from poisonguard.contract import Cause

log = logging.getLogger(__name__)

# A delivery, and the claim of the sender that called for it.
_Claim = tuple[uuid.UUID, uuid.UUID]

OWNER_DIED = "its sender ended, or lost it, before it knew the answer"
_DETAIL_LIMIT = 2_000
_LOCK = """
SELECT id, claim, dedupe IS NOT NULL OR %(redrive)s = ANY (headers)
FROM redelivery_delivery WHERE id = ANY (%(ids)s) ORDER BY id FOR UPDATE
"""
_RESULT_COLUMNS = (
    *("state", "retry_count", "attempts", "due_at", "last_wait", "claim", "fence"),
    *("claimed_until", "last_status", "last_error", "cause", "finished_at", "poison"),
)


@transaction.atomic
def record(
    *, endpoint: Endpoint, attempts: Sequence[EndedAttempt], now: datetime
) -> list[bool]:
    """Record what attempts of one endpoint gave; False for each that lost its claim.

    They are recorded in the order of their ids, so that two recorders cannot wait for
    each other.
    """
    owned = _lock_owned(attempts)
    plain = [each for each in attempts if _is_plain(each, owned, endpoint)]
    successes.record(plain)
    rest = Delivery.objects.in_bulk(
        {delivery for delivery, _ in owned} - {attempt.delivery for attempt in plain}
    )
    outcomes, counts = list[bool](), Counter[str]()
    for attempt in attempts:
        if _claim_of(attempt) not in owned:
            _keep_late_answer(attempt, now=now)
            continue
        succeeded = True
        if attempt.delivery in rest:
            delivery = rest[attempt.delivery]
            succeeded = end_attempt(
                delivery, endpoint, attempt.result, ended_at=attempt.ended_at
            )
            counts += call_counts.counts_of(delivery, succeeded=succeeded)
        else:
            counts[call_counts.success_at(attempt.attempt)] += 1
        outcomes.append(succeeded)
    breaker.note(endpoint=endpoint, outcomes=outcomes, now=now)
    call_counts.add(endpoint_id=endpoint.pk, counts=counts, now=now)
    return [_claim_of(attempt) in owned for attempt in attempts]


@transaction.atomic
def rescue(*, endpoint: Endpoint, most: int, now: datetime) -> int:
    """End the attempts whose claim is over as unknown; return how many.

    What the back end did with them cannot be told: they are tried again only where
    they are repeatable.
    """
    expired = Delivery.objects.filter(
        endpoint=endpoint, state=DeliveryState.TRYING, claimed_until__lt=now
    )
    rows = list(
        expired.select_for_update(skip_locked=True).order_by("claimed_until")[:most]
    )
    counts = Counter[str]()
    unknown = CallResult(outcome=AttemptOutcome.UNKNOWN, detail=OWNER_DIED)
    for delivery in rows:
        end_attempt(delivery, endpoint, unknown, ended_at=now)
        counts += call_counts.counts_of(delivery, succeeded=False)
    call_counts.add(endpoint_id=endpoint.pk, counts=counts, now=now)
    return len(rows)


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
        ends.end(delivery, endpoint, cause=Cause.EXPIRED, now=now)
        delivery.save(update_fields=_RESULT_COLUMNS)
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
        detail=storable(result.detail, limit=_DETAIL_LIMIT),
        answer_headers=[part for header in result.headers for part in header],
        answer=result.body,
        is_answer_cut=result.is_cut,
    )
    delivery.last_status = result.status
    delivery.last_error = storable(result.detail, limit=_DETAIL_LIMIT)
    delivery.claim = delivery.fence = delivery.claimed_until = None
    succeeded = result.outcome is AttemptOutcome.SUCCEEDED
    if succeeded:
        ends.deliver(delivery, endpoint, result, now=ended_at)
    else:
        _fail(delivery, endpoint, result, now=ended_at)
    delivery.save(update_fields=_RESULT_COLUMNS)
    return succeeded


def _fail(
    delivery: Delivery, endpoint: Endpoint, result: CallResult, *, now: datetime
) -> None:
    """Let a delivery wait for its next try, or end it."""
    delivery.retry_count += 1
    failure = FailedTry(
        retry_count=delivery.retry_count,
        may_have_arrived=result.outcome is AttemptOutcome.UNKNOWN,
        last_wait=delivery.last_wait,
        retry_after=(
            result.retry_after(now=now) if endpoint.respects_retry_after else None
        ),
    )
    following = after_failure(
        endpoint.plan,
        failure,
        is_repeatable=delivery.is_repeatable,
        expires_at=delivery.expires_at,
        now=now,
    )
    if isinstance(following, NextTry):
        delivery.state = DeliveryState.WAITING.value
        delivery.due_at = following.due_at
        delivery.last_wait = (following.due_at - now).total_seconds()
    else:
        ends.end(delivery, endpoint, cause=following.cause, now=now)


def _lock_owned(attempts: Sequence[EndedAttempt]) -> dict[_Claim, bool]:
    """Lock the deliveries, in the order of their ids; keep those of their owners.

    The value tells whether more than the delivery itself changes with a success.
    """
    claims = {_claim_of(attempt) for attempt in attempts}
    ids = list({delivery for delivery, _ in claims})
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, {"ids": ids, "redrive": REDRIVE})
        return {
            (pk, claim): is_requeued
            for pk, claim, is_requeued in cursor.fetchall()
            if (pk, claim) in claims
        }


def _claim_of(attempt: EndedAttempt) -> _Claim:
    return attempt.delivery, attempt.claim


def _is_plain(
    attempt: EndedAttempt, owned: Mapping[_Claim, bool], endpoint: Endpoint
) -> bool:
    """Tell whether an attempt is a success that changes nothing but its delivery."""
    return (
        attempt.result.outcome is AttemptOutcome.SUCCEEDED
        and endpoint.response_hook_id is None
        and owned.get(_claim_of(attempt)) is False
    )


def _keep_late_answer(attempt: EndedAttempt, *, now: datetime) -> None:
    """Keep an answer that came after the claim on its attempt, once.

    A result that is recorded already, by a commit of which the sender did not hear, is
    none.
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
    """Keep an answer that came after the end of its attempt; it changes nothing."""
    Attempt.objects.filter(delivery=delivery, number=number, late_at=None).update(
        late_at=now, late_status=result.status, late_answer=result.body
    )
