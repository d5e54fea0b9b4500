"""A PgBouncer on a free loopback port, in front of a Postgres, in either mode."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from poisonweb.embedded.free_ports import LOOPBACK, free_port
from poisonweb.embedded.postgres import AS_NOBODY
from tests.waiting import await_start

# Debian's is where only root's path leads.
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATION = """
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {pool_size}
"""


def missing() -> str:
    """Return what to install for PgBouncer; "" if nothing."""
    return "" if PROGRAM else "apt-get install pgbouncer"


@contextmanager
def running(folder: Path, url: str, *, mode: str, pool_size: int = 5) -> Iterator[str]:
    """Run a PgBouncer in front of the database of `url`; yield the url through it."""
    address, port = urlsplit(url), free_port()
    settings = CONFIGURATION.format(
        host=address.hostname,
        server_port=address.port,
        port=port,
        folder=folder,
        mode=mode,
        pool_size=pool_size,
    )
    (folder / "pgbouncer.ini").write_text(settings)
    (folder / "users").write_text(f'"{address.username}" "{address.password}"\n')
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [
                # It refuses to run as root.
                *(AS_NOBODY if os.geteuid() == 0 else ()),
                *("setpriv", "--pdeathsig", "KILL", "--"),
                *(str(PROGRAM), str(folder / "pgbouncer.ini")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        await_start(process, lambda: _listens(port), describe=log.read_text)
        place = f"{address.username}:{address.password}@{LOOPBACK}:{port}"
        yield address._replace(netloc=place).geturl()
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=5):
            return True
    except OSError:
        return False
