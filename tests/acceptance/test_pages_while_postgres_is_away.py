"""Postgres stops and comes back: pages say so, and people stay signed in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest

from poisonweb.embedded import postgres, process_control, redis
from poisonweb.embedded.free_ports import free_port
from tests.acceptance.product_process import ROOT
from tests.waiting import await_start, wait_until

pytestmark = pytest.mark.acceptance

PASSWORD = "correct horse battery"
Running = Callable[[], AbstractContextManager[None]]


class Browser:
    """What a browser keeps between its questions: the address and the cookies."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener: OpenerDirector = build_opener(HTTPCookieProcessor())

    def ask(self, path: str, **posted: str) -> tuple[int, str]:
        data = urlencode(posted).encode() if posted else None
        try:
            with self._opener.open(self._url + path, data, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def answers(self) -> bool:
        with suppress(OSError):
            return self.ask("/healthz")[0] == 200
        return False

    def sign_in(self) -> None:
        _, page = self.ask("/sign-in")
        match = re.search(r'csrfmiddlewaretoken" value="([^"]+)', page)
        assert match
        form = {"username": "admin", "password": PASSWORD}
        self.ask("/sign-in", csrfmiddlewaretoken=match[1], **form)


@pytest.fixture
def database(tmp_path: Path) -> tuple[Running, str]:
    """Give a Postgres that can be started again at the same place."""
    folder, port = tmp_path / "postgres", free_port()
    postgres.prepare(folder)
    program = postgres.program(folder, port=port, durable=False)
    running = partial(process_control.running, program, folder=folder)
    return running, postgres.url(folder, port=port)


@pytest.fixture
def environment(
    tmp_path: Path, database: tuple[Running, str]
) -> Iterator[dict[str, str]]:
    with redis.temporary(tmp_path / "redis") as broker_url:
        yield {
            "PATH": os.defpath,
            "DATABASE_URL": database[1],
            "CELERY_BROKER_URL": broker_url,
            "POISONWEB_VAR": str(tmp_path / "var"),
            "POISONWEB_ADMIN_PASSWORD": PASSWORD,
            "POISONWEB_DEMO": "0",
        }


@pytest.fixture
def visitor(environment: dict[str, str]) -> Iterator[Browser]:
    port = free_port()
    web = subprocess.Popen(
        [
            *(sys.executable, "-m", "poisonweb.web", "--port", str(port)),
        ],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    visitor = Browser(f"http://127.0.0.1:{port}")
    try:
        await_start(web, visitor.answers, seconds=180)
        yield visitor
    finally:
        web.terminate()
        web.wait(timeout=60)


def test_pages_tell_that_postgres_is_away_and_come_back_with_it(
    database: tuple[Running, str], environment: dict[str, str], visitor: Browser
) -> None:
    running, _ = database
    with running():
        prepare = [sys.executable, "manage.py", "prepare"]
        subprocess.run(prepare, cwd=ROOT, env=environment, check=True)
        visitor.sign_in()
        before, _ = visitor.ask("/problems")

    away = {path: visitor.ask(path) for path in ("/problems", "/readyz", "/healthz")}

    with running():
        wait_until(lambda: visitor.ask("/problems")[0] == 200)
    assert before == 200
    assert {path: status for path, (status, _) in away.items()} == {
        "/problems": 503,
        "/readyz": 503,
        "/healthz": 200,
    }
    assert "Postgres is away" in away["/problems"][1]
    assert "Request" in away["/problems"][1]
    assert '"postgres": "away"' in away["/readyz"][1]
