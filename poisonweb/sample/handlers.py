"""The consumers' handlers, which depend on no broker and on no Poisonweb."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta

from poisonweb.sample import billing

AWAY_EVERY = timedelta(minutes=4)
AWAY_FROM = timedelta(seconds=15)
AWAY_UNTIL = timedelta(seconds=55)
ANSWER_SECONDS = 0.2

# Returns the time since the first start of the sample.
Age = Callable[[], timedelta]


class Superstitious:
    """Fail for every thirteenth message, as in the article that it comes from."""

    version = "1"

    def handle(self, body: bytes) -> None:
        """Fail for every made-up message whose id 13 divides."""
        message = json.loads(body)
        if message["id"] % 13 == 0:
            raise ValueError("I'm superstitious...")


class Payments:
    """A remote back end that is down now and then."""

    def __init__(self, age: Age) -> None:
        self._age = age

    def charge(self, customer: str) -> None:
        """Pretend to charge a customer's card.

        Raise TimeoutError while the made-up payment service is away.
        """
        if AWAY_FROM <= self._age() % AWAY_EVERY < AWAY_UNTIL:
            time.sleep(ANSWER_SECONDS)
            raise TimeoutError(
                f"payments did not answer within {ANSWER_SECONDS} s for {customer}"
            )


class Billing:
    """Bill orders; a new release takes over when the sample has a certain age."""

    def __init__(
        self, *, payments: Payments, age: Age, release_after: timedelta
    ) -> None:
        self._payments = payments
        self._age = age
        self._release_after = release_after

    @property
    def version(self) -> str:
        """Return the sample's billing release, which changes with the sample's age."""
        return str(self._release)

    @property
    def _release(self) -> int:
        return 1 if self._age() < self._release_after else 2

    def handle(self, body: bytes) -> None:
        """Make the invoice of a made-up order, and pretend to charge a card."""
        order = billing.read(body)
        billing.invoice(order, release=self._release)
        if order.pays_by == "card":
            self._payments.charge(order.customer_id)
