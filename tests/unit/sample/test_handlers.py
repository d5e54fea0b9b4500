from __future__ import annotations

from datetime import timedelta

import pytest

from poisonweb.sample import producer_messages
from poisonweb.sample.handlers import Billing, Payments, Superstitious

AT_ONCE = timedelta(0)


class SampleAge:
    def __init__(self) -> None:
        self.age = timedelta(0)

    def __call__(self) -> timedelta:
        return self.age


def test_thirteen_is_bad_luck() -> None:
    handler = Superstitious()

    handler.handle(b'{"id": 12}')
    with pytest.raises(ValueError, match=r"^I'm superstitious\.\.\.$"):
        handler.handle(b'{"id": 26}')


@pytest.mark.parametrize(
    ("seconds", "is_away"),
    [(0, False), (14, False), (15, True), (54, True), (55, False), (255, True)],
)
def test_payments_are_away_now_and_then(seconds: int, *, is_away: bool) -> None:
    clock = SampleAge()
    clock.age = timedelta(seconds=seconds)
    payments, away = Payments(clock), False

    try:
        payments.charge("C-1")
    except TimeoutError:
        away = True

    assert away is is_away


def test_a_new_release_takes_over_at_its_time() -> None:
    clock, free = SampleAge(), producer_messages.order(27).body
    handler = Billing(
        payments=Payments(clock), age=clock, release_after=timedelta(minutes=1)
    )

    with pytest.raises(ZeroDivisionError):
        handler.handle(free)
    before = handler.version
    clock.age = timedelta(minutes=1)
    handler.handle(free)

    assert (before, handler.version) == ("1", "2")


def test_only_orders_by_card_need_the_payments() -> None:
    clock = SampleAge()
    clock.age = timedelta(seconds=20)
    handler = Billing(payments=Payments(clock), age=clock, release_after=AT_ONCE)

    handler.handle(producer_messages.order(1).body)
    with pytest.raises(TimeoutError):
        handler.handle(producer_messages.order(5).body)
