"""One Spark session for all tests, on the database of the tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from pyspark.sql import SparkSession

from spark import session
from tests.machine_requirements import JDBC_JAR
from tests.spark.pytest_adbc_jdbc_parametrization import DOORS, Export
from tests.tmpdir_for_killed_processes import files_of_killed_processes

__all__ = ["files_of_killed_processes"]


def _database_url() -> str:
    name = connection.settings_dict["NAME"]
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


@pytest.fixture(scope="session")
def spark(django_db_setup: None) -> Iterator[SparkSession]:
    """Start Spark once; its Python workers keep the environment of this moment."""
    # Spark writes at its end, when the streams that it logs to are closed already.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", _database_url())
        if JDBC_JAR.exists():
            patch.setenv("POISONWEB_JDBC_JAR", str(JDBC_JAR))
        started = session.start("tests")
    # Compiling code would take longer than processing a handful of rows.
    started.conf.set("spark.sql.codegen.wholeStage", "false")
    started.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield started
    started.stop()


@pytest.fixture
def database_url(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the tests' database, and set it in the environment."""
    url = _database_url()
    monkeypatch.setenv("DATABASE_URL", url)
    return url


@pytest.fixture
def export(database_url: str) -> Iterator[Export]:
    """Return a function that exports a snapshot, held until the end of the test."""
    with ExitStack() as sessions:
        yield partial(_export, database_url, sessions)


def _export(database_url: str, sessions: ExitStack) -> str:
    session = sessions.enter_context(psycopg.connect(database_url))
    session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    row = session.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each way of reading facts."""
    if request.param == "jdbc":
        monkeypatch.setenv("POISONWEB_JDBC_JAR", str(JDBC_JAR))
    return str(request.param)
