"""The skip list: what consumers pass over, and each change of it under a number.

Every change takes the next revision of its topic while it holds the topic's list, and
keeps hold of it until it commits. So whoever has all of revision n, and then asks for
what came after n, misses nothing. Lists are held in the order of their topics' ids, and
skips in the order of theirs.

`skip_reading` tells the list to consumers, `skip_counts` counts what they tell of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.core import notices
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid
from apps.core.text import storable
from apps.poison.matching import Matcher, preview
from apps.poison.models import Poison, Skip, SkipCount, SkipList, WaitingSkip
from apps.poison.states import Because
from apps.team.rights import Principal, Scope
from poisonguard.contract import MatcherKind

log = logging.getLogger(__name__)

REASON_LIMIT = 2_000
SHOWN = 300
AT_ONCE = 1_000
# A rule that matches each of so many messages was hardly meant to.
OVERBROAD_AFTER = 200
# Ended automatic skips, and what counted skips, stay as long as anybody may ask again.
REMEMBERED = timedelta(days=30)

_TAKE = """
INSERT INTO poison_skip_list (topic_id, revision) VALUES (%s, 1)
ON CONFLICT (topic_id) DO UPDATE SET revision = poison_skip_list.revision + 1
RETURNING revision
"""

_END = """
WITH locked AS (
    SELECT id, is_automatic FROM poison_skip
    WHERE topic_id = %(topic)s AND id = ANY(%(skips)s) AND removed_revision IS NULL
    ORDER BY id FOR NO KEY UPDATE
), due AS (
    SELECT id, is_automatic, row_number() OVER (ORDER BY id) AS place FROM locked
), ended AS (
    UPDATE poison_skip SET removed_revision = list.revision + due.place,
           removed_at = %(now)s, removed_by = %(by)s, because = %(because)s,
           removed_reason = %(reason)s
    FROM due, poison_skip_list list
    WHERE poison_skip.id = due.id AND list.topic_id = %(topic)s
)
UPDATE poison_skip_list list SET revision = list.revision + told.number,
       automatic = list.automatic - told.automatic
FROM (SELECT count(*) AS number, count(*) FILTER (WHERE is_automatic) AS automatic
      FROM due) told
WHERE topic_id = %(topic)s AND told.number > 0
RETURNING told.number
"""

_FORGET = """
WITH forgotten AS (
    DELETE FROM poison_skip WHERE id IN (
        SELECT id FROM poison_skip
        WHERE topic_id = %(topic)s AND is_automatic AND removed_at < %(before)s
        ORDER BY removed_revision LIMIT %(limit)s)
    RETURNING removed_revision
)
UPDATE poison_skip_list list SET floor = greatest(list.floor, told.last)
FROM (SELECT max(removed_revision) AS last, count(*) AS number FROM forgotten) told
WHERE topic_id = %(topic)s AND told.number > 0
RETURNING told.number
"""


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
) -> Skip:
    """Let consumers pass over what matches; the same matcher again renews its skip.

    One for all handler versions takes over an automatic one that was for a single one.
    A rule that matches every recent message is refused unless `everything` is true.
    """
    principal.require(Scope.SKIPS_WRITE)
    require_sight(topic=topic.name, principal=principal)
    _refuse_useless(topic, consumer_group, matcher, everything=everything)
    if expires_at is not None and expires_at <= now:
        raise Invalid("expires_at", "send a time to come")
    if poison_id is not None:
        _require_poison(poison_id, topic)
    facts = {
        "reason": _usable(reason),
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
        facts["revision"] = _take(topic.pk)
        skip = _same(topic, consumer_group, matcher, handler_version)
        if skip is None:
            skip = Skip.objects.create(
                topic=topic,
                consumer_group=consumer_group,
                kind=matcher.kind.value,
                value=matcher.value,
                handler_version=handler_version,
                **facts,
            )
        else:
            _take_over(skip, {**facts, "handler_version": handler_version})
        skip = visible(skip_id=skip.pk, principal=principal)
        notices.notify_skips(topic_id=topic.pk)
        _record(Action.SKIP_ADDED, skip, principal, reason=skip.reason, now=now)
    log.info("%s added the skip %s to %s", principal.actor, skip, topic)
    return skip


def remove(*, skip_id: int, reason: str, principal: Principal, now: datetime) -> Skip:
    """End a skip; one that has ended already stays as it is."""
    principal.require(Scope.SKIPS_WRITE)
    skip = visible(skip_id=skip_id, principal=principal)
    _remove([skip], reason=_usable(reason), principal=principal, now=now)
    return visible(skip_id=skip_id, principal=principal)


def remove_of_poison(
    *, poison_id: int, reason: str, principal: Principal, now: datetime
) -> list[Skip]:
    """Un-poison: end every active skip that was made for this message; give those."""
    principal.require(Scope.SKIPS_WRITE)
    of_it = Skip.objects.active().filter(poison=poison_id).on_topics(principal.topics)
    skips = list(of_it.select_related("topic").order_by("topic_id", "id"))
    _remove(skips, reason=_usable(reason), principal=principal, now=now)
    WaitingSkip.objects.filter(poison=poison_id).on_topics(principal.topics).delete()
    return skips


@transaction.atomic
def _remove(
    skips: Sequence[Skip], *, reason: str, principal: Principal, now: datetime
) -> None:
    """End them one by one, in the order of their topics, which is that of locking."""
    ended = [
        skip
        for skip in skips
        if end(
            topic_id=skip.topic_id,
            skips=[skip.pk],
            because=Because.REMOVED,
            actor=principal.actor,
            reason=reason,
            now=now,
        )
    ]
    for skip in ended:
        _record(Action.SKIP_REMOVED, skip, principal, reason=reason, now=now)
        log.info("%s removed the skip %s of %s", principal.actor, skip, skip.topic)


def end(
    *,
    topic_id: int,
    skips: Sequence[int],
    because: Because,
    actor: Actor,
    reason: str = "",
    now: datetime,
) -> int:
    """End those of a topic that are still active, each under a revision of its own.

    Give their number. Call it inside a transaction.
    """
    hold([topic_id])
    values = {
        "topic": topic_id,
        "skips": list(skips),
        "because": because.value,
        "by": str(actor),
        "reason": reason,
        "now": now,
    }
    ended = _number(_END, values)
    if ended:
        notices.notify_skips(topic_id=topic_id)
    return ended


def hold(topics: Iterable[int]) -> None:
    """Hold the lists of these topics until the transaction ends; make those missing."""
    wanted = sorted(set(topics))
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO poison_skip_list (topic_id) SELECT unnest(%s::int8[])"
            " ON CONFLICT (topic_id) DO NOTHING",
            [wanted],
        )
        cursor.execute(
            "SELECT FROM poison_skip_list WHERE topic_id = ANY(%s) ORDER BY topic_id"
            " FOR NO KEY UPDATE",
            [wanted],
        )


def expire(*, now: datetime) -> int:
    """End the skips whose time is up; give their number."""
    over = Skip.objects.active().filter(expires_at__lte=now)
    topics = over.order_by("topic_id").values_list("topic_id", flat=True).distinct()
    number = 0
    for topic_id in list(topics):
        due = over.filter(topic=topic_id).order_by("id").values_list("pk", flat=True)
        while batch := list(due[:AT_ONCE]):
            with transaction.atomic():
                number += end(
                    topic_id=topic_id,
                    skips=batch,
                    because=Because.EXPIRED,
                    actor=Actor.system("skips"),
                    now=now,
                )
    return number


def forget(*, now: datetime) -> int:
    """Delete automatic skips that ended long ago; whoever asks from before starts anew.

    What people decided stays.
    """
    before = now - REMEMBERED
    SkipCount.objects.filter(counted_at__lt=before).delete()
    number = 0
    for topic_id in SkipList.objects.order_by("topic_id").values_list("pk", flat=True):
        values = {"topic": topic_id, "before": before, "limit": AT_ONCE}
        while forgotten := _forget(values):
            number += forgotten
    return number


@transaction.atomic
def _forget(values: dict[str, Any]) -> int:
    hold([values["topic"]])
    return _number(_FORGET, values)


def require_sight(*, topic: str, principal: Principal) -> None:
    """Raise Forbidden unless this principal sees the topic, heard of or not."""
    if not principal.sees(topic):
        raise Forbidden(f"This key may not use the topic {topic}; give it the topic.")


def visible(*, skip_id: int, principal: Principal) -> Skip:
    """Find a skip on a topic that this principal sees; raises Absent otherwise."""
    allowed = Skip.objects.on_topics(principal.topics).select_related("topic")
    skip = allowed.filter(pk=skip_id).first()
    if skip is None:
        raise Absent(f"There is no skip {skip_id} here.")
    return skip


def _take(topic_id: int) -> int:
    """Hold the list of a topic until the transaction ends; give its next revision."""
    return _number(_TAKE, [topic_id])


def _same(
    topic: Topic,
    consumer_group: str | None,
    matcher: Matcher,
    handler_version: str | None,
) -> Skip | None:
    """Find the active skip that another one like this would be, or would widen."""
    like_it = Skip.objects.active().filter(
        topic=topic,
        kind=matcher.kind.value,
        digest=hashlib.sha256(matcher.value).digest(),
        consumer_group=consumer_group,
    )
    same = like_it.filter(handler_version=handler_version).first()
    if same is None and handler_version is None:
        same = like_it.filter(is_automatic=True).order_by("-revision").first()
    return same


def _take_over(skip: Skip, facts: dict[str, Any]) -> None:
    """Make a skip that is there already the one that was asked for."""
    if skip.is_automatic:
        lists = SkipList.objects.filter(topic=skip.topic_id)
        lists.update(automatic=F("automatic") - 1)
    Skip.objects.filter(pk=skip.pk).update(**facts)


def _number(statement: str, values: Any) -> int:
    """Carry out a statement that gives one number, or no row for none."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row = cursor.fetchone()
    return 0 if row is None else int(row[0])


def _require_poison(poison_id: int, topic: Topic) -> None:
    if not Poison.objects.filter(pk=poison_id, topic=topic).exists():
        raise Invalid("poison", f"{topic} has no message {poison_id}")


def _refuse_useless(
    topic: Topic, consumer_group: str | None, matcher: Matcher, *, everything: bool
) -> None:
    if everything or matcher.kind is not MatcherKind.RULE:
        return
    seen = preview(topic=topic, consumer_group=consumer_group, matcher=matcher)
    if seen.of >= OVERBROAD_AFTER and seen.matched == seen.of:
        raise Invalid(
            "matcher/value",
            f"this rule matches each of the last {seen.of} messages of {topic}; name "
            'what tells the bad ones apart, or send "everything": true',
        )


def _usable(reason: str) -> str:
    reason = storable(reason.strip())
    if len(reason) > REASON_LIMIT:
        raise Invalid("reason", f"keep it under {REASON_LIMIT} characters")
    return reason


def _record(
    action: Action, skip: Skip, principal: Principal, *, reason: str, now: datetime
) -> None:
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
            "value": skip.value_text[:SHOWN],
            "handler_version": skip.handler_version,
            "expires_at": skip.expires_at and skip.expires_at.isoformat(),
            "poison": skip.poison_id,
        },
    )
