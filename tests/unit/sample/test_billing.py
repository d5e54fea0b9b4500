from __future__ import annotations

import traceback
from datetime import date

import pytest

from poisonguard.fingerprint import fingerprint
from poisonweb.sample import billing, producer_messages

FREE, NOTHING = 27, 36


def failure_of(n: int, *, release: int) -> bytes:
    """Bill the n-th order, and say which problem its failure belongs to."""
    order = billing.read(producer_messages.order(n).body)
    with pytest.raises(ZeroDivisionError) as raised:
        billing.invoice(order, release=release)
    return fingerprint(
        exception_type=type(raised.value).__name__,
        exception_message=str(raised.value),
        traceback="".join(traceback.format_exception(raised.value)),
        cause="fatal",
        message_type="",
        body=b"",
    ).digest


def test_bills_what_is_paid_for() -> None:
    order = billing.Order(
        number="A-1",
        customer_id="C-1",
        placed_on=date(2026, 11, 20),
        unit_cents=1000,
        quantity=4,
        discount_percent=25,
        pays_by="card",
    )

    invoice = billing.invoice(order, release=1)

    assert (invoice.total_cents, invoice.due) == (3000, date(2026, 12, 4))
    assert invoice.mean_cents == 1000.0


def test_the_new_release_mends_half_of_one_problem() -> None:
    free = billing.read(producer_messages.order(FREE).body)

    assert failure_of(FREE, release=1) == failure_of(NOTHING, release=1)
    assert failure_of(NOTHING, release=1) == failure_of(NOTHING, release=2)
    assert billing.invoice(free, release=2).total_cents == 0
