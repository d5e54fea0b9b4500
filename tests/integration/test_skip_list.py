"""The skip list: changes by people, and what readers get."""

from __future__ import annotations

import random
import uuid
from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.poison import (
    querysets,
    skip_addition_and_removal,
    skip_counts,
    skip_expiry_and_pruning,
    skip_list_for_consumers,
    skip_matching,
)
from apps.poison.models import Poison, Skip, SkipCount, SkipList
from apps.poison.skip_matching import Matcher, RuleMatches, preview, rule_matches
from apps.team.rights import Principal, Scope
from poisonguard.contract import AppliedSkip, MatcherKind
from tests.failure_report_builders import capture, failure, poisons
from tests.skip_builders_and_list_mirror import (
    ANNA,
    Mirror,
    added,
    added_with_capitals,
    bookmark,
    changes_after,
    rule,
    topic_named,
    values,
)

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
ONE = {"equals": 1}


def someone(*topics: str) -> Principal:
    return Principal(actor=ANNA.actor, scopes=ANNA.scopes, topics=topics)


def test_each_change_takes_the_next_revision_of_its_topic(now: datetime) -> None:
    first, second = added(now, "1-0"), added(now, "2-0")
    other = added(now, "1-0", topic=topic_named("payments"))
    removed = skip_addition_and_removal.remove(
        skip_id=first.pk, reason="", principal=ANNA, now=now
    )

    assert [first.revision, second.revision, other.revision] == [1, 2, 1]
    assert removed.removed_revision == 3
    assert skip_list_for_consumers.list_head(topic="orders").revision == 3


def test_a_reader_gets_the_changes_after_its_snapshot(now: datetime) -> None:
    removed, stays = added(now, "1-0"), added(now, "2-0")
    reader = Mirror()

    skip_addition_and_removal.remove(
        skip_id=removed.pk, reason="", principal=ANNA, now=now
    )
    new = added(now, "3-0")
    reader.follow()

    assert reader.ids == {stays.pk, new.pk}
    assert reader.follow() == 0


def test_a_changed_skip_is_listed_once_as_it_is_now(now: datetime) -> None:
    skip = added(now, "1-0", reason="at first")
    added(now, "1-0", reason="and again", expires_at=now + DAY)
    before_it_was_there = changes_after(0)
    skip_addition_and_removal.remove(
        skip_id=skip.pk, reason="", principal=ANNA, now=now
    )
    after_its_end = changes_after(0)

    assert [(t.revision, t.reason, t.because) for t in before_it_was_there] == [
        (2, "and again", "")
    ]
    assert [(t.id, t.revision, t.because) for t in after_its_end] == [
        (skip.pk, 3, "removed")
    ]


def test_an_unknown_topic_has_an_empty_list_and_is_not_created() -> None:
    snapshot = skip_list_for_consumers.snapshot(
        topic="/never heard of", consumer_group=None
    )

    assert (snapshot.revision, snapshot.skips, len(snapshot.epoch)) == (0, (), 16)
    assert SkipList.objects.count() == 0


def test_a_group_gets_its_own_skips_and_those_for_all_groups(now: datetime) -> None:
    added(now, "mine", consumer_group="billing")
    added(now, "theirs", consumer_group="shipping")
    added(now, "all", consumer_group=None)

    assert values(group="billing") == ["mine", "all"]
    assert values(group=None) == ["mine", "theirs", "all"]


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


def test_any_character_and_any_length_of_a_bookmark_comes_back_as_it_was(
    now: datetime,
) -> None:
    texts = ["a\0b", "\ud800", "b" * 100_000, "/sample/bookmark Store%"]

    for text in texts:
        added(now, text)

    skips = skip_list_for_consumers.snapshot(topic="orders", consumer_group=None).skips
    assert [skip.matcher.wire_value for skip in skips] == texts


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
        added(now, principal=someone("payments"))
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


def test_rules_of_unequal_scalars_are_not_one_skip(now: datetime) -> None:
    skips = {
        added(now, rule(pointer="/n", equals=value)).pk for value in (1, True, 1.0)
    }

    assert len(skips) == 3


def test_a_principal_cannot_remove_a_skip_that_it_cannot_see(now: datetime) -> None:
    skip = added(now)

    with pytest.raises(Absent):
        skip_addition_and_removal.remove(
            skip_id=skip.pk, reason="", principal=someone("payments"), now=now
        )

    assert values() == ["7-0"]


def test_a_message_without_an_id_of_its_own_cannot_be_skipped_by_it(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1)

    with pytest.raises(Refused, match="message_id"):
        Matcher.from_poison(poison, MatcherKind.MESSAGE_ID)


def test_expiry_is_a_revision_with_its_reason(now: datetime) -> None:
    skips = [added(now, f"{n}-0", expires_at=now + DAY) for n in range(3)]
    added(now, "for good")
    reader = Mirror()

    early = skip_expiry_and_pruning.expire(now=now + DAY - timedelta(seconds=1))
    ended = skip_expiry_and_pruning.expire(now=now + DAY)
    changes = changes_after(reader.revision)

    assert (early, ended, skip_expiry_and_pruning.expire(now=now + DAY)) == (0, 3, 0)
    assert [(t.id, t.revision, t.because) for t in changes] == [
        (skip.pk, 5 + place, "expired") for place, skip in enumerate(skips)
    ]
    assert values() == ["for good"]


def test_pruning_raises_the_floor_and_keeps_skips_of_people(
    now: datetime,
) -> None:
    topic = topic_named(replays=True)
    poisons(now, 2)
    mine = added(now, "by hand")
    skip_addition_and_removal.remove(
        skip_id=mine.pk, reason="", principal=ANNA, now=now
    )
    month = timedelta(days=31)
    skip_expiry_and_pruning.expire(now=now + month)

    early = skip_expiry_and_pruning.prune(now=now + month)
    pruned = skip_expiry_and_pruning.prune(now=now + 2 * month)

    assert (early, pruned) == (0, 2)
    assert SkipList.objects.get(topic=topic).floor == 6
    assert list(Skip.objects.values_list("pk", flat=True)) == [mine.pk]


def test_applied_skips_are_added_up_and_a_report_counts_once(
    now: datetime,
) -> None:
    skip, other = added(now, "1-0"), added(now, "2-0", topic=topic_named("payments"))

    def report(skip: int, count: int, report: uuid.UUID | None = None) -> AppliedSkip:
        return AppliedSkip(
            skip=skip,
            consumer_group="billing",
            client_name="billing-1",
            count=count,
            last_at=now + DAY,
            report=report,
        )

    once = report(skip.pk, 2, uuid.uuid4())
    reports = [once, once, report(skip.pk, 3), report(skip.pk, 0)]
    reports += [report(other.pk, 5), report(10**12, 1)]
    answers = skip_counts.count_applied(
        reports=reports, principal=someone("orders"), now=now
    )
    again = skip_counts.count_applied(
        reports=reports[:1], principal=someone("orders"), now=now
    )

    skip.refresh_from_db()
    other.refresh_from_db()
    assert answers == [True, True, True, True, False, False]
    assert again == [True]
    assert (skip.applied, skip.last_applied_at, other.applied) == (5, now, 0)
    assert SkipCount.objects.count() == 1


def test_a_preview_counts_what_would_have_matched(now: datetime) -> None:
    bad = poisons(now, 2, body=b'{"type": "bad", "n": 1.0}')
    poisons(now, 3, body=b'{"type": "good", "n": 2}', headers=[("Kind", b"Y")])
    poisons(now, 1, body=b"\xff no JSON", consumer_group="shipping")
    topic = topic_named()

    def counts(matcher: Matcher, group: str | None = None) -> tuple[int, int]:
        result = preview(topic=topic, consumer_group=group, matcher=matcher)
        return result.matched, result.of

    assert counts(rule(pointer="/type", equals="bad")) == (2, 6)
    assert counts(rule(pointer="/n", equals=1)) == (2, 6)
    assert counts(rule(header="kind", equals="Y"), "billing") == (3, 5)
    assert counts(Matcher.from_poison(bad[0], MatcherKind.BODY_DIGEST)) == (2, 6)
    assert counts(Matcher.from_poison(bad[0], MatcherKind.BOOKMARK)) == (1, 6)
    assert counts(bookmark("nowhere"), "shipping") == (0, 1)
    result = preview(
        topic=topic, consumer_group=None, matcher=rule(pointer="/n", equals=1), limit=4
    )
    assert (result.matched, result.of) == (0, 4)


def test_a_preview_samples_the_newest_and_leaves_large_bodies_alone(
    now: datetime,
) -> None:
    match = rule(pointer="/n", equals=1)
    messages = poisons(now, 25, body=b'{"n": 1}')
    poisons(now, 1, body=b'{"n": 1}' + b" " * 2**20)

    result = preview(topic=topic_named(), consumer_group=None, matcher=match)

    assert (result.matched, result.of, result.unread) == (25, 25, 1)
    assert result.sample == tuple(sorted((p.pk for p in messages), reverse=True))[:20]


def test_a_preview_reads_no_more_than_a_few_megabytes_of_bodies(now: datetime) -> None:
    match = rule(pointer="/n", equals=1)
    poisons(now, 6, body=b'{"n": 1}' + b" " * (skip_matching.MOST_OF_A_BODY - 8))

    result = preview(topic=topic_named(), consumer_group=None, matcher=match)

    most = skip_matching.MOST_OF_ALL // skip_matching.MOST_OF_A_BODY
    assert (result.matched, result.of, result.unread) == (most, most, 6 - most)


def test_a_preview_leaves_out_messages_with_unusually_large_headers(
    now: datetime,
) -> None:
    match = rule(header="kind", equals="Y")
    noise = [("noise", random.randbytes(querysets.LARGEST_HEADERS))]
    poisons(now, 1, headers=[("Kind", b"Y"), *noise])
    poisons(now, 1, headers=[("Kind", b"Y")])

    result = preview(topic=topic_named(), consumer_group=None, matcher=match)

    assert (result.matched, result.of, result.unread) == (1, 1, 1)


def test_a_preview_says_how_many_messages_it_had_no_time_for(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(now, 3, body=b'{"n": 1}')
    monkeypatch.setattr(skip_matching, "LONGEST_SECONDS", 0.0)

    result = preview(
        topic=topic_named(), consumer_group=None, matcher=rule(pointer="/n", equals=1)
    )

    assert (result.matched, result.of, result.unread) == (0, 0, 3)


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


def requeued(now: datetime, *, target: Topic | None = None) -> RuleMatches:
    """Match all messages, as if they were requeued to their topic or this one."""
    origin = topic_named("orders")
    ids = Poison.objects.values_list("pk", flat=True)
    return rule_matches(
        last=lambda most: list(ids[:most]),
        target_ids={origin.pk: (target or origin).pk},
        now=now,
    )


def test_a_requeue_meets_only_rules_of_its_topic_and_group(now: datetime) -> None:
    bad, good = poisons(now, 1, body=b'{"n": 1}') + poisons(now, 1, body=b'{"n": 2}')
    added(now, Matcher.from_poison(bad, MatcherKind.BOOKMARK))
    nothing = requeued(now)
    added(now, rule(pointer="/n", equals=1), consumer_group="shipping")
    theirs = requeued(now)
    skip = added(now, rule(pointer="/n", equals=1), expires_at=now + DAY)
    elsewhere = added(
        now, rule(pointer="/n", equals=2), topic=topic_named("orders.retry")
    )

    mine = requeued(now)
    moved = requeued(now, target=elsewhere.topic)
    later = requeued(now + DAY)

    assert (nothing.skips, theirs.skips, later.skips) == ({}, {}, {})
    assert (mine.skips, mine.looked_at) == ({bad.pk: skip}, 2)
    assert moved.skips == {good.pk: elsewhere}


def test_history_keeps_what_has_ended_newest_first(now: datetime) -> None:
    first, second = added(now, "1-0"), added(now, "2-0")
    skip_addition_and_removal.remove(
        skip_id=second.pk, reason="", principal=ANNA, now=now
    )

    rows = list(Skip.objects.filter(topic=topic_named()).recent_first())

    assert rows == [second, first]
    assert [row.is_active for row in rows] == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "offset"},
        {"removed_revision": 9},
        {"because": "removed"},
        {"removed_revision": 1, "because": "removed"},
        {"is_automatic": True},
        {"applied": 1},
    ],
)
def test_an_impossible_skip_is_refused_by_the_database(
    now: datetime, change: dict[str, object]
) -> None:
    skip = added(now)

    with pytest.raises(IntegrityError), transaction.atomic():
        Skip.objects.filter(pk=skip.pk).update(**change)
