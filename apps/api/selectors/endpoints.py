"""Read endpoints, with their breakers and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.api.keyset_pagination import Page, PageWindow
from apps.core.errors import Absent
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.redelivery import endpoint_figures
from apps.redelivery.endpoint_figures import CallHours, DeliveryBacklog
from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
from apps.redelivery.models import Endpoint, EndpointActivity
from apps.redelivery.querysets import EndpointQuerySet
from apps.redelivery.services.circuit_breaker import breaker_state
from apps.redelivery.topic_requests.topics_that_call_endpoints import topics_that_call
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointDetail:
    """An endpoint; a figure is None where Postgres takes too long to count it."""

    endpoint: Endpoint
    settings: EndpointSettings
    fed_by: list[str]
    activity: EndpointActivity
    breaker_state: str
    next_probe: datetime | None
    backlog: DeliveryBacklog | None
    calls: CallHours | None


def find(
    window: PageWindow, principal: Principal, *, now: datetime
) -> tuple[Page[Endpoint], list[EndpointDetail]]:
    """List a page of the endpoints that a principal sees."""
    page = window.page(_visible(principal).order_by("pk"))
    return page, _details(page.rows, principal, now=now)


def one(endpoint_id: int, principal: Principal, *, now: datetime) -> EndpointDetail:
    """Find an endpoint that this principal may see; raises Absent otherwise."""
    return _details([visible(endpoint_id, principal)], principal, now=now)[0]


def visible(endpoint_id: int, principal: Principal) -> Endpoint:
    """Find an endpoint's row by id for the API; raises Absent if it is not visible."""
    endpoint = _visible(principal).filter(pk=endpoint_id).first()
    if endpoint is None:
        raise Absent(f"There is no endpoint {endpoint_id} here.")
    return endpoint


def _visible(principal: Principal) -> EndpointQuerySet:
    return Endpoint.objects.matching(principal.topics).with_related_rows()


def _details(
    endpoints: Sequence[Endpoint], principal: Principal, *, now: datetime
) -> list[EndpointDetail]:
    """Return each endpoint with the topics that feed it, its breaker and its figures.

    Figures that take too long to count are None.
    """
    topics = topics_that_call(endpoints, principal)
    ids = [endpoint.pk for endpoint in endpoints]
    counted = unless_slow(lambda: endpoint_figures.backlogs(ids))
    backlogs = {} if isinstance(counted, TooSlow) else counted
    calls = unless_slow(lambda: endpoint_figures.call_hours(ids, now=now))
    return [
        EndpointDetail(
            endpoint=endpoint,
            settings=EndpointSettings.of(endpoint),
            fed_by=[topic.name for topic in topics[endpoint.pk]],
            activity=endpoint.activity,
            breaker_state=breaker_state(endpoint),
            next_probe=endpoint_figures.next_probe(
                endpoint, backlogs.get(endpoint.pk), now=now
            ),
            backlog=backlogs.get(endpoint.pk),
            calls=None if isinstance(calls, TooSlow) else calls[endpoint.pk],
        )
        for endpoint in endpoints
    ]
