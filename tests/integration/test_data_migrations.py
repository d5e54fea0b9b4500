"""What migrations make of the rows that are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
from django.db import connection

from apps.brokers.models import Topic
from apps.capture.models import Lane, LaneState
from apps.core.schema_changes import migrate
from apps.poison.models import Failure, Redrive
from apps.poison.services.redrive_confirmations_by_token import confirm
from apps.team import services as team
from apps.team.models import ApiKey, SignInFailures
from apps.team.rights import Principal, Scope
from tests.failure_report_builders import capture, failure, poisons
from tests.triage_operation_runner import redriven


@contextmanager
def schema_of(app: str, migration: str) -> Iterator[None]:
    """Takes the app back to that migration meanwhile; other tests need the newest."""
    try:
        migrate(app, migration)
        yield
    finally:
        migrate()


@pytest.mark.django_db(transaction=True)
def test_facts_of_older_rows_are_filled_in(now: datetime) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    capture(now, failure(now, bookmark="1-0"), failure(now, bookmark="2-0"))
    confirm(tokens=[(redriven(poison, now), "orders")], now=now)
    with schema_of("poison", "0003"), connection.cursor() as cursor:
        cursor.execute("UPDATE poison_failure SET is_first = false")
        cursor.execute("UPDATE poison_redrive SET confirmed_at = NULL")

    marked = Failure.objects.order_by("id").values_list("is_first", flat=True)
    assert list(marked) == [True, False, True]
    assert Redrive.objects.get().confirmed_at == now


@pytest.mark.django_db(transaction=True)
def test_a_key_goes_back_with_the_rights_that_were_known_before(
    operator: Principal, now: datetime
) -> None:
    team.create_api_key(
        name="ci", scopes=[*Scope], topics=["*"], actor=operator.actor, now=now
    )

    # Later columns are not there then: the model cannot be read whole.
    scopes = ApiKey.objects.values_list("scopes", flat=True)
    with schema_of("team", "0001"):
        before = set(scopes.get())

    assert before == {
        *("capture:write", "positions:read", "poisons:read", "bodies:read"),
        *("problems:read", "operations:read", "operations:write", "audit:read"),
    }
    assert set(scopes.all().get()) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("state", "migration", "before"),
    [
        (LaneState.MISSING, "0005", LaneState.AWAY),
        (LaneState.EXPECTED, "0006", LaneState.RUNNING),
    ],
)
def test_a_lane_goes_back_with_a_state_that_was_known_before(
    orders: Topic, now: datetime, state: LaneState, migration: str, before: LaneState
) -> None:
    lanes = Lane.objects.filter(topic=orders)
    lanes.update(state=state, seen_at=now)

    with schema_of("capture", migration):
        restored = lanes.values_list("state", flat=True).get()

    assert restored == before


@pytest.mark.django_db(transaction=True)
def test_counts_of_codes_go_where_they_are_not_known(now: datetime) -> None:
    for kind in ("account", "codes_of_account"):
        SignInFailures.objects.create(
            counted_by=kind, digest=kind.encode(), number=1, last_at=now
        )

    with schema_of("team", "0006"):
        kinds = list(SignInFailures.objects.values_list("counted_by", flat=True))

    assert kinds == ["account"]
