"""Which messages a skip would match: previews, and rules that a requeue meets."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest

from apps.brokers.models import Topic
from apps.poison import querysets, skip_matching
from apps.poison.models import Poison
from apps.poison.skip_matching import Matcher, RuleMatches, preview, rule_matches
from poisonguard.contract import MatcherKind
from tests.failure_report_builders import poisons
from tests.skip_builders_and_list_mirror import added, bookmark, rule, topic_named

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


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
