"""The upgrade to operations of other kinds, and the way back: no row is changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from django.db import connection

from apps.core.schema_changes import migrate
from apps.redelivery.services import delivery_items
from apps.redelivery.services.request_acceptance import accept
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, previews
from tests.failure_report_builders import poisons
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    DOWN,
    NOW,
    endpoint,
    later,
    request,
)
from tests.triage_operation_runner import confirm, counts_of, preview, run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def newest() -> Iterator[None]:
    yield
    migrate()


def back() -> None:
    migrate("redelivery", "0002")
    migrate("triage", "0009")
    migrate("poison", "0020")


def rows(table: str, columns: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table} ORDER BY 1")
        selected: list[tuple[object, ...]] = cursor.fetchall()
        return selected


def names(table: str) -> set[str]:
    with connection.cursor() as cursor:
        described = connection.introspection.get_table_description(cursor, table)
        return {column.name for column in described}


def test_operations_on_messages_are_the_same_on_the_way_back_and_again(
    now: datetime,
) -> None:
    poisons(now, 3)
    dropped = confirm(ADMIN, preview(ADMIN, now, verb=Verb.DROP), now)
    run(dropped, now)
    of_operations = "id, verb, state, layout, total, judged"
    before = rows("triage_operation", of_operations)

    back()
    assert {"kind"} & names("triage_operation") == set()
    assert {"due", "given_up"} & names("poison_window") == set()
    assert rows("triage_operation", of_operations) == before
    migrate()

    assert rows("triage_operation", of_operations) == before
    assert rows("triage_operation", "kind") == [("poison",)]
    assert counts_of(dropped) == {"dropped": 3}


def test_on_the_way_back_operations_on_deliveries_go_and_their_deeds_stay() -> None:
    now = later(1)
    stock = endpoint()
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    selection = delivery_items.selection_of_matches(Verb.TRY_NOW, {})
    finished = previews.preview(selection=selection, principal=ADMIN, now=now)
    confirm_and_undo.confirm(token=finished.token, reason="", principal=ADMIN, now=now)
    run(finished, now)
    begun = previews.preview(selection=selection, principal=ADMIN, now=now)
    confirm_and_undo.confirm(token=begun.token, reason="", principal=ADMIN, now=now)

    back()

    assert rows("triage_operation", "id") == []
    assert rows("poison_window", "operation") == []
    migrate()
    assert Operation.objects.count() == 0
    assert rows("redelivery_hold", "delivery_id") == []
    states = rows("redelivery_delivery", "id, state, due_at")
    assert [row[1:] for row in states] == [("waiting", now)] * 2


@pytest.mark.parametrize(
    ("kind", "verb", "layout"),
    [
        ("poison", "try_now", 2),
        ("delivery", "drop", 3),
        ("delivery", "try_now", 2),
        ("poison", "drop", 3),
        ("skip", "drop", 3),
    ],
)
def test_the_database_refuses_what_no_kind_has(
    now: datetime, kind: str, verb: str, layout: int
) -> None:
    with pytest.raises(Exception, match="triage_operation_(verb|layout)_is"):
        Operation.objects.create(
            kind=kind,
            verb=verb,
            layout=layout,
            actor="user:anna",
            source="ui",
            topics=["*"],
            created_at=now,
            expires_at=now,
        )
