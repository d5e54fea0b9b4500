"""The web server by itself, a process of its own on the database of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit
from urllib.request import urlopen

from django.db import connection

from apps.core import clock
from apps.core.actor import Actor
from apps.team import services as team
from apps.team.rights import ALL_TOPICS, Scope
from poisonweb.embedded.free_ports import free_port
from tests.acceptance.product_process import ROOT
from tests.waiting import await_start

CONSUMER = (
    *(Scope.CAPTURE_WRITE, Scope.SKIPS_READ),
    *(Scope.POSITIONS_READ, Scope.POSITIONS_WRITE),
)
_numbers = count(1)


def url_of_this_database() -> str:
    """Say where Django's database is: in tests it is not the one in the environment."""
    address = urlsplit(os.environ["DATABASE_URL"])
    name = connection.settings_dict["NAME"]
    return address._replace(path=f"/{name}").geturl()


def api_key(*scopes: Scope, topics: tuple[str, ...] = ALL_TOPICS) -> str:
    """Create an API key with these rights, or a consumer's; return its secret."""
    key = team.create_api_key(
        name=f"test-{next(_numbers)}",
        scopes=scopes or CONSUMER,
        topics=topics,
        actor=Actor.system("test"),
        now=clock.now(),
    )
    return key.secret


@dataclass(kw_only=True)
class Web:
    """A server at a fixed address that can be stopped, killed and started again."""

    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            (sys.executable, "-m", "poisonweb.web", "--port", str(self.port)),
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": url_of_this_database()},
        )
        await_start(self.process, self.answers, seconds=180)

    def answers(self) -> bool:
        with suppress(OSError), urlopen(f"{self.url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None
