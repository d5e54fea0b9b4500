"""The forms by which a broker is added, changed, and allowed its places."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.http import QueryDict

from apps.brokers import adapters, sealed_addresses, topic_policies
from apps.brokers.allow_lists_of_older_brokers import Choice
from apps.brokers.models import Broker
from apps.brokers.services import broker_registration
from apps.core.errors import Invalid
from apps.dashboard.forms.fields import options_as_json
from apps.team.rights import Principal

LONGEST_NUMBER = 18


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerForm:
    """A broker as typed into the form, so that it can be shown again.

    The page shows an address only where it names a variable of the environment. An
    empty `url` keeps the stored one.
    """

    name: str = ""
    kind: str = ""
    url: str = ""
    options: str = ""

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Read the submitted values of a broker, still unchecked."""
        return cls(**{name: data.get(name, "") for name in cls.__slots__})

    @classmethod
    def of(cls, broker: Broker) -> Self:
        """Return a form with the values of a broker, except its address."""
        return cls(
            name=broker.name, kind=broker.kind, options=options_as_json(broker.options)
        )

    @property
    def shown_url(self) -> str:
        """Return the entered broker address to show again; "" if maybe secret."""
        is_secret = not self.url.startswith(sealed_addresses.FROM_ENVIRONMENT)
        return "" if is_secret else self.url

    def add(self, principal: Principal, *, now: datetime) -> Broker:
        """Add a broker with the entered values; raises Invalid for a wrong field."""
        return broker_registration.add(
            name=self.name.strip(),
            kind=self.kind,
            url=self.url.strip(),
            options=self._options(self.kind),
            principal=principal,
            now=now,
        )

    def alter(self, broker: Broker, principal: Principal, *, now: datetime) -> Broker:
        """Change a broker to the entered values; raises Invalid for a wrong field.

        An empty address leaves the broker's own in place.
        """
        return broker_registration.alter(
            broker=broker,
            name=self.name.strip(),
            url=self.url.strip() or None,
            options=self._options(broker.kind),
            principal=principal,
            now=now,
        )

    def _options(self, kind: str) -> dict[str, object]:
        """Parse the broker options, entered as JSON; raises Invalid."""
        adapter = adapters.KINDS.get(kind)
        example = adapter.broker_options if adapter else ""
        return topic_policies.options_from(self.options, example=example)


def chosen_allowances(data: QueryDict) -> list[Choice]:
    """Parse ticked entries of brokers' allow-lists; raises Invalid without any."""
    parted = [value.partition(" ") for value in data.getlist("entries")]
    choices = [
        (int(number), entry)
        for number, _, entry in parted
        if number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER
    ]
    if not choices or len(choices) != len(parted):
        raise Invalid("entries", "tick at least one entry of the allow-list.")
    return choices
