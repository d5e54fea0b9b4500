from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from poisonweb.embedded import process_control, redis
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.process_control import Identity


def test_a_connection_without_the_password_is_refused(tmp_path: Path) -> None:
    with redis.temporary(tmp_path / 'with space and "') as url:
        port = Redis.from_url(url).get_connection_kwargs()["port"]

        impatient = Retry(NoBackoff(), retries=0)
        with (
            Redis(port=port, retry=impatient) as guest,
            pytest.raises(AuthenticationError),
        ):
            guest.ping()


def test_the_password_is_on_no_command_line(tmp_path: Path) -> None:
    password = redis.url(tmp_path, port=1, database=0)[9:52]

    with redis.temporary(tmp_path):
        children = [pid for pid in process_control.children() if Identity.of(pid)]
        lines = [command_line(pid) for pid in children]
        programs = [program(pid) for pid in children]

    assert "valkey-server" in programs
    assert not any(password in line for line in lines)
    assert password in (tmp_path / "redis.conf").read_text()
    assert (tmp_path / "redis.conf").stat().st_mode & 0o777 == 0o600


def program(pid: int) -> str:
    # Redis shortens its command line: the end of a long path is missing there.
    return (process_control.PROC / str(pid) / "exe").readlink().name


def command_line(pid: int) -> str:
    return (process_control.PROC / str(pid) / "cmdline").read_text()


def test_messages_are_kept_and_never_evicted(tmp_path: Path) -> None:
    with redis.temporary(tmp_path) as url, Redis.from_url(url) as client:
        client.xadd("topic", {"body": "7"})
        policy = client.config_get("maxmemory-policy")

    with redis.temporary(tmp_path) as url, Redis.from_url(url) as client:
        assert client.xlen("topic") == 1
    assert policy == {"maxmemory-policy": "noeviction"}


def test_the_server_is_one_that_is_still_mended(tmp_path: Path) -> None:
    """Redis 6.2, which came before, has known holes (CVE-2025-49844 and others)."""
    with redis.temporary(tmp_path) as url, Redis.from_url(url) as client:
        version = client.info("server")["valkey_version"]

    assert int(version.partition(".")[0]) >= 9


@pytest.mark.parametrize(
    ("version", "is_taken"), [("7.0.15", True), ("10.0.0", True), ("6.2.14", False)]
)
def test_where_none_is_installed_the_machines_own_serves_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_taken: bool
) -> None:
    own = tmp_path / "redis-server"
    own.write_text(f"#!/bin/sh\necho Redis server v={version} sha=0\n")
    own.chmod(0o700)
    monkeypatch.setattr(redis, "BUNDLED", tmp_path / "nothing")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    if is_taken:
        command = redis.program(tmp_path / "var", port=1).command
        assert command[0] == str(own)
        return
    with pytest.raises(CannotStart, match="redis-server of at least 7.0"):
        redis.program(tmp_path / "var", port=1)


def test_it_is_reached_through_the_loopback_interface_only(tmp_path: Path) -> None:
    with redis.temporary(tmp_path) as url, Redis.from_url(url) as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
