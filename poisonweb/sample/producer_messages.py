"""The producer's messages: mostly good ones, and some with the usual faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

CONTENT_TOPIC = "ContentTopic"
ORDERS = "orders"
SHIPMENTS = "shipments"

Change = Callable[[dict[str, object]], dict[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleMessage:
    topic: str
    body: bytes
    headers: dict[str, str]

    @property
    def fields(self) -> dict[Any, Any]:  # as wide as redis-py wants it
        """Return the Redis stream fields of a made-up message: body and headers."""
        return {"body": self.body, **self.headers}


def content(n: int) -> SampleMessage:
    """Make the n-th made-up message of the sample's content feed."""
    return SampleMessage(
        topic=CONTENT_TOPIC,
        body=json.dumps({"id": n}).encode(),
        headers={
            "content-type": "application/json",
            "x-producer": "content-feed",
            "x-trace-id": uuid4().hex,
        },
    )


def order(n: int) -> SampleMessage:
    """Make the message of the sample's n-th order; its fault depends on n only."""
    change, encoding = _FAULTS.get(n % _EVERY, (_as_it_is, "utf-8"))
    body = json.dumps(change(_order(n)), ensure_ascii=False)
    return SampleMessage(
        topic=ORDERS,
        body=body.encode(encoding),
        headers={
            "content-type": "application/json",
            "x-producer": "web-shop",
            "x-trace-id": uuid4().hex,
        },
    )


def shipment(n: int) -> SampleMessage:
    """Make the message of the sample's n-th shipment; some addresses have a flower."""
    to = "Blumenweg 7 🌻" if n % _FLOWER_EVERY == 7 else f"Musterweg {n % 90}"
    return SampleMessage(
        topic=SHIPMENTS,
        body=json.dumps({"shipment": f"S-{n}", "to": to}, ensure_ascii=False).encode(),
        headers={
            "content-type": "application/json",
            "x-producer": "warehouse",
            "x-trace-id": uuid4().hex,
        },
    )


def _order(n: int) -> dict[str, object]:
    """Return the members of the sample's n-th made-up order, without a fault."""
    return {
        "number": f"A-{100_000 + n}",
        "customer_id": f"C-{1 + n * 37 % 900}",
        "customer": "Jürgen Weiß" if n % 2 else "Zoë Ångström",
        "placed_on": f"2026-{1 + n % 12:02}-{1 + n % 28:02}",
        "unit_cents": 250 + n * 13 % 9_000,
        "quantity": 1 + n % 6,
        "discount_percent": (0, 0, 5, 20)[n % 4],
        "pays_by": "invoice" if n % 5 else "card",
    }


def _as_it_is(order: dict[str, object]) -> dict[str, object]:
    """Return a made-up order without a fault."""
    return order


def _without_customer(order: dict[str, object]) -> dict[str, object]:
    """Return a made-up order with a fault: without its customer's id."""
    return {name: value for name, value in order.items() if name != "customer_id"}


def _with_a_foreign_date(order: dict[str, object]) -> dict[str, object]:
    """Return a made-up order with a fault: its date as day.month.year."""
    year, month, day = str(order["placed_on"]).split("-")
    return {**order, "placed_on": f"{day}.{month}.{year}"}


def _free_of_charge(order: dict[str, object]) -> dict[str, object]:
    """Return a made-up order with a fault: a discount of 100 %."""
    return {**order, "discount_percent": 100}


def _of_nothing(order: dict[str, object]) -> dict[str, object]:
    """Return a made-up order with a fault: an item of quantity 0."""
    return {**order, "quantity": 0}


_FLOWER_EVERY = 30
_EVERY = 40
# The new release of the consumer can handle the last but one.
_FAULTS: dict[int, tuple[Change, str]] = {
    3: (_without_customer, "utf-8"),
    11: (_with_a_foreign_date, "utf-8"),
    19: (_as_it_is, "latin-1"),
    27: (_free_of_charge, "utf-8"),
    36: (_of_nothing, "utf-8"),
}
