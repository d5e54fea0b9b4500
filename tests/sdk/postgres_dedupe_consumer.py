"""A consumer with a Postgres window, forked to be killed around its commits.

Its broker is a file: what was settled there does not come again. Each message has two
copies, and ends the process once, where its name says: before its mark, before its
commit, or behind that.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import psycopg

from poisonguard import Guard
from poisonguard.dedupe.postgres import PostgresWindow
from tests.sdk.fake_poisonweb_server import KEY

BEFORE_MARK, BEFORE_COMMIT, AFTER_COMMIT = "mark", "commit", "after"
COPIES = ("a", "b")
EFFECTS = "CREATE TABLE effects (message text, pid int)"


class DedupingPlan(TypedDict):
    url: str
    dsn: str
    folder: str
    messages: list[str]


class DedupingConsumer:
    def __init__(self, plan: DedupingPlan) -> None:
        self._plan = plan
        self._folder = Path(plan["folder"])
        self._message = ""
        self._window = PostgresWindow(self.begin)

    def run(self) -> None:
        plan, settled = self._plan, self._folder / "settled"
        settled.touch()
        guard = Guard(
            topic="orders",
            consumer_group="billing",
            client_name="billing-1",
            url=plan["url"],
            api_key=KEY,
            journal=self._folder / "journal",
            start_timeout=60,
            dedupe=self._window,
        )
        with guard:
            for message in plan["messages"]:
                for copy in COPIES:
                    bookmark = f"{message}/{copy}"
                    if bookmark in settled.read_text().split():
                        continue
                    self._message = message
                    entry = {"bookmark": bookmark, "message_id": message, "body": "{}"}
                    outcome = guard.handle(entry, self.handle)
                    assert outcome.settles
                    with settled.open("a") as file:
                        file.write(f"{bookmark} {outcome}\n")

    @contextmanager
    def begin(self) -> Iterator[psycopg.Connection]:
        self._die_once(BEFORE_MARK)
        with psycopg.connect(self._plan["dsn"]) as connection:
            yield connection
        self._die_once(AFTER_COMMIT)

    def handle(self, message: dict[str, str]) -> None:
        self._window.connection.execute(
            "INSERT INTO effects VALUES (%s, %s)", (message["message_id"], os.getpid())
        )
        self._die_once(BEFORE_COMMIT)

    def _die_once(self, where: str) -> None:
        died = self._folder / f"{self._message}.died"
        if self._message.startswith(where) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(plan: str) -> None:
    DedupingConsumer(json.loads(plan)).run()
