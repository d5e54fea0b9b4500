"""Poisonweb's HTTP API, as far as a consumer needs it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

HOST = "127.0.0.1"
TIMEOUT_SECONDS = 5.0


class Undelivered(Exception):
    """Poisonweb did not take a report; it must be sent again."""


class Api:
    """Post reports with the key that is in `key_file` at that moment."""

    def __init__(self, *, port: int, key_file: Path) -> None:
        self._port = port
        self._key_file = key_file

    def post(
        self,
        kind: str,
        members: Sequence[dict[str, object]],
        *,
        seconds: float = TIMEOUT_SECONDS,
    ) -> list[str]:
        """Report `confirmations` or `counters`; return what was wrong with which.

        A member that is rejected would be rejected again, so nobody has to keep it.
        """
        try:
            status, text = self._exchange(kind, members, seconds)
            if status != HTTPStatus.OK:
                raise Undelivered(f"{kind}: {status} {text[:200]!r}")
            return [
                str(result.get("detail"))
                for result in json.loads(text)["results"]
                if result["status"] == "rejected"
            ]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as trouble:
            raise Undelivered(f"{kind}: {trouble!r}") from trouble

    def _exchange(
        self, kind: str, members: Sequence[dict[str, object]], seconds: float
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=seconds)
        headers = {
            "Authorization": f"Bearer {self._key_file.read_text(encoding='ascii')}",
            "Content-Type": "application/json",
        }
        body = json.dumps({kind: list(members)})
        try:
            connection.request("POST", f"/api/v1/{kind}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
