"""Automatic skips end when every known position has passed their message."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.brokers.models import Topic
from apps.capture.intake import automatic_skips
from apps.poison.models import Skip
from tests.failure_report_builders import capture, failure
from tests.skip_builders_and_list_mirror import values

pytestmark = pytest.mark.django_db

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def reader(topic: Topic, name: str, **marks: int | tuple[int, int]) -> None:
    """Create a position with (processed, persisted) for each publisher."""
    position = BookmarkPosition.objects.create(
        topic=topic, source="sdk", client_name=name, sub_id="s", epoch=1,
        observed_at=skip_time(topic), moved_at=skip_time(topic),
    )  # fmt: skip
    for publisher, seqs in marks.items():
        processed, persisted = seqs if isinstance(seqs, tuple) else (seqs, None)
        Mark.objects.create(
            position=position, publisher=publisher.strip("_"), processed=processed,
            persisted=persisted, bookmark="", settled=((0, processed),),
        )  # fmt: skip


def skip_time(topic: Topic) -> datetime:
    return Skip.objects.filter(topic=topic).earliest("at").at


def test_a_skip_ends_once_every_known_position_has_passed_it(
    now: datetime, replaying_topic: Topic
) -> None:
    for seq in (5, 6, 7):
        capture(now, failure(now, bookmark=f"P|{seq}|", publisher="P", seq=seq))
    capture(now, failure(now, bookmark="Q|1|", publisher="Q", seq=1))
    capture(now, failure(now, bookmark="somewhere"))
    reader(replaying_topic, "billing-1", P=9, Q=9)
    reader(replaying_topic, "billing-2", P=(9, 6))

    early = automatic_skips.end_passed(now=now + DAY - SECOND)
    ended = automatic_skips.end_passed(now=now + DAY + SECOND)

    assert (early, ended) == (0, 2)
    assert values() == ["P|7|", "Q|1|", "somewhere"]
    assert {s.because for s in Skip.objects.exclude(because="")} == {"passed"}


def test_without_a_known_position_no_skip_is_passed(
    now: datetime, replaying_topic: Topic
) -> None:
    capture(now, failure(now, bookmark="P|5|", publisher="P", seq=5))

    assert automatic_skips.end_passed(now=now + 2 * DAY) == 0
