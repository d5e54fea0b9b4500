from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from poisonweb.embedded import process_control, running_servers_file
from tests.acceptance.product_process import (
    PYTHON,
    START,
    Product,
    clone,
    environment,
    on_small_disk,
    processes_of,
    refused,
    started,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

# As the kernel writes it, also for those that listen by IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
# A worker that is at a task has fifteen of them, where nothing else works beside it.
SECONDS_TO_END = 20.0 if os.environ.get("SOAK") else 60.0
# Celery starts, then Python, and then Java, at a lower priority than all other tests.
SPARK_SECONDS = 180.0
ASK_FOR_A_REPORT = """
import os
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "poisonweb.settings"
django.setup()
from apps.core import clock
from apps.core.actor import Actor
from apps.reports import tasks
from apps.reports.services import report_requests
now = clock.now()
day = report_requests.newest_over(now)
values = {"actor": Actor.system("test"), "source": "test", "now": now}
report_requests.request(first_day=day, last_day=day, **values)
tasks.rescue.delay()
"""
READY = re.compile(
    r"Poisonweb is ready: http://127\.0\.0\.1:\d+/  sign in as admin / \S+\n"
)


def test_says_one_line_with_the_address_and_the_sign_in(product: Product) -> None:
    assert READY.fullmatch(product.ready_line)
    assert product.is_ready()


def test_everything_it_keeps_is_private(product: Product) -> None:
    # All but what every browser may ask for.
    public = product.var / "static"
    private = {p: m for p, m in modes(product.var).items() if public not in p.parents}

    assert len(private) > 100
    assert [path for path, mode in private.items() if mode & 0o077] == []
    assert product.var.stat().st_mode & 0o077 == 0


def modes(folder: Path) -> dict[Path, int]:
    """Look at all in a folder; what goes meanwhile, as Spark's drafts do, is not."""
    mode_by_path: dict[Path, int] = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                path = Path(here, name)
                mode_by_path[path] = path.stat().st_mode
    return mode_by_path


def test_listens_on_the_loopback_interface_only(product: Product) -> None:
    sockets = set().union(*map(sockets_of, processes_of(product.var)))
    # In a container, root may not see what Postgres has open.
    database = urlsplit(running_servers_file.environment(product.var)["DATABASE_URL"])
    ours = [
        address
        for address, port, name in map(listener, listening())
        if name in sockets or port == database.port
    ]

    # Postgres, Redis and the web server; and Spark, which speaks to itself.
    assert len(ours) >= 3
    assert set(ours) <= LOOPBACK


def sockets_of(pid: int) -> set[str]:
    """Name what a process has open; what ends or closes meanwhile has nothing."""
    sockets = set()
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for link in (process_control.PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(str(link.readlink()))
    return sockets


def listener(row: str) -> tuple[str, int, str]:
    """Take the address, the port and the socket's name from a row of /proc/net/tcp."""
    fields = row.split()
    address, port = fields[1].split(":")
    return address, int(port, 16), f"socket:[{fields[9]}]"


def listening() -> list[str]:
    tables = [
        (process_control.PROC / "net" / name).read_text() for name in ("tcp", "tcp6")
    ]
    rows = [row for table in tables for row in table.splitlines()[1:]]
    return [row for row in rows if row.split()[3] == "0A"]


def test_the_product_is_no_superuser(product: Product) -> None:
    url = running_servers_file.environment(product.var)["DATABASE_URL"]

    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW is_superuser").fetchone()

    assert row == ("off",)


def test_no_secret_stands_on_a_command_line(product: Product) -> None:
    secrets = [path.read_text() for path in product.var.glob("*/password")]
    lines = [command_line(pid) for pid in processes_of(product.var)]

    assert len(secrets) == 2
    assert len([line for line in lines if line]) >= 3
    assert not [line for line in lines if any(secret in line for secret in secrets)]


def command_line(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return (process_control.PROC / str(pid) / "cmdline").read_text()
    return ""  # it has ended meanwhile


def test_another_terminal_finds_the_servers(product: Product) -> None:
    result = subprocess.run(
        (PYTHON, "manage.py", "migrate", "--check"),
        cwd=product.tree,
        env=environment(),
        check=False,
    )

    assert result.returncode == 0


def test_a_second_start_says_that_it_runs_already(product: Product) -> None:
    said = refused(product.tree, *START)

    assert f"running here already (process {product.process.pid})" in said


@pytest.mark.parametrize(
    "name",
    [
        "web",
        "worker",
        "beat",
        "lanes",
        "gateway",
        "sender",
        "sweeper",
        "reports",
        "sample",
        "shipping",
        "redis",
        "postgres",
    ],
)
def test_a_killed_process_is_started_again(product: Product, name: str) -> None:
    old = product.pid(name)

    os.kill(old, signal.SIGKILL)

    wait_until(lambda: f"{name} ended (killed by SIGKILL)" in product.said())
    wait_until(lambda: product.pid(name) != old)
    wait_until(product.is_ready)


def test_a_taken_port_is_told_in_one_line(product: Product, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        changes = {"PORT": port, "POISONWEB_VAR": str(tmp_path)}
        said = refused(product.tree, *START, changes=changes)

    assert said.startswith(f"poisonweb: Port {port} is taken: ")


def test_a_disk_without_room_for_data_is_told_in_one_line(
    product: Product, tmp_path: Path
) -> None:
    var = tmp_path / "disk" / "var"
    changes = on_small_disk(tmp_path / "disk", shim=tmp_path / "shim")

    said = refused(product.tree, *START, changes={**changes, "POISONWEB_VAR": str(var)})

    assert said.startswith(f"poisonweb: The disk of {var} has 63 MiB left, of ")


def test_neither_a_kill_nor_a_stop_leaves_a_process_even_while_spark_works(
    tmp_path: Path,
) -> None:
    place = clone(tmp_path / "another clone")
    quiet = {"POISONWEB_DEMO": "0"}
    with started(place, *START, changes=quiet) as product:
        ask = (PYTHON, "-c", ASK_FOR_A_REPORT)
        subprocess.run(ask, cwd=place, env=environment(), check=True)
        wait_until(lambda: sparks(product.var), seconds=SPARK_SECONDS)
        old = processes_of(product.var)
        product.process.kill()
        product.process.wait()

    with started(place, *START, changes=quiet) as product:
        assert old & processes_of(product.var) == set()
        assert len([pid for pid in processes_of(product.var) if is_web(pid)]) == 1
        assert READY.fullmatch(product.ready_line)

        wait_until(lambda: sparks(product.var), seconds=SPARK_SECONDS)
        product.process.terminate()
        assert product.process.wait(SECONDS_TO_END) == 0
        assert processes_of(product.var) == set()
        assert not (product.var / "run" / "servers.json").exists()


def sparks(var: Path) -> list[int]:
    return [pid for pid in processes_of(var) if b"SparkSubmit" in command(pid)]


def is_web(pid: int) -> bool:
    return b"poisonweb.web" in command(pid)


def command(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return (process_control.PROC / str(pid) / "cmdline").read_bytes()
    return b""
