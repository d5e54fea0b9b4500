"""The composition root: settings, doors, and the embedded mode."""

from __future__ import annotations

# Whoever imports Django's settings comes by here, so every process enqueues to our
# Celery application and none to Celery's default one.
from poisonweb.celery import app as celery_app

__all__ = ["celery_app"]
