"""What the server itself adds to an answer, or keeps to itself."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.acceptance.web_server_process import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

BY_TLS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class SecureWeb(Web):
    """A server behind a proxy that speaks TLS."""

    def answers(self) -> bool:
        with suppress(OSError):
            return self.ask("GET", "/healthz").status == 200
        return False

    def ask(self, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(line):
            line.request(method, path, headers={**BY_TLS, **headers})
            answer = line.getresponse()
            answer.read()
            return answer


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecureWeb]:
    monkeypatch.setenv("POISONWEB_SECURE", "1")
    web = SecureWeb()
    web.start()
    try:
        yield web
    finally:
        web.stop()


def test_an_answer_asks_for_tls_and_does_not_name_the_server(web: SecureWeb) -> None:
    answers = {
        "a page": web.ask("GET", "/sign-in"),
        "the API": web.ask("GET", "/api/v1/problems"),
        "a form, by the other process": web.ask("POST", "/sign-in", **FORM),
        "nothing there": web.ask("GET", "/nowhere"),
    }

    servers = {name: answer.getheader("Server") for name, answer in answers.items()}
    seconds = {
        name: answer.getheader("Strict-Transport-Security")
        for name, answer in answers.items()
    }
    assert servers == dict.fromkeys(answers)
    assert seconds == dict.fromkeys(answers, "max-age=31536000")
