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
from apps.poison.skip_matching import RuleMatches
from apps.poison.states import RedriveOutcome, silent_from
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import FINISHED, Verb
from apps.triage.preview_breakdown import ItemBreakdown
from apps.triage.progress import ItemTally
from apps.triage.services import preview_summaries
from apps.triage.services.operation_redirects import target_of_each
from apps.triage.services.preview_summaries import PreviewSummary

NO_MATCHES = RuleMatches(looked_at=0, unread=0, skips={})
# Messages without an answer that are looked at: the page reads them each time.
MOST_UNANSWERED = 50


def of_preview(summary: PreviewSummary, *, now: datetime) -> RuleMatches | TooSlow:
    """Find which messages of a previewed redrive consumers would pass over again.

    The last of them are looked at. None of another verb are, and skips of topics that
    the operation may not touch do not count.
    """
    operation = summary.operation
    if operation.verb != Verb.REDRIVE:
        return NO_MATCHES
    topics = preview_summaries.topics_of(operation, summary.breakdown)
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

    The first of them are looked at, once the redrive is over: while it runs, its page
    polls. Those that went to another topic are left out: no answer to them is due.
    """
    is_redrive_over = operation.verb == Verb.REDRIVE and operation.state in FINISHED
    if not is_redrive_over or not tally.counts[RedriveOutcome.SENT]:
        return NO_MATCHES
    return unless_slow(partial(_matches_of_operation, operation, now=now))


def _matches_of_operation(operation: Operation, *, now: datetime) -> RuleMatches:
    """Match a redrive's first messages without an answer with the rules in force.

    A skip that was added when the message was silent already does not explain that.
    """
    targets = _targets_that_answer(operation)
    if not skip_matching.rules_in_force(targets.keys(), now=now).exists():
        return NO_MATCHES
    unanswered = standings_of(
        operation, standings=[RedriveOutcome.SENT], limit=MOST_UNANSWERED
    )
    latest = {
        item.poison: silent_from(item.sent_at)
        for item in unanswered
        if item.poison is not None and item.sent_at is not None
    }
    return skip_matching.rule_matches(
        last=lambda most: list(latest)[:most],
        target_ids=targets,
        now=now,
        latest=latest,
    )


def _targets_that_answer(operation: Operation) -> Mapping[int, int]:
    """Map the topics whose messages a redrive sent back to them, each to itself."""
    stored = operation.breakdown
    breakdown = (
        ItemBreakdown(topic_ids=None)  # of the release before
        if stored is None
        else ItemBreakdown.from_json(stored)
    )
    targets = _visible_targets(
        operation, preview_summaries.topics_of(operation, breakdown)
    )
    return {topic: target for topic, target in targets.items() if topic == target}


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
