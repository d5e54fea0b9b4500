"""Celery's doors of capture."""

from __future__ import annotations

import logging

from celery import shared_task

from apps.capture import partitions as by_day
from apps.core import clock

log = logging.getLogger(__name__)


@shared_task
def partitions() -> None:
    """Make the partitions of the coming days."""
    made = by_day.make(today=clock.now().date())
    if made:
        log.info("made partitions %s", ", ".join(made))
