"""Amazon SQS: queues whose redrive policy names their dead-letter queue.

SQS counts every receive, ours too: there is no looking without changing. Its parts are
in modules beside this one: `wire` calls it and knows what an answer is worth,
`publisher` and `reader` are the ports for messages, `admin` those for people,
`messages` converts a message, and `topology` tells where dead letters go.
"""

from __future__ import annotations

from apps.brokers import polling
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.sqs.admin import SqsBrokerAdmin, SqsTopicAdmin
from apps.brokers.adapters.sqs.messages import (
    CAME_FROM,
    FIFO,
    LARGEST,
    MOST_ATTRIBUTES,
)
from apps.brokers.adapters.sqs.publisher import SqsPublisher
from apps.brokers.adapters.sqs.reader import SqsDeadLetterReader
from apps.brokers.adapters.sqs.wire import SqsAddress
from apps.brokers.ports import Capabilities, Counting, Durability, Headers, Ordering
from apps.core.errors import Invalid

LONGEST_HIDDEN = 12 * 60 * 60

# Each receive is paid for, the long ones too; the first message ends the pause.
USUAL_INTERVAL = 15.0

CAPABILITIES = Capabilities(
    max_message=LARGEST,
    counts_headers=True,
    headers=Headers.TEXT,
    most_headers=MOST_ATTRIBUTES,
    # FIFO queues keep the order of a group and know a send again for five minutes; the
    # others do neither, and this is what every queue does.
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
    # Only SQS itself says where a message came from.
    reserved=frozenset({CAME_FROM}),
    # How often a message is handed out, its queue's redrive policy says.
    limits=frozenset({"visibility_timeout"}),
)


class SqsAdapter:
    """Speaks to SQS through `wire`."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> SqsPublisher:
        return SqsPublisher(_address(broker))

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> SqsDeadLetterReader:
        return SqsDeadLetterReader(_address(broker), _checked(topic))

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> SqsTopicAdmin:
        return SqsTopicAdmin(_address(broker), _checked(topic))

    def broker_admin(self, broker: BrokerSettings) -> SqsBrokerAdmin:
        return SqsBrokerAdmin(_address(broker))

    def queue_by_convention(self, topic: str) -> str:
        """The redrive policy of the queue names it, and discovery finds it."""
        return ""

    def ordering(self, topic: str) -> Ordering:
        return Ordering.KEY if topic.endswith(FIFO) else CAPABILITIES.ordering


ADAPTER = SqsAdapter()


def _address(broker: BrokerSettings) -> SqsAddress:
    return SqsAddress.of(
        broker.url,
        broker.options,
        dial=broker.target.dial,
        may_ask_metadata=broker.target.may_ask_metadata,
    )


def _checked(topic: TopicSettings) -> TopicSettings:
    unknown = set(topic.options) - {polling.OPTION}
    if unknown:
        hint = f"the only option of a topic of sqs is {polling.OPTION}."
        raise Invalid("options", f"{', '.join(sorted(unknown))} is unknown: {hint}")
    polling.longest_interval(topic.options, usual=USUAL_INTERVAL)
    if topic.topic == topic.dead_letter_queue:
        raise Invalid("dead_letter_queue", "must be another queue than the topic.")
    if not 0 < topic.visibility_timeout <= LONGEST_HIDDEN:
        remedy = f"SQS hides a message for more than 0 and {LONGEST_HIDDEN} s at most."
        raise Invalid("visibility_timeout", remedy)
    return topic
