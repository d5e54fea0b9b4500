"""Pages that hang take nothing from the API, and hanging calls nothing from pages."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import psycopg
import pytest

from apps.core import clock
from apps.core.postgres_connections import open_session
from poisonweb.postgres_pools import MOST_SESSIONS, SessionPool
from tests.acceptance.web_server_process import Web, api_key
from tests.failure_report_builders import failure
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

# More than a web process has sessions.
CALLERS = 40
SIGNED_IN = {"Cookie": f"pw_session={'a' * 32}"}


def ask(
    web: Web, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> tuple[int, str | None]:
    """Return the status of an answer, and after how long to ask again."""
    line = HTTPConnection("127.0.0.1", web.port, timeout=60)
    try:
        line.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = line.getresponse()
        answer.read()
        return answer.status, answer.getheader("Retry-After")
    finally:
        line.close()


class RepeatingCallers:
    """Callers that ask again as soon as they are answered."""

    def __init__(self, web: Web, path: str, headers: Mapping[str, str]) -> None:
        self.answers = Counter[tuple[int, str | None]]()
        self._web, self._path, self._headers = web, path, headers
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_again) for _ in range(CALLERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_again(self) -> None:
        while not self._stop.is_set():
            self.answers[ask(self._web, self._path, self._headers)] += 1


@contextmanager
def hanging(
    web: Web, path: str, headers: Mapping[str, str], *, table: str
) -> Iterator[RepeatingCallers]:
    """Let requests for a path hang at a locked table, more than there are sessions."""
    crowd = RepeatingCallers(web, path, headers)
    session = open_session("test")
    try:
        with session, session.transaction():
            session.execute(f"LOCK TABLE {table}")
            crowd.start()
            wait_until(lambda: crowd.answers[503, "5"] > CALLERS)
            yield crowd
    finally:
        session.close()
        crowd.stop()


def most_hanging(session: psycopg.Connection[Any], table: str) -> int:
    """Count the sessions that wait for the lock of a table."""
    counted = session.execute(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass",
        [table],
    ).fetchone()
    assert counted
    return int(counted[0])


def test_consumers_report_while_pages_hang(web: Web) -> None:
    key = {"Authorization": f"Bearer {api_key()}"}
    json_of = {**key, "Content-Type": "application/json"}
    report = json.dumps({"failures": [failure(clock.now(), body=b"{}")]}).encode()

    with (
        hanging(web, "/problems", SIGNED_IN, table="django_session"),
        open_session("test") as session,
    ):
        for _ in range(5):
            assert ask(web, "/api/v1/failures", json_of, report)[0] == 200
            assert ask(web, "/api/v1/skips?topic=orders", key)[0] == 200
            assert ask(web, "/readyz", {})[0] == 200
            hung = most_hanging(session, "django_session")
            assert hung <= MOST_SESSIONS[SessionPool.PAGES]


def test_pages_answer_while_calls_of_the_api_hang(web: Web) -> None:
    key = {"Authorization": f"Bearer {api_key()}"}

    with (
        hanging(web, "/api/v1/topics", key, table="team_api_key"),
        open_session("test") as session,
    ):
        for _ in range(5):
            # Of an unknown session: it is looked up, and a sign-in asked for.
            assert ask(web, "/problems", SIGNED_IN)[0] == 302
            assert ask(web, "/sign-in", SIGNED_IN)[0] == 200
            hung = most_hanging(session, "team_api_key")
            assert hung <= MOST_SESSIONS[SessionPool.API]
