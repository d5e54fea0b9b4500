"""Skips on the page of a message, and in the preview of a requeue."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.test import Client

from apps.poison.models import Poison
from apps.triage.models import Operation
from tests.failure_report_builders import capture, failure
from tests.integration.dashboard.pages import get
from tests.integration.dashboard.skips_and_their_form import of_tenant, skip
from tests.skip_builders_and_list_mirror import bookmark, rule

pytestmark = pytest.mark.django_db


def test_a_skip_is_removed_from_the_page_of_its_message(
    anna: Client, now: datetime
) -> None:
    (poison,) = of_tenant(now, "acme")
    exact = bookmark(poison.bookmark_text)
    own = skip(now, exact, consumer_group="billing")
    by_rule = skip(now, rule(header="tenant", equals="acme"))
    skip(now, exact, consumer_group="audit")
    skip(now, rule(header="tenant", equals="zeta"))
    here = f"/messages/{poison.pk}"

    before = get(anna, here)
    form = {"reason": "try again", "back": here}
    done = anna.post(f"/skips/{own.pk}/remove", form)
    after = get(anna, here)

    assert "2 active skips" in before
    assert [f"/skips/{each.pk}/remove" in before for each in (own, by_rule)] == [
        True,
        True,
    ]
    assert done["Location"] == here
    assert "1 active skip<" in after
    assert f"/skips/{own.pk}/remove" not in after


def test_a_suspected_message_says_so(anna: Client, now: datetime) -> None:
    capture(now, failure(now, suspected=True))
    poison = Poison.objects.get()

    pages = [get(anna, path) for path in ("/messages", f"/messages/{poison.pk}")]

    assert [">suspected</span>" in page for page in pages] == [True, True]
    assert "may itself be the problem" in pages[1]


@pytest.mark.django_db(transaction=True)
def test_a_preview_of_a_requeue_names_what_a_rule_would_swallow(
    anna: Client, now: datetime
) -> None:
    first, second = of_tenant(now, "acme", 2)
    (other,) = of_tenant(now, "zeta")
    exact = bookmark(other.bookmark_text)
    skip(now, exact)
    by_rule = skip(now, rule(header="tenant", equals="acme"))

    pages = {
        verb: preview(anna, verb, first, second, other) for verb in ("redrive", "drop")
    }

    assert "2 messages would be skipped again" in pages["redrive"]
    assert f'href="/skips/{by_rule.pk}"' in pages["redrive"]
    swallowed = pages["redrive"].partition('id="swallowed"')[2].partition("<form")[0]
    links = {int(n) for n in re.findall(r'href="/messages/(\d+)"', swallowed)}
    assert links == {first.pk, second.pk}
    assert "would be skipped again" not in pages["drop"]


@pytest.mark.django_db(transaction=True)
def test_a_requeue_that_nothing_swallows_says_nothing_of_skips(
    anna: Client, now: datetime
) -> None:
    (poison,) = of_tenant(now, "acme")
    rules = rule(header="tenant", equals="acme")
    skip(now, rules, topic="payments")
    skip(now, rules, consumer_group="audit")

    assert "would be skipped" not in preview(anna, "redrive", poison)


def preview(client: Client, verb: str, *chosen: Poison) -> str:
    ids = [poison.pk for poison in chosen]
    response = client.post("/operations/preview", {"verb": verb, "ids": ids})
    assert Operation.objects.exists()
    return get(client, response["Location"])
