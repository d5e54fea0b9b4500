"""Skips as people add them, and the form by which they do."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.test import Client

from apps.poison.models import Poison, Skip
from apps.poison.skip_matching import Matcher
from tests.failure_report_builders import poisons
from tests.skip_builders_and_list_mirror import added, bookmark, topic_named

HOSTILE = "</td><script>alert(1)</script>\u202e\x1b[31m" + "A" * 500
RULE = {"by": "header", "where": "tenant", "value": "acme", "topic": "orders"}


def of_tenant(now: datetime, tenant: str, number: int = 1) -> list[Poison]:
    return poisons(now, number, headers=[("tenant", tenant.encode())])


def skip(
    now: datetime,
    matcher: Matcher | None = None,
    *,
    topic: str = "orders",
    **changes: object,
) -> Skip:
    """Add a skip; by default of a bookmark on orders."""
    return added(
        now,
        matcher or bookmark(str(uuid.uuid4())),
        topic=topic_named(topic),
        **{"reason": "it kills", **changes},
    )


def look(client: Client, form: Mapping[str, object], status: int = 200) -> str:
    response = client.post("/skips/new", {"act": "look", **form})
    assert response.status_code == status, response.content
    return response.content.decode()


def mark(page: str) -> str:
    (value,) = re.findall(r'name="seen" value="([^"]+)"', page)
    return str(value)


def add(client: Client, signature: str, **form: object) -> Any:
    data = {"act": "add", "seen": signature, "reason": "it kills", **form}
    return client.post("/skips/new", data)
