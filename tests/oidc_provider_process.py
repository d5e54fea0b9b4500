"""A real OpenID provider on a loopback port, and people who sign in there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from django.test import Client

from poisonweb.embedded.free_ports import free_port
from poisonweb.env import Oidc
from tests.waiting import await_start

ROOT = Path(__file__).parents[1]
ROLES = {"ops": "operator", "leads": "admin", "readers": "viewer"}
SECONDS = 60


@dataclass(frozen=True)
class Provider:
    url: str

    @property
    def settings(self) -> Oidc:
        return Oidc(
            issuer=self.url,
            client_id="poisonweb",
            client_secret="secret",
            roles=ROLES,
            groups_claim="groups",
            name="Work",
        )

    def knows(self, subject: str, **claims: Any) -> None:
        """Set the claims that the provider sends about a person from now on."""
        requests.put(f"{self.url}/users/{subject}", json=claims, timeout=SECONDS)

    def misbehave(self, how: str) -> None:
        requests.put(f"{self.url}/odd", data=how, timeout=SECONDS)

    def agree(self, address: str, subject: str) -> str:
        """Sign in at the provider as this person; return the redirect's URL."""
        answer = requests.post(
            address, data={"sub": subject}, allow_redirects=False, timeout=SECONDS
        )
        assert answer.status_code == 302, answer.text
        return _path(answer.headers["Location"])

    def deny(self, address: str) -> str:
        answer = requests.post(
            address, data={"action": "deny"}, allow_redirects=False, timeout=SECONDS
        )
        # RFC 6749, 4.1.2.1 requires the state there too.
        state = parse_qs(urlsplit(address).query)["state"][0]
        return f"{_path(answer.headers['Location'])}&state={state}"

    def sign_in(self, client: Client, subject: str, *, next_url: str = "") -> Any:
        """Sign in through the provider completely; return our last response."""
        begun = client.post("/sign-in/provider", {"next": next_url})
        assert begun.status_code == 302, begun.content.decode()
        return client.get(self.agree(begun["Location"], subject))


def _path(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.path}?{parts.query}"


@contextmanager
def provider() -> Iterator[Provider]:
    port = free_port()
    ours = {**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"}
    command = [sys.executable, "-m", "tests.oidc_server", str(port)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=ours,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            started = Provider(f"http://127.0.0.1:{port}")
            await_start(process, lambda: _answers(started))
            yield started
        finally:
            process.kill()


def _answers(started: Provider) -> bool:
    try:
        requests.get(started.url, timeout=SECONDS)
    except requests.ConnectionError:
        return False
    return True
