"""Search for a secret where others could see it: processes' arguments and logs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from poisonweb.embedded.process_control import PROC, all_pids
from tests.spark import clusters
from tests.spark.clusters import Cluster

SECONDS_BETWEEN_LOOKS = 0.1
DRIVER = b"spark.jobs.nightly_failure_rate"


class SecretWatch:
    """Polls the processes of a nightly report while Spark works.

    `leaks` says where the secret was; `programs` what ran in the workers' folder, and
    `driver_log` what the driver printed.
    """

    def __init__(self, secret: str, cluster: Cluster) -> None:
        self._secret = secret.encode()
        self._cluster = cluster
        self._driver: IO[bytes] | None = None
        self.driver_log = b""
        self.leaks: set[str] = set()
        self.programs: set[str] = set()

    def look(self) -> None:
        for pid in all_pids():
            # It may end, or become another program, between any two of these.
            with suppress(OSError):
                self._look_at(PROC / str(pid))

    def _look_at(self, process: Path) -> None:
        command = (process / "cmdline").read_bytes()
        environment = (process / "environ").read_bytes()
        folder = (process / "cwd").readlink()
        # The driver's environment names its settings. Other tests share the password.
        if not (
            folder.is_relative_to(self._cluster.folder)
            or bytes(self._cluster.settings) in environment
        ):
            return
        self._check(command, f"the command line {command[:200]!r}")
        if DRIVER in command and self._driver is None:
            self._driver = (process / "fd/2").open("rb")
        if folder.is_relative_to(self._cluster.workers):
            self._check(environment, f"the environment of {command[:200]!r}")
            self.programs |= set(command.decode(errors="replace").split("\0"))

    def _check(self, text: bytes, place: str) -> None:
        if self._secret in text:
            self.leaks.add(place)

    def look_at_logs(self) -> None:
        """Search the driver's output, and all files that the cluster wrote."""
        if self._driver is not None:
            with self._driver as log:
                log.seek(0)
                self.driver_log = log.read()
        self._check(self.driver_log, "the driver's log")
        for file in clusters.files(self._cluster.folder):
            # Temporary files may be deleted meanwhile.
            with suppress(FileNotFoundError):
                if file.is_file():
                    self._check(file.read_bytes(), str(file))


@contextmanager
def watching(secret: str, cluster: Cluster) -> Iterator[SecretWatch]:
    watch, over = SecretWatch(secret, cluster), threading.Event()

    def look_on() -> None:
        while not over.wait(SECONDS_BETWEEN_LOOKS):
            watch.look()

    thread = threading.Thread(target=look_on)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        watch.look_at_logs()
