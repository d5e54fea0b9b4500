"""Brokers, their capabilities, and the topics that one has."""

from __future__ import annotations

from apps.api.selectors.brokers import BrokerDetail, DiscoveredTopic
from apps.api.shapes.base import Shape
from apps.brokers import secrets
from apps.brokers.connectivity import Reached
from apps.brokers.ports import Capabilities
from apps.core.text import readable, storable


def broker(detail: BrokerDetail) -> Shape:
    row = detail.broker
    return {
        "id": row.pk,
        "name": row.name,
        "kind": row.kind,
        "address": secrets.described(row.url),
        "options": row.options,
        "sample": row.is_sample,
        "topics": detail.topics,
        "capabilities": detail.capabilities and capabilities(detail.capabilities),
    }


def capabilities(can: Capabilities) -> Shape:
    return {
        "max_message": can.max_message,
        "counts_headers": can.counts_headers,
        "headers": can.headers.value,
        "most_headers": can.most_headers,
        "ordering": can.ordering.value,
        "dedupe_window": can.dedupe_window,
        "durability": can.durability.value,
        "delay": can.delay,
        "polling_interval": can.polling_interval,
        "peeks": can.peeks,
        "extends": can.extends,
        "counting": can.counting.value,
        "dead_letters_itself": can.dead_letters_itself,
        "delivered": can.delivered,
        "reserved": sorted(readable(name) for name in can.reserved),
    }


def reached(test: Reached) -> Shape:
    return {"ok": test.ok, "detail": test.detail, "milliseconds": test.milliseconds}


def discovered_topic(discovered: DiscoveredTopic) -> Shape:
    """Show a topic as its broker names it; characters that are no text are replaced."""
    topic = discovered.topic
    return {
        "native_name": storable(topic.name),
        "depth": topic.depth,
        "dead_letter_queue": storable(topic.dead_letter_queue),
        "dead_letters": topic.dead_letters,
        "name": discovered.name,
    }
