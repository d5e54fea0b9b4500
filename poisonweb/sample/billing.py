"""Turn orders into invoices. Release 1 has a bug, and release 2 fixes half of it.

The mean price of the paid items fails if there are none: because the discount is 100 %,
which release 2 handles, or because the quantity is 0, which it does not handle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta

DAYS_TO_PAY = timedelta(days=14)


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    number: str
    customer_id: str
    placed_on: date
    unit_cents: int
    quantity: int
    discount_percent: int
    pays_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    total_cents: int
    mean_cents: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Invoice:
    order: str
    due: date
    total_cents: int
    mean_cents: float


def read(body: bytes) -> Order:
    """Parse a made-up order's body; raise what a wrong one causes in real consumers."""
    members = json.loads(body.decode("utf-8"))
    return Order(
        number=members["number"],
        customer_id=members["customer_id"],
        placed_on=date.fromisoformat(members["placed_on"]),
        unit_cents=members["unit_cents"],
        quantity=members["quantity"],
        discount_percent=members["discount_percent"],
        pays_by=members["pays_by"],
    )


def invoice(order: Order, *, release: int) -> Invoice:
    """Compute a made-up order's invoice, with the bugs of the handler's release."""
    totals = _totals(order, release=release)
    return Invoice(
        order=order.number,
        due=order.placed_on + DAYS_TO_PAY,
        total_cents=totals.total_cents,
        mean_cents=totals.mean_cents,
    )


def _totals(order: Order, *, release: int) -> Totals:
    """Compute the total and the mean price of the items of a made-up order."""
    paid = order.quantity * (100 - order.discount_percent) / 100
    total = round(order.unit_cents * paid)
    return Totals(
        total_cents=total, mean_cents=_mean_price(order, total, paid, release=release)
    )


def _mean_price(order: Order, total: int, paid: float, *, release: int) -> float:
    """Divide a made-up order's total by its paid quantity.

    Both releases fail at a quantity of 0, and release 1 fails at a discount of 100 %.
    """
    if release >= 2 and order.discount_percent == 100:
        return 0.0
    return total / paid
