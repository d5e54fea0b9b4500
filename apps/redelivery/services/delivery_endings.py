"""The ends of a delivery: delivered, in triage, dropped, or forwarded.

Each function changes a locked delivery; its caller saves it in the same transaction.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from django.db.models import F, Q

from apps.brokers.adapter_contract import Header
from apps.capture.intake import services as capture
from apps.capture.intake.occurrence import from_report
from apps.core import hashed_ids
from apps.core.text_cleaning import readable
from apps.poison.services import redrive_confirmations_by_token
from apps.redelivery.call_and_delivery_dataclasses import CallResult, NewDelivery
from apps.redelivery.delivery_ids import new_delivery_id
from apps.redelivery.delivery_order_keys import order_key_of
from apps.redelivery.due_notices import notify_due
from apps.redelivery.endpoint_and_delivery_choices import AtEnd, DeliveryState
from apps.redelivery.models import Attempt, Delivery, DeliveryBody, Endpoint
from apps.redelivery.outbound.request_and_answer_headers import HOPS
from apps.redelivery.repeatability import is_repeatable
from apps.redelivery.request_message_headers import (
    DELIVERY,
    IDEMPOTENCY_KEY,
    METHOD,
    PATH,
    REDRIVE,
)
from apps.redelivery.services.delivery_row_inserts import insert
from poisonguard.contract import Cause, FailureReport, Raised

log = logging.getLogger(__name__)

HOOK_OF = b"x-poisonweb-answer-of"
HOOK_STATUS = b"x-poisonweb-answer-status"
HOOK_IS_CUT = b"x-poisonweb-answer-is-cut"
_HEADERS_OF_CONTENT = frozenset(
    {b"content-type", b"content-encoding", b"content-language"}
)
# Of one report, and of one answer about a delivery.
MOST_ATTEMPTS = 200
# Of what becomes messages by the same statements.
MOST_IN_BATCH = 50
MOST_BYTES_IN_BATCH = 16 * 2**20
_COLUMNS_OF_END = ("state", "cause", "finished_at", "poison")
_NAME = "poisonweb"


def deliver(
    delivery: Delivery, endpoint: Endpoint, result: CallResult, *, now: datetime
) -> None:
    """Set a delivery to delivered; confirm its requeue, and call the response hook."""
    delivery.state = DeliveryState.DELIVERED.value
    delivery.finished_at = now
    token = _value_of(REDRIVE, headers_of(delivery))
    if token is not None:
        redrive_confirmations_by_token.confirm(
            tokens=[(token.decode("latin-1"), endpoint.topic.name)], now=now
        )
    if endpoint.response_hook is not None:
        _call_hook(delivery, endpoint.response_hook, result, now=now)


def end(delivery: Delivery, endpoint: Endpoint, *, cause: Cause, now: datetime) -> None:
    """End a delivery that is not tried again, as its endpoint says."""
    if not _ends_outside_triage(delivery, endpoint, cause=cause, now=now):
        give_to_triage(delivery, endpoint, now=now)


def end_all(deliveries: Sequence[Delivery], *, cause: Cause, now: datetime) -> None:
    """End and save deliveries that are not tried again, as their endpoints say.

    Their endpoints are loaded, with topic and endpoint to forward to.
    """
    to_triage = [
        delivery
        for delivery in deliveries
        if not _ends_outside_triage(delivery, delivery.endpoint, cause=cause, now=now)
    ]
    for batch in _batches(to_triage):
        _give_batch_to_triage([(each, each.endpoint) for each in batch], now=now)
    Delivery.objects.bulk_update(deliveries, _COLUMNS_OF_END)


def _ends_outside_triage(
    delivery: Delivery, endpoint: Endpoint, *, cause: Cause, now: datetime
) -> bool:
    """Give up a delivery: drop or forward it; return False if it is for triage."""
    delivery.cause = cause.value
    log.warning(
        "Giving up on delivery %s to %s: %s after %d failures",
        delivery.pk,
        endpoint,
        cause.value,
        delivery.retry_count,
    )
    if endpoint.at_end == AtEnd.DROP:
        drop(delivery, now=now)
        return True
    if endpoint.forward_topic_id is not None:
        delivery.state = DeliveryState.FORWARDING.value
        return True
    forward = endpoint.forward_endpoint
    return forward is not None and _forward(delivery, forward, now=now)


def drop(delivery: Delivery, *, now: datetime) -> None:
    """Drop a delivery; it can be restored as long as it is kept."""
    delivery.state = DeliveryState.DROPPED.value
    delivery.finished_at = now


def give_to_triage(delivery: Delivery, endpoint: Endpoint, *, now: datetime) -> None:
    """Make a delivery a poison of its endpoint's topic, byte for byte.

    Its headers say how to send it again, and its failure tells every attempt.
    """
    _give_batch_to_triage([(delivery, endpoint)], now=now)


def _give_batch_to_triage(
    deliveries: Sequence[tuple[Delivery, Endpoint]], *, now: datetime
) -> None:
    """Make a batch of given-up deliveries poisons; few statements serve all of them."""
    ids = [delivery.pk for delivery, _ in deliveries]
    bodies = dict(DeliveryBody.objects.filter(pk__in=ids).values_list("pk", "content"))
    attempts = _first_and_newest_attempts(ids)
    occurrences = [
        from_report(
            _report(
                delivery,
                endpoint,
                body=bytes(bodies[delivery.pk]),
                attempts=attempts[delivery.pk],
                now=now,
            ),
            topic=endpoint.topic,
            now=now,
        )
        for delivery, endpoint in deliveries
    ]
    answers = capture.write(occurrences=occurrences, now=now)
    for (delivery, _), answer in zip(deliveries, answers, strict=True):
        delivery.poison = answer.poison
        delivery.state = DeliveryState.GIVEN_UP.value
        delivery.finished_at = now


def _batches(deliveries: Sequence[Delivery]) -> Iterator[list[Delivery]]:
    """Split given-up deliveries, so that not too many bodies are in memory at once."""
    batch = list[Delivery]()
    size = 0
    for delivery in deliveries:
        if batch and (
            len(batch) == MOST_IN_BATCH or size + delivery.size > MOST_BYTES_IN_BATCH
        ):
            yield batch
            batch, size = [], 0
        batch.append(delivery)
        size += delivery.size
    if batch:
        yield batch


def _first_and_newest_attempts(
    ids: Sequence[uuid.UUID],
) -> Mapping[uuid.UUID, list[Attempt]]:
    """Read attempts for the failure reports of given-up deliveries, by delivery.

    Those of each are its first and its newest MOST_ATTEMPTS, in their order.
    """
    newest = Q(number__gt=F("delivery__attempts") - MOST_ATTEMPTS)
    rows = Attempt.objects.filter(Q(number=1) | newest, delivery__in=ids)
    attempts = defaultdict[uuid.UUID, list[Attempt]](list)
    columns = ("delivery", "number", "begun_at", "outcome", "status", "detail")
    for attempt in rows.only(*columns).order_by("delivery", "number"):
        attempts[attempt.delivery_id].append(attempt)
    return attempts


def headers_of(delivery: Delivery) -> tuple[Header, ...]:
    """Return the headers of a delivery as pairs of name and value, in bytes."""
    parts = [bytes(part) for part in delivery.headers]
    return tuple(zip(parts[::2], parts[1::2], strict=True))


def _report(
    delivery: Delivery,
    endpoint: Endpoint,
    *,
    body: bytes,
    attempts: Sequence[Attempt],
    now: datetime,
) -> FailureReport:
    """Describe a delivery that is given up as the failure of a message."""
    headers = headers_of(delivery)
    token = _value_of(REDRIVE, headers)
    content_type = _value_of(b"content-type", headers)
    return FailureReport(
        report_id=hashed_ids.report_id(queue="delivery", bookmark=str(delivery.pk)),
        topic=endpoint.topic.name,
        consumer_group="",
        client_name=_NAME,
        bookmark=str(delivery.pk),
        message_id=str(delivery.pk),
        body=body,
        headers=(
            *headers,
            (METHOD, delivery.method.encode()),
            (PATH, bytes(delivery.path)),
            (DELIVERY, str(delivery.pk).encode()),
            (IDEMPOTENCY_KEY, delivery.idempotency_key.encode("latin-1")),
        ),
        content_type=None if content_type is None else readable(content_type),
        cause=Cause(delivery.cause),
        exception=Raised(
            type=_error_type(delivery),
            message=delivery.last_error,
            traceback="\n".join(map(_line_of, attempts[-MOST_ATTEMPTS:])),
        ),
        attempts=delivery.attempts,
        failures=max(delivery.retry_count, 1),
        crashes=0,
        first_failed_at=attempts[0].begun_at if attempts else now,
        failed_at=now,
        redrive=None if token is None else token.decode("latin-1"),
    )


def _error_type(delivery: Delivery) -> str:
    """Return the error type of a delivery's last failure, for the fingerprint."""
    if delivery.last_status is not None:
        return f"HTTP {delivery.last_status}"
    return "no answer" if delivery.attempts else "never called"


def _line_of(attempt: Attempt) -> str:
    """Describe an attempt in a line of a given-up delivery's failure report.

    It leaves out the back end's answer, maybe a secret.
    """
    begun = attempt.begun_at.isoformat(timespec="milliseconds")
    status = f" HTTP {attempt.status}" if attempt.status is not None else ""
    line = f"attempt {attempt.number} at {begun}: {attempt.outcome}{status}"
    return f"{line} {attempt.detail}".strip()


def _forward(delivery: Delivery, endpoint: Endpoint, *, now: datetime) -> bool:
    """Insert a given-up delivery at another endpoint; False where that was removed.

    A sender may have read its settings before the removal.
    """
    is_new = _hand_over(
        endpoint,
        delivery,
        method=delivery.method,
        path=bytes(delivery.path),
        headers=headers_of(delivery),
        body=_body_of(delivery),
        now=now,
    )
    if not is_new and not Endpoint.objects.filter(pk=endpoint.pk).exists():
        return False
    delivery.state = DeliveryState.FORWARDED.value
    delivery.finished_at = now
    return True


def _call_hook(
    delivery: Delivery, hook: Endpoint, result: CallResult, *, now: datetime
) -> None:
    """Deliver the answer of a delivery to its endpoint's response hook."""
    of_content = [
        pair for pair in result.headers if pair[0].lower() in _HEADERS_OF_CONTENT
    ]
    hops = [pair for pair in headers_of(delivery) if pair[0].lower() == HOPS]
    _hand_over(
        hook,
        delivery,
        method="POST",
        path=b"",
        headers=(
            *of_content,
            (HOOK_OF, str(delivery.pk).encode()),
            (HOOK_STATUS, str(result.status).encode()),
            *([(HOOK_IS_CUT, b"1")] if result.is_cut else []),
            *hops,
        ),
        body=result.body,
        now=now,
    )


def _hand_over(
    endpoint: Endpoint,
    origin: Delivery,
    *,
    method: str,
    path: bytes,
    headers: Sequence[Header],
    body: bytes,
    now: datetime,
) -> bool:
    """Insert a delivery that follows from another one, once; tell whether it is new."""
    stored = insert(
        endpoint,
        NewDelivery(
            id=new_delivery_id(),
            method=method,
            path=path,
            headers=headers,
            body=body,
            caller=origin.caller,
            idempotency_key=f"{origin.idempotency_key}-{endpoint.name}",
            is_repeatable=is_repeatable(endpoint, method=method, headers=headers),
            order_key=order_key_of(endpoint, headers),
            dedupe=f"after-{origin.pk}",
        ),
        now=now,
    )
    notify_due(endpoint_id=endpoint.pk)
    return stored is not None


def _body_of(delivery: Delivery) -> bytes:
    """Read a delivery's body, which the instance lacks: many are ended at once."""
    bodies = DeliveryBody.objects.values_list("content", flat=True)
    return bytes(bodies.get(delivery=delivery))


def _value_of(name: bytes, headers: Iterable[Header]) -> bytes | None:
    """Return the value of the first header with this name; None without one."""
    return next((value for key, value in headers if key.lower() == name), None)
