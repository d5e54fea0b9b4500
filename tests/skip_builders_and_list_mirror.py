"""Add skips as people do, and follow a list as a reader does."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.db import connection

from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.actor import Actor
from apps.poison import skip_addition_and_removal, skip_list_for_consumers
from apps.poison.models import Skip
from apps.poison.skip_list_for_consumers import ListedSkip
from apps.poison.skip_matching import Matcher
from apps.team.rights import Principal, Scope

ANNA = Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))


def principal_of(*topics: str) -> Principal:
    """Return Anna, allowed to see only topics of these names."""
    return Principal(actor=ANNA.actor, scopes=ANNA.scopes, topics=topics)


def topic_named(name: str = "orders", *, replays: bool = False) -> Topic:
    topic = brokers.topics_named(names={name})[name]
    if replays:
        brokers.note_replays(topics=[topic])
    return Topic.objects.get(pk=topic.pk)


def bookmark(text: str) -> Matcher:
    return Matcher.parse({"kind": "bookmark", "value": text})


def rule(**data: object) -> Matcher:
    return Matcher.parse({"kind": "rule", "value": data})


def added(now: datetime, matcher: Matcher | str = "7-0", **changes: object) -> Skip:
    """Add a skip to `orders`, for all groups where none is named."""
    defaults: dict[str, object] = {
        "topic": topic_named(),
        "consumer_group": None,
        "matcher": bookmark(matcher) if isinstance(matcher, str) else matcher,
        "principal": ANNA,
        "now": now,
    }
    addition = skip_addition_and_removal.add(**{**defaults, **changes})  # type: ignore[arg-type] # of several kinds
    return addition.skip


def added_with_capitals(now: datetime, name: str, **changes: object) -> Skip:
    """Add a skip of the header `name` as the release before stored it."""
    skip = added(now, rule(header=name, equals=str(uuid.uuid4())), **changes)
    value = f'{{"equals":"acme","header":"{name}"}}'.encode()
    Skip.objects.filter(pk=skip.pk).update(value=value)
    return Skip.objects.select_related("topic").get(pk=skip.pk)


def values(topic: str = "orders", group: str | None = None) -> list[str]:
    """Return the values of the skips that a reader applies now."""
    snapshot = skip_list_for_consumers.snapshot(topic=topic, consumer_group=group)
    return [skip.value.decode() for skip in snapshot.in_force]


def suspected(topic: str = "orders", group: str | None = None) -> list[str]:
    """Return the values of the suspected skips that a reader gets now."""
    snapshot = skip_list_for_consumers.snapshot(topic=topic, consumer_group=group)
    return [skip.value.decode() for skip in snapshot.suspected]


def changes_after(revision: int, topic: str = "orders") -> list[ListedSkip]:
    """Read what changed after a revision, a few skips at a time, as the stream does."""
    with connection.cursor() as cursor:
        cursor.execute(
            skip_list_for_consumers.CHANGES,
            {"topic": topic, "after": revision, "limit": 7},
        )
        return [ListedSkip(*row) for row in cursor.fetchall()]


class Mirror:
    """A reader of one list: it takes a snapshot, and then the changes after it."""

    def __init__(self, topic: str = "orders") -> None:
        self.topic = topic
        snapshot = skip_list_for_consumers.snapshot(topic=topic, consumer_group=None)
        self.revision = snapshot.revision
        self.skips = {skip.id: skip for skip in snapshot.skips}

    def follow(self) -> int:
        """Apply the new changes; return their number."""
        changes = changes_after(self.revision, self.topic)
        for change in changes:
            self.revision = change.revision
            self.skips.pop(change.id, None)
            if not change.because:
                self.skips[change.id] = change
        return len(changes)

    def catch_up(self) -> None:
        while self.follow():
            pass

    @property
    def ids(self) -> set[int]:
        return set(self.skips)
