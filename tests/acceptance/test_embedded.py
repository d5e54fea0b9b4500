from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from poisonweb.embedded import discovery, processes
from tests.acceptance.product import (
    ROOT,
    Product,
    copy_of_tree,
    end,
    environment,
    eventually,
    processes_of,
    started,
)

pytestmark = pytest.mark.acceptance

PYTHON = ".venv/bin/python"
START = (PYTHON, "-m", "poisonweb.embedded")
READY = re.compile(
    r"Poisonweb is ready: http://127\.0\.0\.1:\d+/  sign in as admin / \S+\n"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_of_tree(tmp_path_factory.mktemp("a clone"))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


@pytest.fixture(scope="module")
def product(tree: Path) -> Iterator[Product]:
    with started(tree, *START, seconds=60) as product:
        yield product


def test_says_one_line_with_the_address_and_the_sign_in(product: Product) -> None:
    assert READY.fullmatch(product.ready_line)
    assert product.is_ready()


def test_everything_it_keeps_is_private(product: Product) -> None:
    # All but what every browser may ask for.
    public = product.var / "static"
    kept = [path for path in product.var.rglob("*") if public not in path.parents]

    open_to_others = [path for path in kept if path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert product.var.stat().st_mode & 0o077 == 0


def test_listens_on_the_loopback_interface_only(product: Product) -> None:
    sockets = set().union(*map(sockets_of, processes_of(product.var)))
    heard = [row.split() for row in listening()]
    ours = [row[1].split(":")[0] for row in heard if f"socket:[{row[9]}]" in sockets]

    assert len(ours) == 3
    assert set(ours) == {"0100007F"}


def sockets_of(pid: int) -> set[str]:
    links = (processes.PROC / str(pid) / "fd").iterdir()
    return {str(link.readlink()) for link in links if link.is_symlink()}


def listening() -> list[str]:
    tables = [(processes.PROC / "net" / name).read_text() for name in ("tcp", "tcp6")]
    rows = [row for table in tables for row in table.splitlines()[1:]]
    return [row for row in rows if row.split()[3] == "0A"]


def test_the_product_is_no_superuser(product: Product) -> None:
    url = discovery.environment(product.var)["DATABASE_URL"]

    with psycopg.connect(url) as connection:
        found = connection.execute("SHOW is_superuser").fetchone()

    assert found == ("off",)


def test_no_secret_stands_on_a_command_line(product: Product) -> None:
    secrets = [path.read_text() for path in product.var.glob("*/password")]
    lines = [
        (processes.PROC / str(pid) / "cmdline").read_text()
        for pid in processes_of(product.var)
    ]

    assert len(secrets) == 2
    assert not [line for line in lines if any(secret in line for secret in secrets)]


def test_another_terminal_finds_the_servers(product: Product, tree: Path) -> None:
    shown = subprocess.run(
        (PYTHON, "manage.py", "migrate", "--check"),
        cwd=tree,
        env=environment(),
        check=False,
    )

    assert shown.returncode == 0


def test_a_second_start_says_that_it_runs_already(product: Product, tree: Path) -> None:
    second = subprocess.run(
        START, cwd=tree, env=environment(), capture_output=True, text=True, check=False
    )

    assert (second.returncode, second.stdout) == (1, "")
    assert f"running here already (process {product.process.pid})" in second.stderr
    assert second.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["web", "worker", "beat", "lanes", "sample", "redis", "postgres"]
)
def test_a_killed_process_is_started_again(product: Product, name: str) -> None:
    old = product.pid(name)

    os.kill(old, signal.SIGKILL)

    eventually(lambda: f"{name} ended (killed by SIGKILL)" in product.said())
    eventually((product.var / "run" / f"{name}.pid").exists)
    eventually(lambda: product.pid(name) != old)
    eventually(product.is_ready)


def test_a_taken_port_is_told_in_one_line(tree: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        second = subprocess.run(
            START,
            cwd=tree,
            env=environment(PORT=port, POISONWEB_VAR=str(tmp_path)),
            capture_output=True,
            text=True,
            check=False,
        )

    assert second.returncode == 1
    assert re.fullmatch(rf"poisonweb: Port {port} is taken: .*\n", second.stderr)


def test_sigterm_leaves_no_process(tmp_path: Path, tree: Path) -> None:
    # A tree of its own: the one of the other tests is running.
    place = copy_of_tree(tmp_path / "another clone")
    (place / ".venv").symlink_to(ROOT / ".venv")
    with started(place, *START, seconds=60) as product:
        assert len(processes_of(product.var)) >= 7

        product.process.terminate()

        assert product.process.wait(30) == 0
        assert processes_of(product.var) == set()
        assert not (product.var / "run" / "servers.json").exists()


def test_starts_after_its_supervisor_was_killed(tmp_path: Path) -> None:
    place = copy_of_tree(tmp_path / "another clone")
    (place / ".venv").symlink_to(ROOT / ".venv")
    with started(place, *START, seconds=60) as product:
        product.process.kill()
        product.process.wait()

    with started(place, *START, seconds=60) as product:
        roots = [pid for pid in processes_of(product.var) if is_uvicorn(pid)]
        assert len(roots) == 1
        assert READY.fullmatch(product.ready_line)

        end(product)
        assert processes_of(product.var) == set()


def is_uvicorn(pid: int) -> bool:
    return b"uvicorn" in (processes.PROC / str(pid) / "cmdline").read_bytes()
