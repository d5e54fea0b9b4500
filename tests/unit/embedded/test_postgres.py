from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest

from poisonweb.embedded import postgres, processes
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.ports import free_port


def column(url: str, query: str) -> list[object]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query)]


def test_the_role_owns_its_database_and_is_no_superuser(tmp_path: Path) -> None:
    owner = "SELECT datdba::regrole::text FROM pg_database WHERE datname = 'poisonweb'"
    rights = "SELECT rolname FROM pg_roles WHERE rolsuper"

    with postgres.temporary(tmp_path / "with space") as url:
        assert column(url, owner) == ["poisonweb"]
        assert column(url, rights) == ["postgres"]


def test_nobody_comes_in_without_the_password(tmp_path: Path) -> None:
    with (
        postgres.temporary(tmp_path) as url,
        pytest.raises(psycopg.OperationalError, match="password authentication failed"),
    ):
        psycopg.connect(url, password="guess")


def test_it_is_reached_through_the_loopback_interface_only(tmp_path: Path) -> None:
    with postgres.temporary(tmp_path) as url:
        assert column(url, "SHOW listen_addresses") == ["127.0.0.1"]
        # Its fifth line is the folder of its Unix socket.
        assert (tmp_path / "data" / "postmaster.pid").read_text().split("\n")[4] == ""


def test_its_data_outlive_a_stop(tmp_path: Path) -> None:
    with postgres.temporary(tmp_path) as url, psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")

    with postgres.temporary(tmp_path) as url:
        assert column(url, "SELECT n FROM kept") == [7]


def test_starts_after_a_kill_while_a_session_still_works(tmp_path: Path) -> None:
    postgres.prepare(tmp_path)
    server = postgres.program(tmp_path, port=free_port())
    process = processes.spawn(server, folder=tmp_path, log=tmp_path / "first.log")
    with process:
        while not server.ready(process.pid):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)

    with postgres.temporary(tmp_path) as url:
        assert column(url, "SELECT 1") == [1]


def test_a_pid_file_that_names_a_living_stranger_is_no_obstacle(tmp_path: Path) -> None:
    postgres.prepare(tmp_path)
    stranger = f"{os.getppid()}\n{tmp_path}/data\n1\n1\n\n127.0.0.1\n1 1\nready   \n"
    (tmp_path / "data" / "postmaster.pid").write_text(stranger)

    with postgres.temporary(tmp_path) as url:
        assert column(url, "SELECT 1") == [1]


def test_a_half_made_cluster_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "PG_VERSION").write_text("18")

    with postgres.temporary(tmp_path) as url:
        assert column(url, "SELECT 1") == [1]


def test_tests_may_make_databases_but_the_product_may_not(tmp_path: Path) -> None:
    rights = "SELECT rolcreatedb FROM pg_roles WHERE rolname = 'poisonweb'"
    port = free_port()
    postgres.prepare(tmp_path / "product")
    server = postgres.program(tmp_path / "product", port=port, durable=False)

    with processes.running(server, folder=tmp_path):
        assert column(postgres.url(tmp_path / "product", port=port), rights) == [False]
    with postgres.temporary(tmp_path / "tests") as url:
        assert column(url, rights) == [True]


def test_root_becomes_nobody_where_it_may_not_make_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    with postgres.temporary(tmp_path / "closed") as url:
        (tmp_path / "closed").chmod(0o700)
        assert column(url, "SELECT 1") == [1]


def test_data_of_another_postgres_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")

    with pytest.raises(
        CannotStart, match=r"is of Postgres 9, .* is Postgres 18: "
    ) as told:
        postgres.prepare(tmp_path)

    assert "POISONWEB_VAR=" in str(told.value)
    assert "\n" not in str(told.value)
