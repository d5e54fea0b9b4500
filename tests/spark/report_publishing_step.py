"""The last step of a run, for processes that are killed in it."""

from __future__ import annotations

from multiprocessing.connection import Connection

import django
from django.db import connection

django.setup()

from apps.core import clock, shared_postgres_snapshot  # noqa: E402 - models need Django
from apps.reports.models import Run  # noqa: E402
from apps.reports.services import publishing, staged_data_checks  # noqa: E402


def publish(
    database: str, run_id: int, rows_read: dict[str, int], begun: Connection
) -> None:
    """Check and publish the staged rows, as `report_run_execution` does it."""
    connection.settings_dict["NAME"] = database
    run = Run.objects.get(pk=run_id)
    begun.send(True)
    with shared_postgres_snapshot.open_snapshot() as run_snapshot:
        Run.objects.filter(pk=run.pk).update(
            snapshot=run_snapshot.pg_snapshot, as_of=clock.now()
        )
        staged = publishing.count_staged(run)
        rows = staged_data_checks.check(
            run=run, snapshot=run_snapshot, rows_read=rows_read
        )
    publishing.publish(run=run, rows=rows, staged=staged, now=clock.now())
