"""Brokers, what they can do, and what one has."""

from __future__ import annotations

from apps.api.selectors.brokers import BrokerSeen, Found
from apps.api.shapes.base import Shape
from apps.brokers import secrets
from apps.brokers.connectivity import Reached
from apps.brokers.ports import Capabilities
from apps.core.text import readable, storable


def broker(seen: BrokerSeen) -> Shape:
    row = seen.broker
    return {
        "id": row.pk,
        "name": row.name,
        "kind": row.kind,
        "address": secrets.described(row.url),
        "options": row.options,
        "sample": row.is_sample,
        "topics": seen.topics,
        "capabilities": seen.capabilities and capabilities(seen.capabilities),
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


def reached(told: Reached) -> Shape:
    return {"ok": told.ok, "detail": told.detail, "milliseconds": told.milliseconds}


def found_topic(seen: Found) -> Shape:
    """Tell of a topic as its broker does; what is no text in its name is replaced."""
    found = seen.found
    return {
        "native_name": storable(found.name),
        "depth": found.depth,
        "dead_letter_queue": storable(found.dead_letter_queue),
        "dead_letters": found.dead_letters,
        "name": seen.name,
    }
