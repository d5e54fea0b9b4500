"""A Redis server that tests kill, and start again with all that it stored."""

from __future__ import annotations

import subprocess
from pathlib import Path

import redis

from poisonweb.embedded import process_control
from poisonweb.embedded import redis as embedded
from poisonweb.embedded.free_ports import free_port
from tests.waiting import await_start


class RedisServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_port()
        self._program = embedded.program(folder, port=port)
        self.url = embedded.url(folder, port=port, database=0)
        self.process = self._spawn()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = self._spawn()

    def stop(self) -> None:
        self.kill()

    def _spawn(self) -> subprocess.Popen[bytes]:
        log = self._folder / "log"
        process = process_control.spawn(self._program, folder=self._folder, log=log)
        await_start(
            process,
            lambda: self._program.ready(process.pid),
            describe=lambda: process_control.last_line(log),
        )
        with redis.Redis.from_url(self.url) as client:
            # Without this, Redis may delay a write for two seconds on a busy disk.
            client.config_set("appendfsync", "always")
        return process
