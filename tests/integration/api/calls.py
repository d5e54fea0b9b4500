"""The calls that take a body, as the schema describes them, and what they act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from apps.api.views.reference import schema
from apps.bookmarks.models import BookmarkPosition
from apps.brokers.models import Broker, Topic
from apps.core import clock
from tests.integration.api.caller import Caller, Reply
from tests.positions import opened
from tests.skips import added

Spec = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call with the shape of its body; `examples` are bodies to start from."""

    name: str
    method: str
    path: str
    body: Spec
    examples: Mapping[str, Any]

    def send(self, caller: Caller, rows: Mapping[str, int], body: object) -> Reply:
        """Send a body, and undo what it did."""
        path = re.sub(r"\{(\w+)\}", lambda match: str(rows[match[1]]), self.path)
        with undone():
            return caller.send(self.method, path, raw=json.dumps(body).encode())


def calls() -> list[Call]:
    return [
        Call(
            name=call["operationId"],
            method=method.upper(),
            path=path,
            body=media["schema"],
            examples={
                name: each["value"] for name, each in media.get("examples", {}).items()
            },
        )
        for path, methods in schema()["paths"].items()
        for method, call in methods.items()
        for media in call.get("requestBody", {}).get("content", {}).values()
    ]


def rows_of_examples() -> dict[str, int]:
    """Create what the examples name; give the ids that take the place in paths."""
    now = clock.now()
    broker = Broker.objects.create(name="theirs", kind="redis_streams")
    Topic.objects.create(name="orders", native_name="orders", broker=broker)
    opened(now, client_name="billing-1", sub_id="1", topic="orders")
    return {
        "broker_id": broker.pk,
        "skip_id": added(now).pk,
        "position_id": BookmarkPosition.objects.get().pk,
    }


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
