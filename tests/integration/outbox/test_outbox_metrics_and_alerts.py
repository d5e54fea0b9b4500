"""Metrics of outboxes, and which of their alerts they raise."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from apps.core import clock
from apps.outbox.models import Outbox, OutboxActivity, OutboxError
from apps.team.rights import Scope
from tests.in_memory_queue_broker import Queues
from tests.integration.api.schema_checking_client import program
from tests.integration.api.test_metrics import RULES, Samples, scrape
from tests.integration.outbox.outbox_builders import outbox_at

pytestmark = pytest.mark.django_db

RULE = re.compile(r"(?:(delta)\()?(outbox_\w+)(?:\[\w+\]\))? (>|>=|==) (\d+)")
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
OF_OUTBOXES = {
    rule["alert"]: rule for rule in RULES if rule["alert"].startswith("Outbox")
}


@pytest.fixture
def shop(broker: Queues) -> Outbox:
    return outbox_at("postgresql://sweeper:x@127.0.0.1/shop")


def note_activity(**changes: object) -> None:
    OutboxActivity.objects.update(
        **{"state": "sweeping", "noted_at": clock.now(), "counted_at": clock.now()}
        | changes
    )


def samples() -> Samples:
    return scrape(program(Scope.METRICS_READ))


def alerts(now: Samples, before: Samples | None = None) -> set[str]:
    """Name the alerts that these samples raise; `before` are earlier ones."""
    names = set()
    for name, rule in OF_OUTBOXES.items():
        match = RULE.fullmatch(rule["expr"])
        assert match, rule["expr"]
        delta, metric, comparison, limit = match.groups()
        for labels, value in now[metric].items():
            then = (before or now)[metric][labels] if delta else 0.0
            if COMPARISONS[comparison](value - then, float(limit)):
                names.add(name)
    return names


def test_what_the_sweeper_noted_is_measured(shop: Outbox) -> None:
    now = clock.now()
    note_activity(
        waiting=7,
        oldest_at=now - timedelta(seconds=90),
        quarantined=3,
        sent_count=11,
        flood_rows=2,
    )
    OutboxError.objects.create(
        outbox=shop, step="publish", kind="Away", count=4, first_at=now, last_at=now
    )

    answer = samples()

    shop_only = {
        name.removeprefix("outbox_"): values.get(("shop",))
        for name, values in answer.items()
        if name.startswith("outbox_")
    }
    assert shop_only.pop("oldest_seconds") == pytest.approx(90, abs=30)
    assert shop_only.pop("count_age_seconds") == pytest.approx(0, abs=30)
    assert shop_only == {
        "waiting": 7,
        "quarantined": 3,
        "sweeping": 1,
        "breaker_open": 0,
        "sweeper_up": 1,
        "flood_rows": 2,
        "sent_total": 11,
        "errors_total": None,
    }
    assert answer["outbox_errors_total"] == {("shop", "publish"): 4}


def test_an_outbox_that_is_well_raises_no_alert(shop: Outbox) -> None:
    note_activity(
        waiting=7,
        oldest_at=clock.now() - timedelta(seconds=590),
        quarantined=20,
        flood_rows=99,
    )

    assert alerts(samples()) == set()
    note_activity(state="slowed")
    assert alerts(samples()) == set()


@pytest.mark.parametrize(
    ("changes", "alert"),
    [
        ({"waiting": 1, "oldest_at": timedelta(seconds=-700)}, "OutboxIsLate"),
        ({"counted_at": timedelta(seconds=-700)}, "OutboxIsNotCounted"),
        ({"state": "broken"}, "OutboxBreakerIsOpen"),
        ({"noted_at": timedelta(seconds=-16)}, "OutboxSweeperIsSilent"),
        ({"noted_at": None}, "OutboxSweeperIsSilent"),
        ({"flood_rows": 100}, "OutboxIsFlooded"),
    ],
)
def test_what_is_wrong_raises_its_alert_and_no_other(
    shop: Outbox, changes: dict[str, object], alert: str
) -> None:
    now = clock.now()
    note_activity(
        **{
            name: now + value if isinstance(value, timedelta) else value
            for name, value in changes.items()
        }
    )

    assert alerts(samples()) == {alert}


def test_quarantined_rows_that_grow_raise_an_alert(shop: Outbox) -> None:
    note_activity(quarantined=1)
    before = samples()
    note_activity(quarantined=21)
    assert alerts(samples(), before) == set()
    note_activity(quarantined=22)
    assert alerts(samples(), before) == {"OutboxRowsAreQuarantined"}


def test_a_paused_outbox_has_a_sweeper_and_sends_nothing(shop: Outbox) -> None:
    Outbox.objects.update(is_paused=True)
    note_activity(noted_at=None)

    answer = samples()

    assert answer["outbox_sweeper_up"] == {("shop",): 1}
    assert answer["outbox_sweeping"] == {("shop",): 0}


def test_an_outbox_that_was_not_counted_yet_has_the_age_of_its_own(
    shop: Outbox,
) -> None:
    Outbox.objects.update(created_at=clock.now() - timedelta(seconds=700))
    note_activity(counted_at=None)

    answer = samples()

    assert answer["outbox_count_age_seconds"][("shop",)] == pytest.approx(700, abs=30)
    assert answer["outbox_waiting"] == answer["outbox_oldest_seconds"] == {}
    assert alerts(answer) == {"OutboxIsNotCounted"}


def test_every_alert_of_outboxes_is_raised_by_a_test() -> None:
    assert set(OF_OUTBOXES) == {
        "OutboxIsLate",
        "OutboxIsNotCounted",
        "OutboxBreakerIsOpen",
        "OutboxSweeperIsSilent",
        "OutboxRowsAreQuarantined",
        "OutboxIsFlooded",
    }
