"""Amazon SQS: queues whose redrive policy names their dead-letter queue.

SQS counts every receive, ours too: even looking changes the count. The modules beside
this one: `sqs_calls` calls SQS and classifies its errors, `publisher` and `reader` are
the ports for messages, `inspection` those for people, `messages` converts a message,
and `redrive_policy` finds dead-letter queues.
"""

from __future__ import annotations

from apps.brokers import polling_interval_of_billed_queues
from apps.brokers.adapter_contract import (
    Capabilities,
    Counting,
    Durability,
    Headers,
    Ordering,
)
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.sqs.inspection import SqsBrokerAdmin, SqsTopicAdmin
from apps.brokers.adapters.sqs.messages import (
    CAME_FROM,
    FIFO,
    LARGEST,
    MOST_ATTRIBUTES,
)
from apps.brokers.adapters.sqs.publisher import SqsPublisher
from apps.brokers.adapters.sqs.reader import SqsDeadLetterReader
from apps.brokers.adapters.sqs.sqs_calls import SqsAddress
from apps.core.errors import Invalid

LONGEST_HIDDEN = 12 * 60 * 60

# Amazon bills each receive, also the long ones; the first message ends the pause.
USUAL_INTERVAL = 15.0

CAPABILITIES = Capabilities(
    max_message=LARGEST,
    counts_headers=True,
    headers=Headers.TEXT,
    most_headers=MOST_ATTRIBUTES,
    # FIFO queues keep the order of a group and recognize a repeated send for five
    # minutes; other queues do neither, and this describes every queue.
    ordering=Ordering.NONE,
    dedupe_window=0,
    durability=Durability.REPLICATED,
    delay=900,
    peeks=False,
    extends=True,
    counting=Counting.BROKER,
    dead_letters_itself=True,
    delivered=False,
    polling_interval=USUAL_INTERVAL,
    # Only SQS itself sets the source of a message.
    reserved=frozenset({CAME_FROM}),
    # The redrive policy of a queue limits its deliveries.
    limits=frozenset({"visibility_timeout"}),
)


class SqsAdapter:
    """Adapter of Amazon SQS; it calls SQS through `sqs_calls`."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> SqsPublisher:
        """Return a publisher for a broker; it connects with its first message."""
        return SqsPublisher(_parse_address(broker))

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> SqsDeadLetterReader:
        """Return a reader of a topic's dead-letter queue; it connects when it reads."""
        return SqsDeadLetterReader(_parse_address(broker), _checked_settings(topic))

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> SqsTopicAdmin:
        """Return the admin that counts a topic's queues; it connects when asked."""
        return SqsTopicAdmin(_parse_address(broker), _checked_settings(topic))

    def broker_admin(self, broker: BrokerSettings) -> SqsBrokerAdmin:
        """Return the admin that tests an SQS account and lists its queues."""
        return SqsBrokerAdmin(_parse_address(broker))

    def queue_by_convention(self, topic: str) -> str:
        """Return "", no conventional dead-letter queue: SQS' policies name it."""
        return ""

    def ordering(self, topic: str) -> Ordering:
        """Return a queue's ordering: by key for FIFO, else that of SQS."""
        return Ordering.KEY if topic.endswith(FIFO) else CAPABILITIES.ordering


ADAPTER = SqsAdapter()


def _parse_address(broker: BrokerSettings) -> SqsAddress:
    """Parse an SQS broker's address and options; raise Invalid."""
    return SqsAddress.of(
        broker.url,
        broker.options,
        dial=broker.target.dial,
        may_ask_metadata=broker.target.may_ask_metadata,
    )


def _checked_settings(topic: TopicSettings) -> TopicSettings:
    """Return the settings of a topic; raise Invalid for what SQS cannot do."""
    unknown = set(topic.options) - {polling_interval_of_billed_queues.OPTION}
    if unknown:
        only = polling_interval_of_billed_queues.OPTION
        hint = f"the only option of a topic of sqs is {only}."
        raise Invalid("options", f"{', '.join(sorted(unknown))} is unknown: {hint}")
    polling_interval_of_billed_queues.longest_interval(
        topic.options, usual=USUAL_INTERVAL
    )
    if topic.topic == topic.dead_letter_queue and not topic.reads_itself:
        raise Invalid("dead_letter_queue", "must be another queue than the topic.")
    if not 0 < topic.visibility_timeout <= LONGEST_HIDDEN:
        remedy = f"SQS hides a message for more than 0 and {LONGEST_HIDDEN} s at most."
        raise Invalid("visibility_timeout", remedy)
    return topic
