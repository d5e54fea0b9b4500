"""What a start does with the `var/` that another Poisonweb left behind."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from poisonweb.embedded import (
    postgres,
    process_control,
    running_servers_file,
)
from poisonweb.embedded.free_ports import free_port
from tests.acceptance.product_process import (
    PYTHON,
    START,
    clone,
    end,
    environment,
    refused,
    started,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

# The migrations of 0.1.0, the oldest version whose data are taken over.
OLDEST = {
    "reports": None,
    "triage": "0001_initial",
    "capture": "0002_counters_by_day",
    "poison": "0002_partitioned_by_day",
    "bookmarks": "0001_initial",
    "brokers": "0001_initial",
    "team": "0001_initial",
    "audit": "0002_append_only",
}
GO_BACK = f"""
import django
django.setup()
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
MigrationExecutor(connection).migrate({list(OLDEST.items())})
"""
MESSAGES = "SELECT id, captured_at FROM poison_poison"
TRAIL = "SELECT seq, hash FROM audit_entry"


@pytest.fixture(scope="module")
def var_of_older_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the `var/` of a product whose sample has run for a while."""
    tree = clone(tmp_path_factory.mktemp("kept"))
    with started(tree, *START) as product:
        url = running_servers_file.environment(product.var)["DATABASE_URL"]
        wait_until(lambda: rows(url, MESSAGES), seconds=180)
        end(product)
    return tree / "var"


@pytest.fixture
def tree(tmp_path: Path, var_of_older_version: Path) -> Path:
    """Give a clone with a copy of that `var/`."""
    place = clone(tmp_path / "a clone")
    shutil.copytree(var_of_older_version, place / "var", symlinks=True)
    return place


@contextmanager
def database(var: Path) -> Iterator[str]:
    """Run the Postgres of a `var/` that is not in use."""
    folder, port = var / "postgres", free_port()
    server = postgres.program(folder, port=port)
    with process_control.running(server, folder=var / "log"):
        yield postgres.url(folder, port=port)


def rows(url: str, query: str) -> set[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return set(connection.execute(query))


def test_brings_the_data_of_an_older_version_up_and_keeps_them(tree: Path) -> None:
    with database(tree / "var") as url:
        go_back(tree, url)
        messages, trail = rows(url, MESSAGES), rows(url, TRAIL)

    with started(tree, *START, changes={"POISONWEB_DEMO": "0"}) as product:
        url = running_servers_file.environment(product.var)["DATABASE_URL"]
        assert product.is_ready()
        assert messages
        assert messages <= rows(url, MESSAGES)
        assert trail <= rows(url, TRAIL)


def go_back(tree: Path, url: str) -> None:
    servers = {"DATABASE_URL": url, "CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
    subprocess.run(
        (PYTHON, "-c", GO_BACK),
        cwd=tree,
        env=environment(**servers, DJANGO_SETTINGS_MODULE="poisonweb.settings"),
        check=True,
    )


def test_leaves_the_data_of_a_newer_version_alone_and_says_so(tree: Path) -> None:
    future = "('poison', '9999_what_nobody_knows_yet', now())"
    with database(tree / "var") as url, psycopg.connect(url) as connection:
        connection.execute(
            f"INSERT INTO django_migrations (app, name, applied) VALUES {future}"
        )

    said = refused(tree, *START)

    assert "used by a newer Poisonweb (poison.9999_what_nobody_knows_yet" in said
    assert "bring this one up to date" in said


def test_leaves_the_data_of_another_postgres_alone_and_says_so(tree: Path) -> None:
    version = tree / "var" / "postgres" / "data" / "PG_VERSION"
    version.write_text("14\n")

    said = refused(tree, *START)

    assert "is of Postgres 14, and this is Postgres 18: carry it over" in said
