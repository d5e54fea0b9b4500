"""Pages as a browser gets them, and their text."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from django.test import Client


def get(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status, path
    return response.content.decode()


def post(client: Client, path: str, status: int, **form: object) -> str:
    """Return the page that answers a form, or the address that it leads to."""
    response: Any = client.post(path, form)
    assert response.status_code == status, response.content
    return str(response.content.decode() or response["Location"])


def words(page: str) -> str:
    """Return the text of a page in one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())


def is_in(client: Client) -> bool:
    """Tell whether this client has signed in."""
    return client.get("/help").status_code == 200
