"""Look at SQS queues, and change nothing; the numbers of SQS are approximate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from apps.brokers.adapter_contract import ConsumerPosition, Delivered, FoundTopic
from apps.brokers.adapters.adapter import TopicSettings
from apps.brokers.adapters.sqs.redrive_policy import (
    RedrivePolicy,
    SqsDeadLetterQueue,
    dead_letter_queue_of,
)
from apps.brokers.adapters.sqs.sqs_calls import SqsAddress, SqsRejected, SqsWire

QUEUES_PAGE = 1_000
MOST_QUEUES = 10_000
# Number of parallel calls while each queue is looked at.
LOOKS = 8

DEPTHS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)

_LOG = logging.getLogger(__name__)


class SqsTopicAdmin:
    """Admin of the dead-letter queue of one topic; SQS' numbers are approximate."""

    def __init__(self, address: SqsAddress, settings: TopicSettings) -> None:
        self._wire = SqsWire(address)
        self._settings = settings
        self._queue: SqsDeadLetterQueue | None = None

    def consumers(self) -> list[ConsumerPosition]:
        """Return []: SQS knows no consumers, settled messages are gone."""
        return []

    def depth(self) -> int | None:
        """Count SQS' dead-letter queue, also the hidden and delayed messages."""
        self._queue = self._queue or dead_letter_queue_of(self._wire, self._settings)
        return _depth(self._wire.attributes(self._queue.name, *DEPTHS))

    def oldest_at(self) -> datetime | None:
        """Return None, the oldest dead letter's time: only CloudWatch knows it."""
        return None

    def delivered(self) -> Delivered | None:
        """Return None, the count of deliveries: only CloudWatch knows it."""
        return None

    def close(self) -> None:
        """Close the connection to SQS."""
        self._wire.close()


class SqsBrokerAdmin:
    """Admin of the queues of one region."""

    def __init__(self, address: SqsAddress) -> None:
        self._wire = SqsWire(address)

    def ping(self) -> str:
        """List one queue of SQS, which tests the credentials; name the address."""
        self._wire.call("list_queues", about="ListQueues", MaxResults=1)
        return str(self._wire.address)

    def discover(self) -> list[FoundTopic]:
        """List SQS' queues as topics, each with its dead-letter queue."""
        urls = self._queue_urls()
        with ThreadPoolExecutor(LOOKS) as pool:
            results = zip(urls, pool.map(self._attributes_of, urls), strict=True)
            queues = {
                _queue_name(url): attributes
                for url, attributes in results
                if attributes
            }
        policies = {name: RedrivePolicy.of(queues[name]) for name in queues}
        partners = {p.dead_letter_queue for p in policies.values() if p}
        return [
            _topic(name, policies[name], queues)
            for name in sorted(queues)
            if name not in partners
        ]

    def close(self) -> None:
        """Close the connection to SQS."""
        self._wire.close()

    def _queue_urls(self) -> list[str]:
        """List the URLs of the account's queues, page by page, up to a limit."""
        urls: list[str] = []
        more: dict[str, str] = {}
        while len(urls) < MOST_QUEUES:
            reply = self._wire.call(
                "list_queues", about="ListQueues", MaxResults=QUEUES_PAGE, **more
            )
            urls += reply.get("QueueUrls", [])
            if not reply.get("NextToken"):
                break
            more = {"NextToken": reply["NextToken"]}
        return urls[:MOST_QUEUES]

    def _attributes_of(self, url: str) -> dict[str, str]:
        """Return an SQS queue's attributes; {} where it is gone or we have no right."""
        names = ["QueueArn", "RedrivePolicy", *DEPTHS]
        about = f"GetQueueAttributes {_queue_name(url)}"
        try:
            reply = self._wire.call(
                "get_queue_attributes", about=about, QueueUrl=url, AttributeNames=names
            )
        except SqsRejected as refusal:
            _LOG.warning("discovery leaves out a queue: %s", refusal)
            return {}
        attributes: dict[str, str] = reply.get("Attributes", {})
        return attributes


def _topic(
    name: str, policy: RedrivePolicy | None, queues: Mapping[str, Mapping[str, str]]
) -> FoundTopic:
    """Build a topic from an SQS queue, with the depths of both its queues."""
    partner = policy.dead_letter_queue if policy else ""
    return FoundTopic(
        name=name,
        depth=_depth(queues[name]),
        dead_letter_queue=partner,
        dead_letters=_depth(queues.get(partner, {})),
    )


def _depth(attributes: Mapping[str, str]) -> int | None:
    """Add up a queue's counts of messages; None if its attributes hold none."""
    counts = [int(attributes[name]) for name in DEPTHS if name in attributes]
    return sum(counts) if counts else None


def _queue_name(url: str) -> str:
    """Return the name of an SQS queue from its URL."""
    return url.rpartition("/")[2]
