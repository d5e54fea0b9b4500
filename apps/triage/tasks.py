"""Celery's doors: an id in, one service call. Postgres knows what is to be done."""

from __future__ import annotations

import logging

from celery import shared_task

from apps.brokers.services.topics import RoutingPublisher
from apps.core import clock
from apps.triage.services import running, selection, upkeep
from apps.triage.services.running import Ended

log = logging.getLogger(__name__)

# A rescue that found no worker in time must not pile up behind a slow one.
RESCUE_EXPIRES = 10


@shared_task(name="apps.triage.tasks.run_operation")
def run_operation(operation_id: int) -> None:
    with RoutingPublisher() as publisher:
        ended = running.run(
            operation_id=operation_id, publisher=publisher, clock=clock.now
        )
    if ended is Ended.AGAIN:
        run_operation.delay(operation_id)


@shared_task(name="apps.triage.tasks.take_selection")
def take_selection(operation_id: int) -> None:
    selection.take(operation_id=operation_id, now=clock.now())


@shared_task(name="apps.triage.tasks.rescue")
def rescue() -> None:
    """Hand out what nobody works on; a dead worker's operation is among it."""
    upkeep.beat(now=clock.now())
    orphans = upkeep.orphans(now=clock.now())
    for operation_id in orphans.to_run:
        run_operation.apply_async((operation_id,), expires=RESCUE_EXPIRES)
    for operation_id in orphans.to_take:
        take_selection.apply_async((operation_id,), expires=RESCUE_EXPIRES)


@shared_task(name="apps.triage.tasks.prune")
def prune() -> None:
    pruned = upkeep.prune(now=clock.now())
    if pruned.previews or pruned.idempotency_keys:
        log.info("pruned %s", pruned)
