"""The data of the skip pages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import (
    BigIntegerField,
    Count,
    Exists,
    F,
    OuterRef,
    Q,
    Subquery,
)
from django.db.models.functions import Coalesce

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.brokers.topic_querysets import TopicQuerySet
from apps.core.hashed_ids import unraw
from apps.core.statement_timeouts import TooSlow
from apps.core.text_cleaning import storable
from apps.core.wildcard_patterns import like
from apps.dashboard.keyset_pagination import (
    BoundedCount,
    ListCursor,
    ListPage,
    bounded_count,
    page,
)
from apps.poison import skip_addition_and_removal, skip_matching
from apps.poison.models import Poison, Skip, SkipList, WaitingSkip
from apps.poison.querysets import SkipQuerySet
from apps.poison.skip_matching import Matcher, RuleMatches
from apps.poison.states import Because
from apps.team.rights import Principal
from apps.triage.services import requeues_in_vain
from poisonguard.contract import MatcherKind
from poisonguard.skipping.content_match_rules import HeaderRule

MOST_SHOWN = 20
MOST_TOPICS = 200
MOST_SWALLOWED = 20
# Warn about a full skip list for this long.
WITHHELD_LATELY = timedelta(days=1)
_WHAT = {
    MatcherKind.BOOKMARK: "bookmark",
    MatcherKind.MESSAGE_ID: "message id",
    MatcherKind.BODY_DIGEST: "SHA-256 of the body",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MatcherLabel:
    """The parts of the sentence "header `x` is `1`" that says what a skip matches."""

    what: str
    where: str
    value: str

    @classmethod
    def of(cls, matcher: Matcher) -> MatcherLabel:
        """Describe a skip's matcher: what it looks at, where, and the value."""
        rule = matcher.rule
        if rule is None:
            value = storable(unraw(matcher.value))
            return cls(what=_WHAT[matcher.kind], where="", value=value)
        if isinstance(rule, HeaderRule):
            return cls(what="header", where=rule.header, value=storable(rule.equals))
        # As JSON, so that the text "42" does not look like the number.
        value = storable(json.dumps(rule.equals, ensure_ascii=False))
        return cls(what="body at", where=storable(rule.pointer) or "/", value=value)


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipRow:
    skip: Skip
    label: MatcherLabel
    state: str

    @classmethod
    def of(cls, skip: Skip, *, now: datetime) -> SkipRow:
        """Pair a skip with its label and state."""
        # A worker ends an expired skip a moment later; consumers ignore it already.
        is_over = skip.expires_at is not None and skip.expires_at <= now
        alive = "suspected" if skip.is_suspected else "active"
        state = skip.because or (Because.EXPIRED.value if is_over else alive)
        return cls(skip=skip, label=MatcherLabel.of(Matcher.of(skip)), state=state)


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipFilter:
    """A filter: skips of topics with this name or pattern, active or ended."""

    topic: str = ""
    ended: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipPage:
    rows: list[SkipRow]
    page: ListPage[Skip]
    total: BoundedCount | TooSlow
    topics: list[str]
    withheld: list[SkipList]


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipDetail:
    row: SkipRow
    entries: list[Entry]

    @property
    def skip(self) -> Skip:
        return self.row.skip


@dataclass(frozen=True, kw_only=True, slots=True)
class SwallowedMessage:
    poison: int
    row: SkipRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Swallowed:
    """The messages of a requeue that consumers pass over: active rules match them."""

    looked_at: int
    unread: int
    number: int
    messages: list[SwallowedMessage]

    @classmethod
    def of(cls, matches: RuleMatches, *, now: datetime) -> Swallowed:
        """Describe for a page which messages of a requeue active rules match."""
        first = list(matches.skips.items())[:MOST_SWALLOWED]
        return cls(
            looked_at=matches.looked_at,
            unread=matches.unread,
            number=matches.number,
            messages=[
                SwallowedMessage(poison=pk, row=SkipRow.of(skip, now=now))
                for pk, skip in first
            ],
        )

    @property
    def others(self) -> int:
        """Count the requeued messages that skips match again and the page omits."""
        return self.number - len(self.messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnansweredMatches:
    """The messages of an operation without an answer that active rules match.

    Each skip comes with the number of messages that it is the first to match.
    `first` is how many messages were to be looked at, where there may be more.
    """

    looked_at: int
    unread: int
    number: int
    skips: list[tuple[SkipRow, int]]
    first: int | None

    @classmethod
    def of(cls, matches: RuleMatches, *, now: datetime) -> UnansweredMatches:
        """Describe for a page which skips match messages without an answer."""
        chosen = matches.looked_at + matches.unread
        return cls(
            looked_at=matches.looked_at,
            unread=matches.unread,
            number=matches.number,
            skips=[
                (SkipRow.of(each.skip, now=now), each.number)
                for each in matches.most_frequent
            ],
            first=chosen if chosen >= requeues_in_vain.MOST_UNANSWERED else None,
        )


def find(
    filters: SkipFilter,
    cursor: ListCursor | None,
    principal: Principal,
    *,
    now: datetime,
) -> SkipPage:
    """List a page of active or ended skips, the newest first."""
    skips = _filtered(filters, principal)
    ended_or_not = (
        skips.exclude(removed_revision=None) if filters.ended else skips.active()
    )
    field = "removed_at" if filters.ended else "at"
    skip_page = page(ended_or_not.select_related("topic"), field=field, cursor=cursor)
    return SkipPage(
        rows=[SkipRow.of(skip, now=now) for skip in skip_page.rows],
        page=skip_page,
        total=bounded_count(ended_or_not),
        topics=topics(principal),
        withheld=withheld(Topic.objects.matching(principal.topics), now=now),
    )


def one(skip_id: int, principal: Principal, *, now: datetime) -> SkipDetail:
    """Load a skip for its page; raises Absent if this principal may not see it."""
    skip = skip_addition_and_removal.visible(skip_id=skip_id, principal=principal)
    entries = Entry.objects.filter(subject=f"skip:{skip_id}").order_by("-seq")
    return SkipDetail(row=SkipRow.of(skip, now=now), entries=list(entries[:MOST_SHOWN]))


def of_message(message: Poison, *, now: datetime) -> list[SkipRow]:
    """List the active skips, by rule or not, that match a message in its group."""
    theirs = Skip.objects.in_force(now).for_group(message.consumer_group)
    exact = [
        skip
        for matcher in _its_own(message)
        for skip in theirs.matched_like(
            topic=message.topic_id,
            kind=matcher.kind,
            digest=hashlib.sha256(matcher.value).digest(),
        ).select_related("topic")
    ]
    by_rule = skip_matching.rule_matches(
        last=lambda _: [message.pk],
        target_ids={message.topic_id: message.topic_id},
        now=now,
    ).skips.values()
    return [SkipRow.of(skip, now=now) for skip in [*exact, *by_rule]]


def topics(principal: Principal) -> list[str]:
    """List the names of visible topics to choose from, A to Z, up to a limit."""
    names = Topic.objects.matching(principal.topics).order_by("name")
    return list(names.values_list("name", flat=True)[:MOST_TOPICS])


def _filtered(filters: SkipFilter, principal: Principal) -> SkipQuerySet:
    """Return the visible skips of the topics that the filter names."""
    skips = Skip.objects.on_topics(principal.topics)
    if not filters.topic:
        return skips
    return skips.filter(
        topic__in=Topic.objects.filter(name__like=like(filters.topic)).values("pk")
    )


def withheld(of: TopicQuerySet, *, now: datetime) -> list[SkipList]:
    """Find skip lists that are, or recently were, too full for automatic skips.

    Each has `waiting`: how many messages wait for their skip.
    """
    waiting = (
        WaitingSkip.objects.filter(topic=OuterRef("topic"))
        .order_by()
        .values("topic")
        .annotate(number=Count("pk"))
        .values("number")
    )
    full = SkipList.objects.filter(topic__in=of).filter(
        Q(withheld_at__gt=now - WITHHELD_LATELY)
        | Exists(WaitingSkip.objects.filter(topic=OuterRef("topic")))
    )
    return list(
        full.annotate(
            waiting=Coalesce(Subquery(waiting, output_field=BigIntegerField()), 0),
            withheld_lately=Q(withheld_at__gt=now - WITHHELD_LATELY),
        )
        .select_related("topic")
        .order_by(F("withheld_at").desc(nulls_last=True), "topic")[:MOST_SHOWN]
    )


def _its_own(message: Poison) -> list[Matcher]:
    """Make the skip matchers of a message: its bookmark, body digest, message id.

    A message without an id gives no matcher by message id.
    """
    kinds = [MatcherKind.BOOKMARK, MatcherKind.BODY_DIGEST]
    if message.message_id is not None:
        kinds.append(MatcherKind.MESSAGE_ID)
    return [Matcher.from_poison(message, kind) for kind in kinds]
