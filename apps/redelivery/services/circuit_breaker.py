"""The circuit breaker of an endpoint: a dead back end costs one probe an interval.

Its state is one row, for gateways and senders alike. It opens after so many failures in
a row; then one call an interval is its probe, and the first success closes it (Nygard,
"Release It!").
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from apps.redelivery.models import Endpoint, EndpointActivity


def note(*, endpoint: Endpoint, outcomes: Sequence[bool], now: datetime) -> None:
    """Note an endpoint's ended calls, True for a success; open or close its breaker.

    Call it inside a transaction: it locks the row of the endpoint's activity, but not
    for successes alone, which need not wait for a claim that is being made.
    """
    if not outcomes:
        return
    if not endpoint.breaker_failures or all(outcomes):
        # An endpoint without a breaker may have had one until its last change.
        close_after_success(endpoint_id=endpoint.pk)
        return
    activity = EndpointActivity.objects.select_for_update().get(endpoint=endpoint)
    for is_success in outcomes:
        if is_success:
            activity.failures_in_a_row = 0
            activity.opened_at = activity.open_until = None
            continue
        activity.failures_in_a_row += 1
        if activity.failures_in_a_row >= endpoint.breaker_failures:
            activity.opened_at = activity.opened_at or now
            activity.open_until = now + timedelta(seconds=endpoint.breaker_interval)
    activity.save(update_fields=["failures_in_a_row", "opened_at", "open_until"])


def close_after_success(*, endpoint_id: int) -> None:
    """Reset an endpoint's breaker: closed, no failures; writes only a change."""
    EndpointActivity.objects.filter(
        endpoint=endpoint_id, failures_in_a_row__gt=0
    ).update(failures_in_a_row=0, opened_at=None, open_until=None)


def may_probe(*, endpoint: Endpoint, now: datetime) -> bool:
    """Take the probe of an open breaker, once an interval; False if it is not due."""
    return bool(
        EndpointActivity.objects.filter(endpoint=endpoint, open_until__lte=now).update(
            open_until=now + timedelta(seconds=endpoint.breaker_interval)
        )
    )


def is_open(activity: EndpointActivity) -> bool:
    """Tell whether an endpoint's breaker is open: only probes are called."""
    return activity.open_until is not None


def breaker_state(endpoint: Endpoint) -> str:
    """Return the state of an endpoint's breaker: `none`, `closed` or `open`."""
    if not endpoint.breaker_failures:
        return "none"
    return "open" if is_open(endpoint.activity) else "closed"
