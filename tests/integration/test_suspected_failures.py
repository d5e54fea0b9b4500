"""Suspected failures: kept without a skip until a consumer confirms them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.brokers.models import Topic
from apps.poison.models import Failure, Poison
from tests.failure_report_builders import capture, failure, poisons
from tests.skip_builders_and_list_mirror import suspected, values

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def test_a_suspected_failure_is_captured_without_a_skip(
    now: datetime, replaying_topic: Topic
) -> None:
    (poison,) = poisons(now, 1, suspected=True)

    assert (poison.suspected, Failure.objects.get().suspected) == (True, True)
    assert (values(), len(suspected())) == ([], 1)


def test_a_suspected_failure_is_not_shared_beside_one_that_is(
    now: datetime, replaying_topic: Topic
) -> None:
    capture(
        now, failure(now, bookmark="1-0", suspected=True), failure(now, bookmark="2-0")
    )

    assert (values(), suspected()) == (["2-0"], ["1-0"])


def test_the_same_report_without_suspicion_shares_the_skip(
    now: datetime, replaying_topic: Topic
) -> None:
    report = failure(now, bookmark="1-0")
    first = capture(now, {**report, "suspected": True})
    again = capture(now, {**report, "suspected": True})

    cleared = capture(now + SECOND, report, report)
    after = capture(now + SECOND, report)

    statuses = [answer.status for answer in (*first, *again, *cleared, *after)]
    assert statuses == ["created", "duplicate", "updated", "duplicate", "duplicate"]
    poison = Poison.objects.get()
    assert (poison.suspected, poison.failures) == (False, 1)
    assert Failure.objects.get().suspected is False
    assert values() == ["1-0"]


def test_suspicion_and_its_end_in_one_request_are_one_failure(
    now: datetime, replaying_topic: Topic
) -> None:
    report = failure(now, bookmark="1-0")

    answers = capture(now, {**report, "suspected": True}, report)

    assert [answer.status for answer in answers] == ["created", "duplicate"]
    assert Poison.objects.get().suspected is False
    assert values() == ["1-0"]


def test_another_consumer_that_fails_with_it_ends_the_suspicion(
    now: datetime, replaying_topic: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0", suspected=True))
    capture(now, failure(now, bookmark="1-0", suspected=True))
    still = Poison.objects.get().suspected

    capture(now, failure(now, bookmark="1-0", client_name="billing-2"))
    capture(now, failure(now, bookmark="1-0", suspected=True))

    assert (still, Poison.objects.get().suspected) == (True, False)
    assert values() == ["1-0"]
