"""Filter deliveries, for pages and the API alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, time
from typing import Final, Self

from apps.core.errors import Invalid
from apps.core.moment_parsing import parse_moment
from apps.core.statement_timeouts import search_timeout
from apps.core.text_cleaning import storable
from apps.redelivery.delivery_ids import first_id_at, last_id_at
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Delivery
from apps.redelivery.querysets import DeliveryQuerySet
from apps.team.rights import Principal
from poisonguard.contract import NAME_LIMIT, Cause

# The filters' query parameters, with what each takes.
PARAMETERS: Final = {
    "endpoint": "the name of one",
    "state": f"one of {', '.join(DeliveryState)}",
    "cause": "why it was given up or dropped: exhausted, expired, unknown or manual",
    "since": "a UTC day or a time at which it came; included",
    "until": "a UTC day or a time at which it came; included",
    "due": "a UTC day or a time: waiting deliveries that are tried again until then",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryFilter:
    """Conditions on deliveries; a None member allows all of them.

    `since` and `until` are about when a delivery came, `due` is the latest time at
    which a waiting one is tried again.
    """

    endpoint: str | None = None
    state: str | None = None
    cause: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    due: datetime | None = None

    @classmethod
    def parse(cls, params: Mapping[str, str]) -> Self:
        """Parse request parameters into a delivery filter, or raise Invalid."""
        return cls(
            endpoint=_endpoint(params.get("endpoint")),
            state=_word("state", params.get("state"), list(DeliveryState)),
            cause=_word("cause", params.get("cause"), list(Cause)),
            since=parse_moment("since", params.get("since"), time.min),
            until=parse_moment("until", params.get("until"), time.max),
            due=parse_moment("due", params.get("due"), time.max),
        )

    def matching(self, principal: Principal) -> DeliveryQuerySet:
        """Select the deliveries that the principal may see, the latest first."""
        return self.on_endpoints(principal.topics).recent_first()

    def on_endpoints(self, patterns: Sequence[str]) -> DeliveryQuerySet:
        """Select deliveries of endpoints whose topic matches one of these patterns."""
        rows = Delivery.objects.on_endpoints(patterns)
        if self.endpoint is not None:
            rows = rows.filter(endpoint__name=self.endpoint)
        if self.state is not None:
            rows = rows.filter(state=self.state)
        if self.cause is not None:
            rows = rows.filter(cause=self.cause)
        # Ids are in the order of time, and each list has an index of them.
        if self.since is not None:
            rows = rows.filter(pk__gte=first_id_at(self.since))
        if self.until is not None:
            rows = rows.filter(pk__lte=last_id_at(self.until))
        if self.due is not None:
            rows = rows.filter(state=DeliveryState.WAITING, due_at__lte=self.due)
        return rows


def delivery_list_timeout() -> AbstractContextManager[None]:
    """Cancel a slow list: raise Invalid, which says how to narrow it."""
    return search_timeout("since", "choose an endpoint, or a shorter time")


def _endpoint(value: str | None) -> str | None:
    """Return a delivery filter's endpoint name, None if empty; or raise Invalid."""
    if not value:
        return None
    if len(value) > NAME_LIMIT or value != storable(value):
        raise Invalid("endpoint", "send the name of an endpoint")
    return value


def _word(name: str, value: str | None, words: Collection[str]) -> str | None:
    """Check that a filter parameter is one of some words; None if empty, or Invalid."""
    if value and value not in words:
        raise Invalid(name, f"send one of {', '.join(words)}")
    return value or None
