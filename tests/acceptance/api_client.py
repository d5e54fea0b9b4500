"""A program that uses the HTTP API, knowing nothing else of the product."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.waiting import wait_until

UNANSWERED = ("waiting", "sending", "unknown", "sent")


@dataclass(frozen=True, kw_only=True)
class ApiClient:
    url: str
    key: str

    def get(self, path: str, **query: str) -> Any:
        return self._ask(Request(f"{self.url}/api/v1/{path}?{urlencode(query)}"))

    def post(self, path: str, body: dict[str, object]) -> Any:
        request = Request(f"{self.url}/api/v1/{path}", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        return self._ask(request)

    def all(self, path: str, q: str) -> Iterator[dict[str, Any]]:
        """Yield what a list of the API holds, page by page."""
        query = {"q": q}
        while True:
            page = self.get(path, **query)
            yield from page["results"]
            if page["next"] is None:
                return
            query = {"q": q, "cursor": page["next"]}

    def requeue(self, q: str, *, reason: str) -> dict[str, Any]:
        """Send all matching messages back, and wait until each has been answered."""
        preview = self.post("operations/preview", {"verb": "redrive", "q": q})
        confirmation = {"token": preview["token"], "reason": reason}
        accepted = self.post("operations", confirmation)
        see = partial(self.get, f"operations/{accepted['id']}")
        # A message that kills its consumer is answered by the next one that starts.
        wait_until(lambda: is_answered(see()), seconds=180, describe=see)
        operation: dict[str, Any] = see()
        return operation

    def _ask(self, request: Request) -> Any:
        """Repeat an API request until the server is not busy, as the SDK does."""
        request.add_header("Authorization", f"Bearer {self.key}")
        while True:
            try:
                with urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except HTTPError as refusal:
                if refusal.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                time.sleep(0.2)


def is_answered(operation: dict[str, Any]) -> bool:
    counts = operation["counts"]
    return operation["state"] == "done" and not any(counts[w] for w in UNANSWERED)
