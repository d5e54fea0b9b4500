"""Azure Storage Queues: a topic is a queue, its dead letters are in `<queue>-poison`.

The service itself dead-letters nothing: the Functions runtime in a function app does,
or else our `dead_lettering`. A poison queue counts only its own readers, which is us,
so the dequeue count of a dead letter is taken from its topic's policy. `publisher` and
`reader` are the ports for messages, `inspection` those for people.
"""

from __future__ import annotations

from apps.brokers.adapter_contract import (
    Capabilities,
    Counting,
    Durability,
    Headers,
    Ordering,
)
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.azure_queue import message_text
from apps.brokers.adapters.azure_queue.account import AzureAccount
from apps.brokers.adapters.azure_queue.azure_http_client import CONNECTIONS, AzureWire
from apps.brokers.adapters.azure_queue.inspection import (
    AzureBrokerAdmin,
    AzureTopicAdmin,
)
from apps.brokers.adapters.azure_queue.publisher import AzurePublisher
from apps.brokers.adapters.azure_queue.reader import AzureDeadLetterReader
from apps.brokers.adapters.azure_queue.settings import (
    LONGEST_TIMEOUT,
    USUAL_INTERVAL,
    AzureQueueSettings,
    poison_queue,
    queue_name,
    usual_encoding,
)

# Number of messages sent at the same time.
SIDE_BY_SIDE = 32

CAPABILITIES = Capabilities(
    # The limit in base64.
    max_message=message_text.LARGEST_BODY,
    max_text=message_text.LARGEST_TEXT,
    counts_headers=False,
    headers=Headers.NONE,
    most_headers=0,
    ordering=Ordering.NONE,
    dedupe_window=0,
    # Azure writes at least three copies before it answers, in each redundancy.
    durability=Durability.REPLICATED,
    delay=LONGEST_TIMEOUT,
    peeks=True,
    extends=True,
    counting=Counting.POLICY,
    dead_letters_itself=False,
    delivered=False,
    polling_interval=USUAL_INTERVAL,
    with_message_id=lambda headers, _: tuple(headers),
)


class AzureAdapter:
    """Adapter of Azure Storage Queues; it calls Azure through `azure_http_client`."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> AzurePublisher:
        """Return a publisher to an Azure account; its first message connects it."""
        usual = usual_encoding(broker)
        return AzurePublisher(_make_wire(broker, connections=SIDE_BY_SIDE), usual=usual)

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> AzureDeadLetterReader:
        """Return a reader of a topic's Azure poison queue; it connects on reading."""
        settings = AzureQueueSettings.of_topic(broker, topic)
        return AzureDeadLetterReader(_make_wire(broker), settings)

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> AzureTopicAdmin:
        """Return the admin that counts a topic's Azure queues; it connects on use."""
        settings = AzureQueueSettings.of_topic(broker, topic)
        return AzureTopicAdmin(_make_wire(broker), settings)

    def broker_admin(self, broker: BrokerSettings) -> AzureBrokerAdmin:
        """Return the admin that tests an Azure account and lists its queues."""
        usual_encoding(broker)
        return AzureBrokerAdmin(_make_wire(broker))

    def queue_by_convention(self, topic: str) -> str:
        """Return <topic>-poison, the queue that Azure Functions uses; raise Invalid."""
        return poison_queue(queue_name(topic, field="native_name"), "")

    def ordering(self, topic: str) -> Ordering:
        """Return the ordering of Azure queues: all have the same."""
        return CAPABILITIES.ordering


ADAPTER = AzureAdapter()


def _make_wire(broker: BrokerSettings, *, connections: int = CONNECTIONS) -> AzureWire:
    """Return a client of an Azure account; nothing is sent yet."""
    account, dial = AzureAccount.parse(broker.url), broker.target.dial
    return AzureWire(account, dial=dial, connections=connections)
