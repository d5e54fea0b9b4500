"""`poisonguard_django` in a project of its own: tables by a migration, and messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from tests.database_removal import drop_database

ROOT = Path(__file__).parents[3]
PATHS = (ROOT, ROOT / "sdk", ROOT / "sdk/for_django")


@pytest.fixture
def empty_dsn() -> Iterator[str]:
    url, name = os.environ["DATABASE_URL"], f"project_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            drop_database(name, server)


def run(step: str, dsn: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sdk.outbox.django_project", step],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(map(str, PATHS)),
            "DSN": dsn,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def test_messages_go_with_the_transactions_of_atomic_and_the_migration_back(
    empty_dsn: str,
) -> None:
    first = run("migrate_and_put", empty_dsn)

    assert first["rows"] == [
        ["shop", "m-7 for orders", 3],
        ["shop", "m-9 for orders", 5],
        ["shop", "m-10 for bills", 4],
        ["shop", "m-11 for notes", 4],
    ]
    assert first["is_same"]
    assert first["inside"].startswith("Misconfigured: Outbox: send_or_put inside")
    assert not first["open while publishing"]
    assert "is one of sqlite: an outbox is a table of Postgres" in first["other"]
    assert first["room"]

    back = run("migrate_back", empty_dsn)

    assert "has messages that were not sent" in back["waiting"]
    assert back["rows"] == 4
    assert back["left"] == ["poisonguard_lock_resources", "poisonguard_lock_tickets"]


def test_settings_that_are_missing_or_wrong_are_named(empty_dsn: str) -> None:
    errors = run("misconfigure", empty_dsn)["errors"]

    assert errors[0] == errors[1].replace("{}:", "None:", 1)
    assert "POISONGUARD_OUTBOX is None: set it to a dictionary" in errors[0]
    assert "'limit' is no keyword of Outbox" in errors[2]
