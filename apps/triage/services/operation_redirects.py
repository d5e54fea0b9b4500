"""Send messages where the policy of their topic says, as it was at the preview."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from apps.brokers.models import Topic
from apps.brokers.topic_querysets import TopicQuerySet
from apps.triage.models import Operation, Redirect
from apps.triage.operation_states import Verb


def store(operation: Operation) -> None:
    """Store an operation's requeue policies, before its items are judged."""
    Redirect.objects.bulk_create(
        Redirect(operation=operation, topic_id=topic, target_id=target)
        for topic, target in _policies(operation).items()
    )


def keep_those_of(operation: Operation, topics: Collection[int] | None) -> None:
    """Delete an operation's stored requeue policies of all topics but these.

    None deletes no policy.
    """
    if topics is not None:
        operation.redirects.exclude(topic__in=topics).delete()


def changed_topic(operation: Operation) -> str:
    """Name a topic whose requeue policy changed since the preview; "" if none.

    Only topics that were redirected then, or are now, count: the others of a preview
    send to themselves.
    """
    stored = dict(operation.redirects.values_list("topic_id", "target_id"))
    present = _policies(operation)
    breakdown = operation.breakdown or {}
    concerned = {*stored, *(breakdown.get("topic_ids") or present)}
    changed = [topic for topic in concerned if stored.get(topic) != present.get(topic)]
    names = Topic.objects.filter(pk__in=changed).order_by("name")
    return names.values_list("name", flat=True).first() or ""


def targets_of(operation: Operation, topics: Collection[int]) -> set[int]:
    """Return the ids of topics to which an operation sends those topics' messages."""
    if operation.target_topic_id is not None:
        return {operation.target_topic_id}
    return set(target_of_each(operation, topics).values())


def target_of_each(operation: Operation, topics: Collection[int]) -> Mapping[int, int]:
    """Map these topics to those to which an operation sends their messages."""
    if operation.target_topic_id is not None:
        return dict.fromkeys(topics, operation.target_topic_id)
    redirects = dict(operation.redirects.values_list("topic_id", "target_id"))
    return {topic: redirects.get(topic, topic) for topic in topics}


def topics_that_stay(operation: Operation, topics: Collection[int]) -> set[int]:
    """Return those of these topics whose messages an operation sends back to them.

    Only their messages can be confirmed: others are moved.
    """
    if operation.verb == Verb.GIVE_BACK:
        return set()
    if operation.target_topic_id is not None:
        return {operation.target_topic_id} & set(topics)
    return set(topics) - set(operation.redirects.values_list("topic_id", flat=True))


def names_of(operation: Operation) -> dict[str, str]:
    """Map the names of an operation's redirected topics to where they are sent."""
    rows = operation.redirects.order_by("topic__name")
    return dict(rows.values_list("topic__name", "target__name"))


def policy_targets(topics: Collection[int]) -> dict[int, int]:
    """Map the topics that are requeued elsewhere to those that get their messages."""
    return _targets(Topic.objects.filter(pk__in=topics))


def _policies(operation: Operation) -> dict[int, int]:
    """Map the operation's topics to where they are requeued; {} if it chose a target.

    It is {} for other verbs than a redrive, too.
    """
    if operation.verb != Verb.REDRIVE or operation.target_topic_id is not None:
        return {}
    return _targets(Topic.objects.matching(operation.topics))


def _targets(topics: TopicQuerySet) -> dict[int, int]:
    redirected = topics.filter(requeue_topic__isnull=False)
    rows = redirected.values_list("pk", "requeue_topic")
    return {topic: target for topic, target in rows if target is not None}
