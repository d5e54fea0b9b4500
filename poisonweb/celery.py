"""Celery's application: a task says that there is work; the work is in Postgres.

`rescue`, and not Celery's redelivery, recovers the operation of a dead worker. So a
task is acknowledged early and not retried, and a late duplicate finds no work.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")

RESCUE_SECONDS = 2.0
REPORTS_SECONDS = 15.0


def _every(seconds: float, task: str) -> dict[str, object]:
    """Return the beat entry of a periodic Celery task, which expires after a period."""
    # A beat that no worker consumed in time is useless: the next one follows soon.
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


app = Celery("poisonweb")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.Task.Request = "poisonweb.celery_message_checks:CheckedRequest"
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_default_queue="poisonweb",
    worker_consumer="poisonweb.celery_message_checks:CheckingConsumer",
    # Only the worker of this queue needs Spark and Java.
    task_routes={"apps.reports.tasks.*": {"queue": "reports"}},
    beat_schedule={
        "rescue": _every(RESCUE_SECONDS, "apps.triage.tasks.rescue"),
        "prune": _every(60.0, "apps.triage.tasks.prune"),
        "audit-checkpoint": _every(60.0, "apps.audit.tasks.checkpoint"),
        "partitions": _every(3600.0, "apps.capture.tasks.partitions"),
        "guards": _every(600.0, "apps.capture.tasks.forget_guards"),
        "oversize": _every(3600.0, "apps.capture.tasks.forget_oversize"),
        "folded": _every(3600.0, "apps.capture.tasks.forget_folded_reports"),
        # Consumers end skips themselves: this updates the list and the page.
        "end-skips": _every(10.0, "apps.capture.tasks.end_skips"),
        "forget-skips": _every(3600.0, "apps.capture.tasks.forget_skips"),
        "gather-counts": _every(10.0, "apps.capture.tasks.gather_counts"),
        # The task looks in Postgres whether it was done on this day.
        "check-counts": _every(600.0, "apps.capture.tasks.check_counts"),
        "prune-deliveries": _every(3600.0, "apps.redelivery.tasks.prune"),
        "positions": _every(60.0, "apps.bookmarks.tasks.sample"),
        "reports-rescue": _every(REPORTS_SECONDS, "apps.reports.tasks.rescue"),
        # The task looks in Postgres whether the nightly report is still missing.
        "reports-nightly": _every(600.0, "apps.reports.tasks.nightly"),
    },
)
app.autodiscover_tasks()


@worker_ready.connect
def rescue_at_once(sender: Any, **_: object) -> None:
    """Queue a rescue of stuck work as soon as a worker of each queue can answer."""
    sender.app.send_task("apps.triage.tasks.rescue")
    sender.app.send_task("apps.reports.tasks.rescue")
