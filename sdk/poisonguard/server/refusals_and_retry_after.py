"""What an answer says that is no success, and for how long to ask no more."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import urllib3

from poisonguard.errors import Away, Refused
from poisonguard.server.http_dates import seconds_since_1970

RETRY_AFTER_LIMIT = 60.0
# Reads cost the server little, and skip lists should be current soon.
READ_RETRY_AFTER_LIMIT = 1.0

_RETRY_LATER = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}
_REMEDIES = {
    401: "check the API key, or have one made: manage.py create_api_key",
    403: "give the API key the scope and the topic it lacks",
    404: "check the url: nothing before /api/v1 belongs there but a proxy's prefix",
}


@dataclass(slots=True)
class ServerUrl:
    """One url, and until when it asked for no requests, by `timer`."""

    url: str
    timer: Callable[[], float] = time.monotonic
    writes_from: float = 0.0
    reads_from: float = 0.0

    def remaining_pause(self, *, reading: bool) -> float:
        """Return the seconds to wait before a request to this Poisonweb url.

        0 or less: none.
        """
        return (self.reads_from if reading else self.writes_from) - self.timer()

    def hold_off(self, status: int, retry_after: str | None) -> None:
        """Make no requests to this Poisonweb url for its answer's Retry-After."""
        pause = min(_seconds(retry_after), RETRY_AFTER_LIMIT)
        now, limited = self.timer(), status == HTTPStatus.TOO_MANY_REQUESTS
        self.writes_from = now + pause
        self.reads_from = now + (
            pause if limited else min(pause, READ_RETRY_AFTER_LIMIT)
        )


def refusal(server: ServerUrl, response: urllib3.BaseHTTPResponse) -> Away | Refused:
    """Return the error for a bad answer of Poisonweb's; obey its Retry-After."""
    status, headers = response.status, response.headers
    detail = _detail(response)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRY_LATER:
        server.hold_off(status, headers.get("Retry-After"))
        return Away(f"{server.url} answers {status}. {detail}".strip())
    if status < HTTPStatus.BAD_REQUEST:
        place = headers.get("Location", "nowhere")
        return Refused(
            f"{server.url} redirects to {place}: give the url it wants.", status=status
        )
    remedy = _REMEDIES.get(status, "")
    said = f"{server.url} answers {status}. {detail}".strip()
    return Refused(f"{said} ({remedy})" if remedy else said, status=status)


def _detail(response: urllib3.BaseHTTPResponse) -> str:
    """Return the detail of Poisonweb's problem document (RFC 9457), or ""."""
    try:
        problem = json.loads(response.data)
    except (ValueError, RecursionError, urllib3.exceptions.HTTPError):
        return ""
    if not isinstance(problem, Mapping):
        return ""
    errors = problem.get("errors")
    members = errors if isinstance(errors, list) else []
    places = [
        f"{error.get('pointer')}: {error.get('detail')}"
        for error in members
        if isinstance(error, Mapping)
    ]
    return " ".join([str(problem.get("detail") or ""), *places]).strip()


def _seconds(header: str | None) -> float:
    """Parse a Retry-After, seconds or a date; return 0 for anything else."""
    if header is None:
        return 0.0
    if re.fullmatch("[0-9]{1,9}", header.strip()):
        return float(header)
    moment = seconds_since_1970(header)
    return 0.0 if moment is None else max(0.0, moment - time.time())
