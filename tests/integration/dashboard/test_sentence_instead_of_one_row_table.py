"""Pages of operations say in a sentence what would be a table of one row."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.test import Client

from apps.brokers.models import Topic
from apps.triage.models import SkippedItem
from tests.failure_report_builders import drop, poisons
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_operation_preview_confirm_undo import ids, look
from tests.integration.dashboard.test_operations_list import decided, item, waiting
from tests.skip_builders_and_list_mirror import added, rule

pytestmark = pytest.mark.django_db(transaction=True)

OTHER = {"type": "Other", "message": "no such key", "traceback": ""}


def rows_of_tables(page: str) -> dict[str, int]:
    """Count the rows in the body of each table, by its caption."""
    return {
        words(table.partition("</caption>")[0].partition(">")[2]): table.partition(
            "<tbody>"
        )[2].count("<tr")
        for table in re.findall(r"<table.*?</table>", page, re.DOTALL)
    }


def test_a_preview_of_one_message_has_no_table(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1, exception=OTHER)

    _, page = look(anna, "redrive", ids=ids(poison))

    assert rows_of_tables(page) == {}
    facts = words(page.partition("Which messages")[2].replace("<", " <"))
    assert "Topic orders Consumer billing State open Age under an hour" in facts
    assert "● Open Other no such key , failed just now" in facts
    assert "For example" not in facts


def test_a_preview_has_tables_only_of_what_differs(anna: Client, now: datetime) -> None:
    both = [*poisons(now, 1), *poisons(now, 1, exception=OTHER, topic="elsewhere")]

    _, page = look(anna, "redrive", ids=ids(*both))

    assert rows_of_tables(page) == {"By topic": 2, "Samples": 2}
    assert "State open Age under an hour" in words(page.replace("<", " <"))


def test_one_reason_to_skip_is_a_sentence_and_several_are_a_table(
    anna: Client, now: datetime
) -> None:
    first, second, open_poison = poisons(now, 3)
    (given_away,) = poisons(now, 1)
    drop(now, first, second)

    _, one = look(anna, "redrive", ids=ids(first, second, open_poison))
    type(given_away).objects.filter(pk=given_away.pk).update(
        state="confirmed", sent_at=now, redrives=1
    )
    _, several = look(anna, "redrive", ids=ids(first, given_away, open_poison))

    assert "2 messages will be skipped: dropped: restore it first." in words(one)
    assert "Messages that will be skipped" not in rows_of_tables(one)
    assert rows_of_tables(several)["Messages that will be skipped"] == 2


def test_one_message_that_would_be_skipped_again_is_a_sentence(
    anna: Client, orders: Topic, now: datetime
) -> None:
    first, second = poisons(now, 2, headers=[("tenant", b"acme")])
    added(now, rule(header="tenant", equals="acme"), topic=orders)

    _, one = look(anna, "redrive", ids=ids(first))
    _, several = look(anna, "redrive", ids=ids(first, second))

    caption = "Messages that an active skip would swallow"
    assert f"Message {first.pk} would be skipped by" in words(one)
    assert caption not in rows_of_tables(one)
    assert rows_of_tables(several)[caption] == 2


def test_one_refused_or_skipped_message_is_a_sentence_on_the_page_of_its_operation(
    anna: Client, now: datetime
) -> None:
    refused, skipped = poisons(now, 2)
    operation = decided(now, total=2)
    item(operation, refused, "refused", now)

    one = get(anna, f"/operations/{operation.pk}")
    SkippedItem.objects.create(
        operation=operation, number=waiting(operation, skipped), reason="it was handled"
    )
    two = get(anna, f"/operations/{operation.pk}")

    caption = "Messages that were refused or skipped, and why"
    assert f"! Refused Message {refused.pk} :" in words(one.replace("<", " <"))
    assert caption not in rows_of_tables(one)
    assert rows_of_tables(two)[caption] == 2
