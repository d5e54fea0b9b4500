"""Skips that people add, renew and remove, and the audit trail of it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.audit.models import Entry
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.poison import skip_addition_and_removal, skip_list_for_consumers
from apps.poison.models import Skip
from apps.poison.skip_matching import Matcher
from apps.team.rights import Principal, Scope
from poisonguard.contract import MatcherKind
from tests.failure_report_builders import capture, failure, poisons
from tests.skip_builders_and_list_mirror import (
    ANNA,
    added,
    principal_of,
    rule,
    topic_named,
    values,
)

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
ONE = {"equals": 1}


def test_the_same_matcher_for_another_group_or_version_is_another_skip(
    now: datetime,
) -> None:
    same = [added(now, "1-0"), added(now, "1-0")]
    others = [
        added(now, "1-0", consumer_group="billing"),
        added(now, "1-0", handler_version="2"),
        added(now, Matcher.parse({"kind": "message_id", "value": "1-0"})),
    ]

    assert len({skip.pk for skip in same}) == 1
    assert len({skip.pk for skip in (*same, *others)}) == 4


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (13, "matcher"),
        ({}, "matcher/kind"),
        ({"kind": ["rule"]}, "matcher/kind"),
        ({"kind": "offset", "value": "1"}, "matcher/kind"),
        ({"kind": "bookmark"}, "matcher/value"),
        ({"kind": "bookmark", "value": ""}, "matcher/value"),
        ({"kind": "message_id", "value": "x" * 131_073}, "matcher/value"),
        ({"kind": "body_digest", "value": "ab"}, "matcher/value"),
        ({"kind": "body_digest", "value": "zz" * 32}, "matcher/value"),
        ({"kind": "rule", "value": "x"}, "matcher/value"),
        ({"kind": "rule", "value": {}}, "matcher/value"),
        ({"kind": "rule", "value": {**ONE, "pointer": "a"}}, "matcher/value/pointer"),
        ({"kind": "rule", "value": {**ONE, "header": "a"}}, "matcher/value/equals"),
    ],
)  # fmt: skip
def test_an_invalid_matcher_names_its_field(data: object, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        Matcher.parse(data)

    assert caught.value.field == field
    assert caught.value.remedy


def test_what_cannot_be_added_is_refused_and_changes_nothing(now: datetime) -> None:
    (other,) = poisons(now, 1, topic="payments")

    with pytest.raises(Invalid, match="expires_at"):
        added(now, expires_at=now)
    with pytest.raises(Invalid, match="reason"):
        added(now, reason="x" * 2_001)
    with pytest.raises(Invalid, match="poison"):
        added(now, poison_id=other.pk)
    with pytest.raises(Forbidden, match="give it the topic"):
        added(now, principal=principal_of("payments"))
    with pytest.raises(Forbidden):
        added(now, principal=Principal(actor=ANNA.actor, scopes=frozenset()))
    assert Skip.objects.count() == 0
    assert skip_list_for_consumers.list_head(topic="orders").revision == 0


def test_adding_and_removing_are_audited_once_each(now: datetime) -> None:
    skip = added(now, "1-0", reason="it kills the parser")
    for _ in range(2):
        skip_addition_and_removal.remove(
            skip_id=skip.pk, reason="fixed", principal=ANNA, now=now
        )

    entries = Entry.objects.order_by("seq")
    assert [(e.action, e.subject, e.reason) for e in entries] == [
        ("skip.added", f"skip:{skip.pk}", "it kills the parser"),
        ("skip.removed", f"skip:{skip.pk}", "fixed"),
    ]
    skip.refresh_from_db()
    assert (skip.removed_by, skip.removed_reason) == ("user:anna", "fixed")


def test_a_renewal_is_audited_with_the_values_before_and_after(now: datetime) -> None:
    first = added(now, "1-0", reason="it kills", expires_at=now + DAY)
    olga = Principal(actor=Actor.user("olga"), scopes=frozenset(Scope))
    later = now + timedelta(hours=1)

    added(later, "1-0", reason="mended tomorrow", principal=olga)

    entries = list(Entry.objects.order_by("seq"))
    subject = f"skip:{first.pk}"
    assert [(e.action, e.subject, e.reason) for e in entries] == [
        ("skip.added", subject, "it kills"),
        ("skip.renewed", subject, "mended tomorrow"),
    ]
    same = {"handler_version": None, "poison": None, "automatic": False}
    assert entries[1].detail["before"] == {
        "by": "user:anna",
        "at": now.isoformat(),
        "expires_at": (now + DAY).isoformat(),
        "reason": "it kills",
        **same,
    }
    assert entries[1].detail["after"] == {
        "by": "user:olga",
        "at": later.isoformat(),
        "expires_at": None,
        "reason": "mended tomorrow",
        **same,
    }
    assert entries[1].detail["value"] == "1-0"


def test_the_automatic_skip_that_one_for_all_versions_replaces_is_renewed(
    now: datetime,
) -> None:
    topic_named(replays=True)
    capture(now, failure(now, handler_version="1", bookmark="1-0"))
    automatic = Skip.objects.get()

    skip = added(now, "1-0", consumer_group="billing")

    entry = Entry.objects.get(action="skip.renewed")
    before, after = entry.detail["before"], entry.detail["after"]
    assert skip.pk == automatic.pk
    assert (before["by"], before["automatic"], before["handler_version"]) == (
        "system:capture",
        True,
        "1",
    )
    assert (after["automatic"], after["handler_version"]) == (False, None)


def test_a_skip_after_an_ended_one_is_added_and_renews_nothing(now: datetime) -> None:
    ended = added(now, "1-0")
    skip_addition_and_removal.remove(
        skip_id=ended.pk, reason="", principal=ANNA, now=now
    )

    assert added(now, "1-0").pk != ended.pk
    assert not Entry.objects.filter(action="skip.renewed").exists()


def test_rules_of_unequal_scalars_are_not_one_skip(now: datetime) -> None:
    skips = {
        added(now, rule(pointer="/n", equals=value)).pk for value in (1, True, 1.0)
    }

    assert len(skips) == 3


def test_a_principal_cannot_remove_a_skip_that_it_cannot_see(now: datetime) -> None:
    skip = added(now)

    with pytest.raises(Absent):
        skip_addition_and_removal.remove(
            skip_id=skip.pk, reason="", principal=principal_of("payments"), now=now
        )

    assert values() == ["7-0"]


def test_a_message_without_an_id_of_its_own_cannot_be_skipped_by_it(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1)

    with pytest.raises(Refused, match="message_id"):
        Matcher.from_poison(poison, MatcherKind.MESSAGE_ID)


def test_a_rule_that_matches_every_recent_message_needs_everything(
    now: datetime,
) -> None:
    poisons(now, 200, body=b'{"v": 1, "n": 2}')
    match = rule(pointer="/v", equals=1)

    with pytest.raises(Invalid, match="each of the last 200") as caught:
        added(now, match)

    assert caught.value.field == "matcher/value"
    assert added(now, match, everything=True).is_active
    poisons(now, 1, body=b'{"v": 3}')
    assert added(now, rule(pointer="/n", equals=2)).is_active
