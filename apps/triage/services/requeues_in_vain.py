"""Find the messages that are requeued in vain: consumers pass over them silently.

That is what an active skip by a rule does with a message that matches it. Other skips
let a requeued message pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from apps.brokers.models import Topic
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.poison import skip_matching
from apps.poison.models import Poison
from apps.poison.skip_matching import RuleMatches
from apps.poison.states import RedriveOutcome
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.progress import ItemTally
from apps.triage.services import previews
from apps.triage.services.operation_redirects import target_of_each
from apps.triage.services.previews import PreviewSummary

NO_MATCHES = RuleMatches(looked_at=0, unread=0, skips={})
# What became of a message that was sent, and of which no consumer has told the result.
UNANSWERED = (RedriveOutcome.SENT, RedriveOutcome.MOVED)
# Messages without an answer that are looked at: the page of an operation polls.
MOST_UNANSWERED = 200


def of_preview(summary: PreviewSummary, *, now: datetime) -> RuleMatches | TooSlow:
    """Find which messages of a previewed redrive consumers would pass over again.

    The last of them are looked at. None of another verb are, and skips of topics that
    the operation may not touch do not count.
    """
    operation = summary.operation
    if operation.verb != Verb.REDRIVE:
        return NO_MATCHES
    topics = previews.topics_of(operation, summary.breakdown)
    return unless_slow(partial(_matches_of_preview, operation, topics, now=now))


def _matches_of_preview(
    operation: Operation, topics: Sequence[int], *, now: datetime
) -> RuleMatches:
    return skip_matching.rule_matches(
        last=partial(_last_items, operation),
        target_ids=_visible_targets(operation, topics),
        now=now,
    )


def of_operation(
    operation: Operation, tally: ItemTally, *, now: datetime
) -> RuleMatches | TooSlow:
    """Find which messages without an answer consumers pass over, as rules match them.

    The first of them are looked at: those that a redrive sent, and of which no consumer
    has told that it handled the message or failed.
    """
    if operation.verb != Verb.REDRIVE:
        return NO_MATCHES
    if not any(tally.counts[outcome] for outcome in UNANSWERED):
        return NO_MATCHES
    return unless_slow(partial(_matches_of_operation, operation, now=now))


def _matches_of_operation(operation: Operation, *, now: datetime) -> RuleMatches:
    unanswered = standings_of(operation, standings=UNANSWERED, limit=MOST_UNANSWERED)
    ids = [item.poison for item in unanswered if item.poison is not None]
    topics = (
        Poison.objects.filter(pk__in=ids).order_by().values_list("topic", flat=True)
    )
    return skip_matching.rule_matches(
        last=lambda most: ids[:most],
        target_ids=_visible_targets(operation, list(topics.distinct())),
        now=now,
    )


def _visible_targets(operation: Operation, topics: Sequence[int]) -> Mapping[int, int]:
    """Map topics to where their messages go, where the operation may touch that."""
    targets = target_of_each(operation, topics)
    allowed = Topic.objects.matching(operation.topics)
    ids = allowed.filter(pk__in=set(targets.values())).values_list("pk", flat=True)
    visible = set(ids)
    return {topic: target for topic, target in targets.items() if target in visible}


def _last_items(operation: Operation, most: int) -> list[int]:
    """List the ids of the last poisons that a previewed operation acts on."""
    acted_on = operation.items.not_skipped().order_by("-number")
    return list(acted_on.values_list("poison_id", flat=True)[:most])
