"""The calls that take a body, as the schema describes them, and what they act on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction

from apps.api.views.openapi_reference import schema
from apps.bookmarks.services import watermark_samples
from apps.brokers.models import Broker, Topic
from apps.core import clock
from apps.triage.models import Item, Operation
from apps.triage.operation_states import OperationState, Verb
from apps.triage.services import position_moves
from apps.triage.services.position_moves import MoveTarget, Strategy
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import Caller, Reply
from tests.integration.outbox.outbox_builders import events, outbox_at
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.position_opening_and_settling import opened, settle, update
from tests.skip_builders_and_list_mirror import ANNA, added

Spec = Mapping[str, Any]
# Before the moment to which an example moves a position.
THEN = datetime(2026, 11, 20, 9, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call with the shape of its body; `examples` are bodies to start from."""

    name: str
    method: str
    path: str
    body: Spec
    examples: Mapping[str, Any]

    def send(self, caller: Caller, rows: Mapping[str, int], body: object) -> Reply:
        """Send an API call with a body, and undo what it did."""
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
    broker = Broker.objects.create(name="ours", kind="redis_streams", url="env:X")
    Topic.objects.create(
        name="orders",
        native_name="orders",
        broker=broker,
        dead_letter_queue="orders-dead",
    )
    Topic.objects.create(
        name="invoices-later", native_name="invoices-later", broker=broker
    )
    _begin_ids(poison_poison=13, poison_skip=5, bookmarks_position=3, bookmarks_move=6)
    poisons(clock.now(), 1)
    added(clock.now())
    for name in ("billing-1", "billing-2"):
        epoch = opened(THEN, client_name=name).epoch
        settle(THEN, update(epoch, (0, 9), client_name=name, publisher="shop"))
    watermark_samples.take(now=THEN)
    position_moves.move(
        position_id=3,
        wish=MoveTarget(strategy=Strategy.EXACT, to={"shop": 5}),
        reason="a test",
        fence=False,
        principal=ANNA,
        now=clock.now(),
    )
    operation = Operation.objects.create(
        verb=Verb.REDRIVE.value,
        state=OperationState.QUEUED.value,
        actor=str(ANNA.actor),
        source=ANNA.source,
        topics=["*"],
        taken=True,
        total=1,
        will_act=1,
        created_at=THEN,
        expires_at=THEN,
        confirmed_at=THEN,
    )
    Item.objects.create(operation=operation, number=0, poison_id=13)
    events()
    outbox = outbox_at(os.environ["DATABASE_URL"], "ours")
    return {
        "broker_id": broker.pk,
        "endpoint_id": endpoint("stock-quote").pk,
        "outbox_id": outbox.pk,
        "row_id": 4711,
        "skip_id": 5,
        "position_id": 3,
        "operation_id": operation.pk,
    }


def _begin_ids(**tables: int) -> None:
    """Give the next row of each table the id that the examples name."""
    with connection.cursor() as cursor:
        for table, number in tables.items():
            sequence = "setval(pg_get_serial_sequence(%s, 'id'), %s, false)"
            cursor.execute(f"SELECT {sequence}", [table, number])


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
