"""Celery tasks of redelivery; the sender, not Celery, delivers."""

from __future__ import annotations

import logging

from celery import shared_task

from apps.core import clock
from apps.redelivery.services import pruning

log = logging.getLogger(__name__)


@shared_task(name="apps.redelivery.tasks.prune")
def prune() -> None:
    """Delete the deliveries that ended long ago."""
    number = pruning.prune(now=clock.now())
    if number:
        log.info("deleted %d deliveries that ended long ago", number)
