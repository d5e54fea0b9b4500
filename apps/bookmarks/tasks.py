"""Celery tasks of positions."""

from __future__ import annotations

from celery import shared_task

from apps.bookmarks.services import watermark_samples
from apps.core import clock


@shared_task(name="apps.bookmarks.tasks.sample")
def sample() -> None:
    """Sample the watermarks of all positions, and prune old samples."""
    now = clock.now()
    watermark_samples.take(now=now)
    watermark_samples.prune(now=now)
