"""What beat asks for by name exists."""

from __future__ import annotations

from poisonweb.celery import app


def test_each_scheduled_task_is_one_that_workers_know() -> None:
    app.loader.import_default_modules()

    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}

    assert "apps.audit.tasks.checkpoint" in scheduled
    assert scheduled <= app.tasks.keys()
