"""Celery tasks of the audit trail."""

from __future__ import annotations

from celery import shared_task

from apps.audit import checkpointing
from apps.core import clock


@shared_task(name="apps.audit.tasks.checkpoint")
def checkpoint() -> None:
    """Take a signed checkpoint of the audit chain, if one is due."""
    checkpointing.take(now=clock.now())
