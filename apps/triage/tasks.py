"""Celery tasks: an id in, one service call. Postgres stores the work to be done."""

from __future__ import annotations

import logging
import time

from celery import shared_task

from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.core import clock
from apps.triage.services import (
    earlier_layout_conversion,
    orphaned_operations_and_expired_rows,
    previews,
    running,
)
from apps.triage.services.running import SliceEnd

log = logging.getLogger(__name__)

# Tasks that no worker starts in time must not pile up behind a slow worker.
RESCUE_EXPIRES = 10
# Of a rescue, at most, beside one step.
CONVERSION_SECONDS = 1.0


@shared_task(name="apps.triage.tasks.run_operation")
def run_operation(operation_id: int) -> None:
    """Work on an operation for a slice; enqueue the next slice if needed."""
    with RoutingPublisher() as publisher:
        ended = running.run(
            operation_id=operation_id, publisher=publisher, clock=clock.now
        )
    if ended is SliceEnd.AGAIN:
        run_operation.delay(operation_id)


@shared_task(name="apps.triage.tasks.take_selection")
def take_selection(operation_id: int) -> None:
    """Insert the items of a large preview; decide none of them yet."""
    previews.take(operation_id=operation_id, now=clock.now())


@shared_task(name="apps.triage.tasks.rescue")
def rescue() -> None:
    """Enqueue the operations that no worker works on, such as a dead worker's.

    Then, for some seconds, convert operations of the release before to this release's
    layout.
    """
    orphaned_operations_and_expired_rows.beat(now=clock.now())
    orphans = orphaned_operations_and_expired_rows.orphans(now=clock.now())
    for operation_id in orphans.to_run:
        run_operation.apply_async((operation_id,), expires=RESCUE_EXPIRES)
    for operation_id in orphans.to_take:
        take_selection.apply_async((operation_id,), expires=RESCUE_EXPIRES)
    until = time.monotonic() + CONVERSION_SECONDS
    while time.monotonic() < until and earlier_layout_conversion.convert_next():
        pass


@shared_task(name="apps.triage.tasks.prune")
def prune() -> None:
    """Delete old operation previews, idempotency keys, sessions, failed sign-ins."""
    pruned = orphaned_operations_and_expired_rows.prune(now=clock.now())
    if pruned.previews or pruned.idempotency_keys:
        log.info("pruned %s", pruned)
