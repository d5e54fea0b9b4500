"""Capture under many writers: the record is the same in any order."""

from __future__ import annotations

from datetime import datetime

import pytest

from apps.capture.intake import services
from apps.poison.models import Failure, Poison
from tests.failure_report_builders import GUARD, failure
from tests.races import together

pytestmark = pytest.mark.django_db(transaction=True)


def test_eight_writers_of_the_same_reports_count_each_once(now: datetime) -> None:
    reports = [failure(now, bookmark=f"{n}-0") for n in range(50)]

    def write(_: int) -> None:
        services.capture(members=reports, principal=GUARD, now=now)

    together(8, write)

    assert (Poison.objects.count(), Failure.objects.count()) == (50, 50)


def test_writers_in_opposite_orders_end_with_one_poison_each(now: datetime) -> None:
    bookmarks = [f"{n}-0" for n in range(60)]

    def write(turn: int) -> None:
        for _ in range(3):
            order = bookmarks if turn % 2 else bookmarks[::-1]
            members = [failure(now, bookmark=mark) for mark in order]
            services.capture(members=members, principal=GUARD, now=now)

    together(6, write)

    assert Poison.objects.count() == 60
    assert all(poison.failures == 18 for poison in Poison.objects.all())


def test_writers_of_one_identity_with_two_bodies_make_two_poisons(
    now: datetime,
) -> None:
    def write(turn: int) -> None:
        body = b"odd" if turn % 2 else b"even"
        members = [failure(now, bookmark=f"{n}-0", body=body) for n in range(20)]
        services.capture(members=members, principal=GUARD, now=now)

    together(6, write)

    assert Poison.objects.count() == 40
    assert set(Poison.objects.values_list("reuse", flat=True)) == {0, 1}
