"""What the page of a preview shows: counts of its items, and where they would go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction

from apps.brokers import senders_of_topics_without_broker
from apps.brokers.models import Topic
from apps.core.statement_timeouts import TOO_SLOW, TooSlow
from apps.poison.models import Poison
from apps.poison.origin_queue_mismatch import MisroutedCount
from apps.triage.item_kinds import kind_of
from apps.triage.models import Operation
from apps.triage.operation_states import SENDS
from apps.triage.preview_breakdown import ItemBreakdown, Largest, Shares
from apps.triage.services import operation_redirects, redrive_to_other_queue_count
from apps.triage.services.reasons_for_omitted_messages import TOO_LARGE

MOST_NAMED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewSummary:
    """A preview with its figures beside the total; counts are of items.

    `breakdown` counts topics by id, which `topic_names` names. `elsewhere` has the
    messages that failed in another queue, among the first to be sent. `redirects` names
    the topics that are requeued elsewhere by their policies, and where to.
    `without_sender` names the first topics to which it would send and nothing can.
    """

    operation: Operation
    will_act: int
    breakdown: ItemBreakdown
    topic_names: Mapping[str, str]
    sample: tuple[Poison, ...]
    newer: int
    redirects: Mapping[str, str]
    elsewhere: tuple[MisroutedCount, ...]
    without_sender: tuple[str, ...]

    @property
    def skipped(self) -> Shares:
        """Return how many items are skipped by reason, the most frequent first."""
        return self.breakdown.skipped.values

    @property
    def may_go_elsewhere(self) -> bool:
        """Tell whether another target topic would let the operation act on more."""
        return any(reason == TOO_LARGE for reason, _ in self.skipped)

    @property
    def topics(self) -> Largest:
        """Return how many items each topic has, by name."""
        return self.breakdown.topics.renamed(self.topic_names)

    @property
    def redirected_topics(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.redirects.items())

    @property
    def by_topic(self) -> Shares:
        return self.topics.values

    @property
    def by_consumer(self) -> Shares:
        return self.breakdown.consumers.values

    @property
    def by_endpoint(self) -> Shares:
        """Return how many deliveries each endpoint has, by name."""
        return dict(self.breakdown.groups).get("endpoint", Largest()).values

    @property
    def left_out(self) -> Shares | TooSlow:
        """Return the headers that will not be sent, and how many messages have each."""
        left_out = self.breakdown.left_out
        return TOO_SLOW if left_out is None else left_out


def summarize(*, operation: Operation) -> PreviewSummary:
    """Return what an operation's preview has, and count later arrivals."""
    breakdown = breakdown_of(operation)
    topics = [int(topic) for topic, _ in breakdown.topics.values]
    names = Topic.objects.filter(pk__in=topics).values_list("pk", "name")
    samples = Poison.objects.select_related("topic").in_bulk(breakdown.samples)
    newer = 0 if operation.query is None else kind_of(operation).count_newer(operation)
    return PreviewSummary(
        operation=operation,
        will_act=operation.will_act,
        breakdown=breakdown,
        topic_names={str(pk): name for pk, name in names},
        sample=tuple(samples[pk] for pk in breakdown.samples if pk in samples),
        newer=newer,
        redirects=operation_redirects.names_of(operation),
        elsewhere=redrive_to_other_queue_count.count_elsewhere(
            operation, breakdown.first
        ),
        without_sender=_topics_without_sender(operation, breakdown),
    )


def topics_of(operation: Operation, breakdown: ItemBreakdown) -> list[int]:
    """List the ids of the topics of a preview's messages.

    Where the breakdown does not tell them: of all topics that the operation may touch.
    """
    if breakdown.topic_ids is not None:
        return list(breakdown.topic_ids)
    allowed = Topic.objects.matching(operation.topics)
    return list(allowed.values_list("pk", flat=True))


def _topics_without_sender(
    operation: Operation, breakdown: ItemBreakdown
) -> tuple[str, ...]:
    """Name some topics whose messages an operation would send and would be refused."""
    if operation.verb not in SENDS:
        return ()
    targets = operation_redirects.targets_of(operation, topics_of(operation, breakdown))
    topics = senders_of_topics_without_broker.topics_without_sender(targets)
    return tuple(topics.order_by("name").values_list("name", flat=True)[:MOST_NAMED])


def breakdown_of(operation: Operation) -> ItemBreakdown:
    """Return a preview's stored counts of its items; none before they exist.

    Those of a preview that was converted from the release before are counted now.
    """
    if operation.breakdown is not None:
        return ItemBreakdown.from_json(operation.breakdown)
    if not operation.is_taken:
        return ItemBreakdown()
    with transaction.atomic():
        breakdown = kind_of(operation).count(operation, now=operation.created_at)
    Operation.objects.filter(pk=operation.pk).update(breakdown=breakdown.to_json())
    return breakdown
