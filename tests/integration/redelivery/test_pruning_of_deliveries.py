"""Deliveries that are over are deleted after their retention, with all their rows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.brokers.models import Topic
from apps.redelivery.call_and_delivery_dataclasses import CallResult
from apps.redelivery.delivery_ids import first_id_at, new_delivery_id
from apps.redelivery.models import Attempt, CallCount, Delivery, DeliveryBody, Endpoint
from apps.redelivery.services.pruning import prune
from apps.redelivery.services.request_acceptance import accept
from tests.ended_deliveries import delivery
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    BROKEN,
    NOW,
    SUCCESS,
    endpoint,
    request,
)

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def accept_before(of: Endpoint, result: CallResult | None, *, days: int) -> Delivery:
    """Store a request with an id and times of so many days ago."""
    moment = NOW - days * DAY
    new = request(result, id=first_id_at(moment), is_repeatable=False)
    accept(endpoint=of, new=new, now=moment)
    Delivery.objects.filter(pk=new.id, finished_at=NOW).update(finished_at=moment)
    return Delivery.objects.get(pk=new.id)


def test_what_ended_before_its_retention_goes_with_all_its_rows() -> None:
    usual, short = endpoint(retries=0), endpoint("short", retries=0, at_end="drop")
    Topic.objects.filter(endpoint=short).update(retention_days=2)
    accept_before(usual, SUCCESS, days=32)
    accept_before(usual, SUCCESS, days=31)
    accept_before(short, BROKEN, days=3)
    remaining = {
        accept_before(usual, None, days=40).pk,  # it still waits
        accept_before(usual, SUCCESS, days=29).pk,
        accept_before(short, BROKEN, days=1).pk,
    }

    assert prune(now=NOW, at_once=2) == 3

    assert {each.pk for each in Delivery.objects.all()} == remaining
    assert {each.delivery_id for each in DeliveryBody.objects.all()} == remaining
    assert {each.delivery_id for each in Attempt.objects.all()} < remaining
    assert prune(now=NOW) == 0


def test_what_is_given_up_stays_as_long_as_its_message_with_every_answer() -> None:
    stock = endpoint(retries=0)
    given_up = [accept_before(stock, BROKEN, days=days) for days in (60, 50, 40)]
    for days in (55, 45, 35):
        accept_before(stock, SUCCESS, days=days)

    assert prune(now=NOW, at_once=1) == 3
    assert Attempt.objects.filter(delivery__in=given_up, status=503).count() == 3

    # Its message is deleted.
    Delivery.objects.filter(pk=given_up[1].pk).update(poison=2**60)
    assert prune(now=NOW) == 1
    assert set(Delivery.objects.all()) == {given_up[0], given_up[2]}


def test_what_ended_stays_until_a_night_could_count_it() -> None:
    of = endpoint()
    Topic.objects.filter(endpoint=of).update(retention_days=1)
    midnight = NOW.replace(hour=0)
    ended = delivery(of, "dropped", midnight, id=first_id_at(midnight))

    assert prune(now=midnight + 2 * DAY) == 0
    assert prune(now=midnight + 2 * DAY + timedelta(seconds=1)) == 1

    assert not Delivery.objects.filter(pk=ended.pk).exists()


def test_counts_of_calls_go_after_more_than_a_year() -> None:
    stock = endpoint()
    for days in (399, 401):
        CallCount.objects.create(endpoint=stock, minute=NOW - days * DAY)

    prune(now=NOW)

    assert CallCount.objects.get().minute == NOW - 399 * DAY


def test_an_id_is_not_less_than_the_first_of_its_moment() -> None:
    id_ = new_delivery_id()
    accepted_at = NOW.fromtimestamp((id_.int >> 80) / 1_000, tz=NOW.tzinfo)

    assert first_id_at(accepted_at) <= id_ < first_id_at(accepted_at + DAY)
