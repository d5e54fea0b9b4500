from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from poisonweb.embedded import running_servers_file
from poisonweb.embedded.process_control import Identity
from poisonweb.embedded.running_servers_file import NotRunning, Servers

SERVERS = Servers(
    database_url="postgresql://p@127.0.0.1:1/p",
    celery_broker_url="redis://127.0.0.1:2/0",
    redis_url=None,
)


def test_names_the_servers_of_a_living_supervisor(tmp_path: Path) -> None:
    running_servers_file.announce(tmp_path, SERVERS, supervisor=Identity.own())

    assert running_servers_file.environment(tmp_path) == {
        "POISONWEB_LOOPBACK_BROKERS": "1",
        "DATABASE_URL": "postgresql://p@127.0.0.1:1/p",
        "CELERY_BROKER_URL": "redis://127.0.0.1:2/0",
    }


def test_what_it_keeps_is_private(tmp_path: Path) -> None:
    running_servers_file.announce(tmp_path, SERVERS, supervisor=Identity.own())

    file = tmp_path / "run" / "servers.json"
    assert file.stat().st_mode & 0o777 == 0o600


def test_names_a_remedy_when_nothing_was_started(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="`make run`"):
        running_servers_file.environment(tmp_path)


def test_does_not_believe_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=-1) as dead:
        identity = Identity.of(dead.pid)
        assert identity
        dead.kill()
    running_servers_file.announce(tmp_path, SERVERS, supervisor=identity)

    with pytest.raises(NotRunning):
        running_servers_file.environment(tmp_path)


def test_forgets_servers_that_were_stopped(tmp_path: Path) -> None:
    running_servers_file.announce(tmp_path, SERVERS, supervisor=Identity.own())

    running_servers_file.withdraw(tmp_path)

    with pytest.raises(NotRunning):
        running_servers_file.environment(tmp_path)
