"""Rules of a header: the letters of its name may be small or capital."""

from __future__ import annotations

from datetime import datetime

import pytest

from apps.audit.models import Entry
from apps.poison import skip_addition_and_removal
from apps.poison.models import Skip
from apps.poison.skip_matching import Matcher
from tests.skip_builders_and_list_mirror import (
    ANNA,
    Mirror,
    added,
    added_with_capitals,
    rule,
)

pytestmark = pytest.mark.django_db


def test_a_rule_for_the_same_header_in_another_case_renews_the_skip(
    now: datetime,
) -> None:
    first = added(now, rule(header="Tenant", equals="Acme"))

    second = added(now, rule(header="tenant", equals="Acme"))
    other = added(now, rule(header="tenant", equals="acme"))

    assert second.pk == first.pk != other.pk
    assert Matcher.of(second).wire_value == {"header": "tenant", "equals": "Acme"}


def differing_in_capitals(now: datetime) -> list[Skip]:
    """Add a skip of one header in two spellings, and two that are of other messages."""
    rows = [
        added_with_capitals(now, name, reason="old") for name in ("Tenant", "TENANT")
    ]
    rows += [added_with_capitals(now, "Tenant", consumer_group="billing")]
    return [*rows, added_with_capitals(now, "Tenant", handler_version="2")]


def test_to_renew_a_skip_of_a_header_ends_its_other_spellings(now: datetime) -> None:
    first, other, *unlike = differing_in_capitals(now)
    reader = Mirror()

    renewed = added(now, rule(header="tenant", equals="acme"), reason="new")

    other.refresh_from_db()
    reason = f"replaced by skip {first.pk}: header names are now stored in lower case"
    assert (renewed.pk, renewed.reason) == (first.pk, "new")
    assert bytes(renewed.value) == b'{"equals":"acme","header":"tenant"}'
    assert (other.is_active, other.removed_by) == (False, "user:anna")
    assert (other.because, other.removed_reason) == ("removed", reason)
    reader.catch_up()
    assert reader.ids == {renewed.pk, *(skip.pk for skip in unlike)}
    audited = Entry.objects.order_by("seq").values_list("action", "subject", "reason")
    assert list(audited)[-2:] == [
        ("skip.removed", f"skip:{other.pk}", reason),
        ("skip.renewed", f"skip:{first.pk}", "new"),
    ]


def test_to_remove_a_skip_of_a_header_ends_its_other_spellings(now: datetime) -> None:
    first, other, *unlike = differing_in_capitals(now)
    reader = Mirror()

    for _ in range(2):
        skip_addition_and_removal.remove(
            skip_id=other.pk, reason="mended", principal=ANNA, now=now
        )

    reader.catch_up()
    assert reader.ids == {skip.pk for skip in unlike}
    ended = Entry.objects.filter(action="skip.removed").order_by("seq")
    assert [(entry.subject, entry.reason) for entry in ended] == [
        (f"skip:{first.pk}", "mended"),
        (f"skip:{other.pk}", "mended"),
    ]


def test_an_ended_skip_of_a_header_leaves_an_active_spelling_alone(
    now: datetime,
) -> None:
    ended = added_with_capitals(now, "Tenant")
    Skip.objects.filter(pk=ended.pk).update(
        removed_revision=2, removed_at=now, because="expired"
    )
    active = added(now, rule(header="tenant", equals="acme"))

    skip_addition_and_removal.remove(
        skip_id=ended.pk, reason="", principal=ANNA, now=now
    )

    active.refresh_from_db()
    assert active.is_active
