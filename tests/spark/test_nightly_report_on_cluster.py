"""A nightly report on a real Spark cluster: the same numbers, and no secret leaks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import Settings

from apps.reports import spark_job_process
from apps.reports.models import Day, Run
from apps.reports.services import report_requests, report_run_execution
from apps.reports.services.report_requests import NIGHTLY
from spark import cluster_code_shipping
from tests import failure_report_builders
from tests.machine_requirements import JDBC_JAR
from tests.spark import clusters, secret_leaks
from tests.spark.clusters import Cluster
from tests.spark.published_reports_text import published
from tests.spark.pytest_adbc_jdbc_parametrization import DOORS
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

DAY = date(2026, 11, 19)
NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)
# A cluster takes a minute on a quiet machine, and three on a busy one.
MOST_TIME = timedelta(minutes=8)
# Therefore only a soak starts a second one.
SOAK = bool(os.environ.get("SOAK"))
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# The programs that run on the workers: with the JDBC driver, no Python.
PROGRAMS = {"adbc": {EXECUTOR, "pyspark.daemon"}, "jdbc": {EXECUTOR}}


@pytest.fixture
def spark_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(spark_job_process, "MOST_TIME", MOST_TIME)
    with clusters.running(tmp_path / "cluster") as started:
        yield started


def happen() -> None:
    """Capture failures in two hours of the day, and counters in some minutes."""
    for hour in (0, 0, 3):
        at = (NOON + timedelta(hours=hour)).isoformat()
        failure_report_builders.capture(
            AT_TWO,
            failure_report_builders.failure(NOON, failed_at=at, first_failed_at=at),
        )
        failure_report_builders.count_up(
            AT_TWO, failure_report_builders.counter(minute=at)
        )


def night(lake: Path, settings: Settings) -> str:
    """Make the day's report with a lake of its own; return the published rows."""
    settings.POISONWEB_LAKE = str(lake)
    run = report_requests.queue(first_day=DAY, last_day=DAY, actor=NIGHTLY, now=AT_TWO)
    report_run_execution.run(run_id=run.pk, clock=lambda: AT_TWO)
    finished_run = Run.objects.get(pk=run.pk)
    assert (finished_run.trouble, finished_run.log) == ("", "")
    assert Day.objects.get(day=DAY).run_id == run.pk
    return published()


@pytest.mark.parametrize("door", DOORS if SOAK else DOORS[:1])
@pytest.mark.django_db(transaction=True)
def test_cluster_publishes_what_one_machine_does_and_shows_no_password(
    door: str,
    spark_cluster: Cluster,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if door == "jdbc":
        monkeypatch.setenv("POISONWEB_JDBC_JAR", str(JDBC_JAR))
    happen()
    on_this_machine = night(tmp_path / "lake", settings)
    monkeypatch.setenv("SPARK_MASTER", spark_cluster.master)
    monkeypatch.setenv("SPARK_CONF_DIR", str(spark_cluster.settings))
    monkeypatch.setenv("SPARK_LOCAL_IP", clusters.LOOPBACK)
    password = connection.settings_dict["PASSWORD"]

    with secret_leaks.watching(password, spark_cluster) as watch:
        on_the_cluster = night(tmp_path / "lake of the cluster", settings)

    assert on_the_cluster == on_this_machine
    assert watch.leaks == set()
    # The places that could have leaked the password were really searched.
    assert PROGRAMS[door] <= watch.programs
    assert watch.driver_log
    assert any(file.stat().st_size for file in spark_cluster.events.rglob("events_*"))
    assert list(spark_cluster.workers.rglob(f"*/{cluster_code_shipping.ARCHIVE}"))
    # No copy is left in Spark's temporary folders, the driver's or an executor's.
    wait_until(
        lambda: (
            cluster_code_shipping.ARCHIVE
            not in {file.name for file in clusters.files(spark_cluster.local)}
        )
    )


SILENT_MASTER = """
from datetime import timedelta
from spark import session
session.start("night", cluster_answers_within=timedelta(seconds=1))
"""


def test_job_ends_with_the_remedy_when_no_executor_answers_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server((clusters.LOOPBACK, 0)) as silent:
        master = f"spark://{clusters.LOOPBACK}:{silent.getsockname()[1]}"
        monkeypatch.setenv("SPARK_MASTER", master)
        monkeypatch.setenv("SPARK_LOCAL_IP", clusters.LOOPBACK)

        ended = subprocess.run(
            [sys.executable, "-c", SILENT_MASTER],
            check=False,
            capture_output=True,
            text=True,
            timeout=180,
        )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "spark.cluster_code_shipping.NoCluster: "
        f"no executor of {master} answered within 1 s: look "
    )


def test_archive_depends_on_the_code_alone(tmp_path: Path) -> None:
    cluster_code_shipping.archive(tmp_path / "code.zip")

    with zipfile.ZipFile(tmp_path / "code.zip") as archive:
        modules = archive.infolist()

    names = [module.filename for module in modules]
    assert names == sorted(names)
    assert {module.date_time for module in modules} == {(1980, 1, 1, 0, 0, 0)}


def test_archive_has_every_module_that_an_executor_imports(tmp_path: Path) -> None:
    cluster_code_shipping.archive(tmp_path / "code.zip")
    imported = (
        "from spark import cluster_code_shipping, postgres_reading_and_writing; "
        "print(postgres_reading_and_writing.__file__)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", imported],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "code.zip")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (
        ended.stdout.strip()
        == f"{tmp_path}/code.zip/spark/postgres_reading_and_writing.py"
    )
