"""The sample's consumers, and the topics that they read."""

from __future__ import annotations

from dataclasses import dataclass

from poisonweb.sample.producer_messages import CONTENT_TOPIC, ORDERS, SHIPMENTS


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSubscription:
    """One process in a consumer group; its client name must survive restarts."""

    topic: str
    consumer_group: str
    client_name: str


CONTENT = SampleSubscription(
    topic=CONTENT_TOPIC,
    consumer_group="superstitious",
    client_name="superstitious-1",
)
BILLING = SampleSubscription(
    topic=ORDERS, consumer_group="billing", client_name="billing-1"
)
DISPATCH = SampleSubscription(
    topic=SHIPMENTS, consumer_group="dispatch", client_name="dispatch-1"
)
