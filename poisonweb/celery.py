"""Celery's application: it says that there is work; what it is stands in Postgres.

Its own redelivery is not what recovers a dead worker's operation, `rescue` is. So a
task is acknowledged early, never retried, and a late duplicate finds nothing to do.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")

RESCUE_SECONDS = 2.0
REPORTS_SECONDS = 15.0

app = Celery("poisonweb")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_default_queue="poisonweb",
    # Only the worker of this queue needs Spark and Java beside it.
    task_routes={"apps.reports.tasks.*": {"queue": "reports"}},
    beat_schedule={
        # A beat that nobody consumed in time is worth nothing: the next one is near.
        "rescue": {
            "task": "apps.triage.tasks.rescue",
            "schedule": RESCUE_SECONDS,
            "options": {"expires": RESCUE_SECONDS},
        },
        "prune": {
            "task": "apps.triage.tasks.prune",
            "schedule": 60.0,
            "options": {"expires": 60},
        },
        "partitions": {
            "task": "apps.capture.tasks.partitions",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "guards": {
            "task": "apps.capture.tasks.forget_guards",
            "schedule": 600.0,
            "options": {"expires": 600},
        },
        # Consumers look at the time themselves: this is for the list, and the page.
        "end-skips": {
            "task": "apps.capture.tasks.end_skips",
            "schedule": 10.0,
            "options": {"expires": 10},
        },
        "forget-skips": {
            "task": "apps.capture.tasks.forget_skips",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "positions": {
            "task": "apps.bookmarks.tasks.sample",
            "schedule": 60.0,
            "options": {"expires": 60},
        },
        "reports-rescue": {
            "task": "apps.reports.tasks.rescue",
            "schedule": REPORTS_SECONDS,
            "options": {"expires": REPORTS_SECONDS},
        },
        # Postgres knows whether the night is made; this only asks.
        "reports-nightly": {
            "task": "apps.reports.tasks.nightly",
            "schedule": 600.0,
            "options": {"expires": 600},
        },
    },
)
app.autodiscover_tasks()


@worker_ready.connect
def rescue_at_once(sender: Any, **_: object) -> None:
    """Ask for a rescue as soon as a worker of each queue can answer."""
    sender.app.send_task("apps.triage.tasks.rescue")
    sender.app.send_task("apps.reports.tasks.rescue")
