from __future__ import annotations

import json

import pytest

from poisonweb.sample import billing, producer_messages

FAULTS = {
    3: KeyError,
    11: ValueError,
    19: UnicodeDecodeError,
    27: ZeroDivisionError,
    36: ZeroDivisionError,
}


@pytest.mark.parametrize(("n", "error"), FAULTS.items())
def test_some_orders_fail_in_realistic_ways(n: int, error: type[Exception]) -> None:
    order = producer_messages.order(40 + n)

    with pytest.raises(error):
        billing.invoice(billing.read(order.body), release=1)


def test_all_the_others_can_be_billed() -> None:
    for n in set(range(400)) - {
        hundred + n for hundred in range(0, 400, 40) for n in FAULTS
    }:
        billing.invoice(billing.read(producer_messages.order(n).body), release=1)


def test_contents_are_those_of_the_article() -> None:
    message = producer_messages.content(26)

    assert json.loads(message.body) == {"id": 26}
    assert message.fields["body"] == message.body
    assert message.fields["content-type"] == "application/json"


def test_some_shipments_go_to_an_address_with_a_flower_in_it() -> None:
    addresses = [
        json.loads(producer_messages.shipment(n).body)["to"] for n in range(60)
    ]

    strange = [n for n, address in enumerate(addresses) if not address.isascii()]
    assert strange == [7, 37]
