"""Add skips for people, renew and remove them: each change with its audit entry.

Consumers read the list through `skip_list_for_consumers`; `skip_counts` counts what
they skipped. `skip_list_revisions` gives each change its revision.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.brokers.models import Topic
from apps.core import notify_channel
from apps.core.errors import Absent, Forbidden, Invalid
from apps.poison import skip_list_revisions
from apps.poison.models import Poison, Skip, SkipList
from apps.poison.querysets import SkipQuerySet
from apps.poison.skip_matching import Matcher, preview
from apps.poison.states import Because
from apps.team.rights import Principal, Scope
from poisonguard.contract import MatcherKind

log = logging.getLogger(__name__)

DISPLAY_STATES = 300
# A rule that matches all of this many messages is probably a mistake.
OVERBROAD_AFTER = 200


class SkipAddition(NamedTuple):
    """A skip that was added, with the terms of the active one that it renews, if any.

    Both have the same id: a renewed skip has the new values, and none of the earlier.
    """

    skip: Skip
    renews: SkipTerms | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipTerms:
    """The values of a skip that a renewal replaces."""

    by: str
    at: datetime
    expires_at: datetime | None
    reason: str
    handler_version: str | None
    poison: int | None
    is_automatic: bool

    @classmethod
    def of(cls, skip: Skip) -> SkipTerms:
        """Return the present terms of a skip."""
        return cls(
            by=skip.by,
            at=skip.at,
            expires_at=skip.expires_at,
            reason=skip.reason,
            handler_version=skip.handler_version,
            poison=skip.poison_id,
            is_automatic=skip.is_automatic,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a skip's terms as the audit trail stores them."""
        return {
            "by": self.by,
            "at": self.at.isoformat(),
            "expires_at": self.expires_at and self.expires_at.isoformat(),
            "reason": self.reason,
            "handler_version": self.handler_version,
            "poison": self.poison,
            "automatic": self.is_automatic,
        }


def add(
    *,
    topic: Topic,
    consumer_group: str | None,
    matcher: Matcher,
    principal: Principal,
    now: datetime,
    handler_version: str | None = None,
    expires_at: datetime | None = None,
    reason: str = "",
    poison_id: int | None = None,
    everything: bool = False,
) -> SkipAddition:
    """Add a skip, or renew the active one with the same matcher.

    Returns the skip, and what a renewed one was before. A skip for all handler versions
    replaces an automatic one for a single version. A rule that matches every recent
    message is refused unless `everything` is true.
    """
    principal.require(Scope.SKIPS_WRITE)
    require_topic_right(topic=topic.name, principal=principal)
    _refuse_overbroad(topic, consumer_group, matcher, everything=everything)
    if expires_at is not None and expires_at <= now:
        raise Invalid("expires_at", "send a time to come")
    if poison_id is not None:
        _require_poison(poison_id, topic)
    facts = {
        "reason": clean_reason(reason),
        "by": str(principal.actor),
        "at": now,
        "expires_at": expires_at,
        "poison_id": poison_id,
        "redrive": None,
        "is_automatic": False,
        "is_suspected": False,
        "firm_at": None,
    }
    with transaction.atomic():
        facts["revision"] = skip_list_revisions.next_revision(topic.pk)
        existing = find_renewed(
            topic=topic,
            consumer_group=consumer_group,
            matcher=matcher,
            handler_version=handler_version,
        )
        renews = None if existing is None else SkipTerms.of(existing)
        if existing is None:
            skip = Skip.objects.create(
                topic=topic,
                consumer_group=consumer_group,
                kind=matcher.kind.value,
                value=matcher.value,
                handler_version=handler_version,
                **facts,
            )
        else:
            skip = existing
            facts |= {"handler_version": handler_version, "value": matcher.value}
            _end_other_spellings(skip, principal, now=now)
            _update_skip(skip, facts)
        skip = visible(skip_id=skip.pk, principal=principal)
        notify_channel.notify_skips(topic_id=topic.pk)
        _audit_addition(skip, renews, principal, now=now)
    verb = "added" if renews is None else "renewed"
    log.info("%s %s the skip %s of %s", principal.actor, verb, skip, topic)
    return SkipAddition(skip, renews)


def remove(*, skip_id: int, reason: str, principal: Principal, now: datetime) -> Skip:
    """End a skip; leave one that has ended already as it is.

    One of the same header, stored with other capitals, ends with it.
    """
    principal.require(Scope.SKIPS_WRITE)
    skip = visible(skip_id=skip_id, principal=principal)
    _remove(skip, reason=clean_reason(reason), principal=principal, now=now)
    return visible(skip_id=skip_id, principal=principal)


@transaction.atomic
def _remove(skip: Skip, *, reason: str, principal: Principal, now: datetime) -> None:
    """End a skip and audit that; leave one that has ended as it is."""
    skip_list_revisions.lock_lists([skip.topic_id])
    equal_skips = _spellings_of(skip)
    if skip in equal_skips:
        _end_by_hand(equal_skips, reason=reason, principal=principal, now=now)


def _end_other_spellings(skip: Skip, principal: Principal, *, now: datetime) -> None:
    """End the active skips of the same header as one that is renewed."""
    others = [other for other in _spellings_of(skip) if other != skip]
    reason = f"replaced by skip {skip.pk}: header names are now stored in lower case"
    if others:
        _end_by_hand(others, reason=reason, principal=principal, now=now)


def _end_by_hand(
    skips: Sequence[Skip], *, reason: str, principal: Principal, now: datetime
) -> None:
    """End skips of one topic, whose list is locked, and audit each."""
    skip_list_revisions.end(
        topic_id=skips[0].topic_id,
        skips=[skip.pk for skip in skips],
        because=Because.REMOVED,
        actor=principal.actor,
        reason=reason,
        now=now,
    )
    for skip in skips:
        _audit_skip(Action.SKIP_REMOVED, skip, principal, reason=reason, now=now)
        log.info("%s removed the skip %s of %s", principal.actor, skip, skip.topic)


def _spellings_of(skip: Skip) -> list[Skip]:
    """List a skip, if it is active, and those that differ in a header's capitals."""
    matching = _active_skips_of(
        skip.topic, consumer_group=skip.consumer_group, matcher=Matcher.of(skip)
    )
    same_version = matching.filter(handler_version=skip.handler_version)
    return list(same_version.select_related("topic").order_by("pk"))


def _active_skips_of(
    topic: Topic, *, consumer_group: str | None, matcher: Matcher
) -> SkipQuerySet:
    """Return the active skips with this matcher, of all handler versions.

    The releases before stored the name of a header as it was written.
    """
    active = Skip.objects.active().filter(
        topic=topic, kind=matcher.kind.value, consumer_group=consumer_group
    )
    if matcher.kind is MatcherKind.RULE:
        equal_ids = [skip.pk for skip in active if Matcher.of(skip) == matcher]
        return active.filter(pk__in=equal_ids)
    return active.filter(digest=hashlib.sha256(matcher.value).digest())


def require_topic_right(*, topic: str, principal: Principal) -> None:
    """Raise Forbidden unless this principal may see the topic, even an unknown one."""
    if not principal.sees(topic):
        raise Forbidden(f"This key may not use the topic {topic}; give it the topic.")


def visible(*, skip_id: int, principal: Principal) -> Skip:
    """Return a skip on a topic that this principal may see; raise Absent otherwise."""
    allowed = Skip.objects.on_topics(principal.topics).select_related("topic")
    skip = allowed.filter(pk=skip_id).first()
    if skip is None:
        raise Absent(f"There is no skip {skip_id} here.")
    return skip


def find_renewed(
    *,
    topic: Topic,
    consumer_group: str | None,
    matcher: Matcher,
    handler_version: str | None,
) -> Skip | None:
    """Find the active skip that a new one would renew or widen, or None."""
    candidates = _active_skips_of(topic, consumer_group=consumer_group, matcher=matcher)
    same = candidates.filter(handler_version=handler_version).first()
    if same is None and handler_version is None:
        same = candidates.filter(is_automatic=True).order_by("-revision").first()
    return same


def _update_skip(skip: Skip, facts: dict[str, Any]) -> None:
    """Overwrite the row of an existing skip with the values of a renewed one."""
    if skip.is_automatic:
        lists = SkipList.objects.filter(topic=skip.topic_id)
        lists.update(automatic=F("automatic") - 1)
    Skip.objects.filter(pk=skip.pk).update(**facts)


def _require_poison(poison_id: int, topic: Topic) -> None:
    """Raise Invalid unless the topic has this message."""
    if not Poison.objects.filter(pk=poison_id, topic=topic).exists():
        raise Invalid("poison", f"{topic} has no message {poison_id}")


def _refuse_overbroad(
    topic: Topic, consumer_group: str | None, matcher: Matcher, *, everything: bool
) -> None:
    """Raise Invalid for a skip's rule that matches all recent messages."""
    if everything or matcher.kind is not MatcherKind.RULE:
        return
    result = preview(topic=topic, consumer_group=consumer_group, matcher=matcher)
    if result.of >= OVERBROAD_AFTER and result.matched == result.of:
        raise Invalid(
            "matcher/value",
            f"this rule matches each of the last {result.of} messages of {topic}; name "
            'what tells the bad ones apart, or send "everything": true',
        )


def _audit_addition(
    skip: Skip, renews: SkipTerms | None, principal: Principal, *, now: datetime
) -> None:
    """Append to the audit that a skip was added; or renewed, with what it was."""
    if renews is None:
        _audit_skip(Action.SKIP_ADDED, skip, principal, reason=skip.reason, now=now)
        return
    change = {"before": renews.to_json(), "after": SkipTerms.of(skip).to_json()}
    _audit_skip(
        Action.SKIP_RENEWED, skip, principal, reason=skip.reason, now=now, **change
    )


def _audit_skip(
    action: Action,
    skip: Skip,
    principal: Principal,
    *,
    reason: str,
    now: datetime,
    **others: object,
) -> None:
    """Append a decision on a skip to the audit, with other facts about it."""
    audit.record(
        action=action,
        subject=f"skip:{skip.pk}",
        actor=principal.actor,
        reason=reason,
        source=principal.source,
        now=now,
        detail={
            "topic": skip.topic.name,
            "consumer_group": skip.consumer_group,
            "kind": skip.kind,
            "value": skip.value_text[:DISPLAY_STATES],
            "handler_version": skip.handler_version,
            "expires_at": skip.expires_at and skip.expires_at.isoformat(),
            "poison": skip.poison_id,
            **others,
        },
    )
